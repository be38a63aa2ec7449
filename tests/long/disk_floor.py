#!/usr/bin/env python3
"""Disk against fio: the same file, block size, depth and CPUs, taking turns, medians compared.

usage: tests/long/disk_floor.py --bench build/release/tests/bench/disk_bench [--directory DIR ...]

Demotion is writing in sequence, promotion reading at random. Each turn runs disk_bench and fio, in
an order that alternates; ratios are medians over the pairs. Exit status 0: every bar holds;
1: one does not; 77: fio is not installed.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

TABLE_BYTES = 64 << 10
MIB = 1 << 20
EXIT_SKIPPED = 77
RUN_S_MAX = 120


@dataclasses.dataclass(frozen=True)
class Case:
    operation: str
    block_kib: int
    directory: str
    is_memory: bool

    @property
    def bar(self):
        return 0.90 if self.block_kib >= 1024 and not self.is_memory else 0.85

    def __str__(self):
        place = "memory" if self.is_memory else "drive"
        return f"{place:7}{self.operation:6}{self.block_kib:5} KiB"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, type=pathlib.Path)
    parser.add_argument("--directory", action="append",
                        help="of the drive, and of a tmpfs (default: the temporary one, /dev/shm)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--file-mib", type=int, default=1024)
    parser.add_argument("--total-mib", type=int, default=1024, help="moved in each run")
    parser.add_argument("--block-kib", type=int, action="append", help="default: 1024 and 64")
    parser.add_argument("--cpus", default="0,1", help="both programs are pinned to these")
    parser.add_argument("--engine", default="auto", choices=("auto", "uring", "threads"))
    parser.add_argument("--cpu-us-per-mib-max", type=float, default=70.0)
    parser.add_argument("--plain-buffers", action="store_true", help="register no memory")
    parser.add_argument("--tables", action="store_true", help="a table entry after each write")
    return parser.parse_args()


def run(arguments, command):
    finished = subprocess.run(["taskset", "-c", arguments.cpus, *map(str, command)],
                              capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    if finished.returncode != 0:
        sys.exit(f"{command[0]} failed: {finished.stderr.strip() or finished.stdout.strip()}")
    return json.loads(finished.stdout[finished.stdout.index("{"):])


def run_bench(arguments, case, total_mib):
    command = [arguments.bench, "--directory", case.directory, "--op", case.operation,
               "--engine", arguments.engine, "--block-kib", case.block_kib,
               "--depth", arguments.depth, "--file-mib", arguments.file_mib,
               "--total-mib", total_mib]
    command += ["--plain-buffers"] * arguments.plain_buffers + ["--tables"] * arguments.tables
    result = run(arguments, command)
    return result["mib_per_second"], result["cpu_us_per_mib"], result["disk"]


def run_fio(arguments, case, total_mib):
    file_bytes = TABLE_BYTES + arguments.file_mib * MIB
    result = run(arguments, [
        "fio", "--name=floor", f"--filename={case.directory}/bench", "--ioengine=io_uring",
        "--direct=1", "--thread", f"--rw={'write' if case.operation == 'write' else 'randread'}",
        f"--bs={case.block_kib}k", f"--iodepth={arguments.depth}", f"--offset={TABLE_BYTES}",
        f"--size={file_bytes - TABLE_BYTES}", f"--io_size={total_mib}m", "--overwrite=1",
        "--norandommap", "--randrepeat=1", "--fallocate=none", "--output-format=json"])
    job = result["jobs"][0]
    side = job[case.operation]
    mib_per_second = side["bw_bytes"] / MIB
    cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000
    return mib_per_second, cpu_us / (side["io_bytes"] / MIB)


def measure(arguments, case):
    bench, fio = [], []
    for pair in range(arguments.pairs):
        turns = [lambda: bench.append(run_bench(arguments, case, arguments.total_mib)),
                 lambda: fio.append(run_fio(arguments, case, arguments.total_mib))]
        for turn in turns if pair % 2 == 0 else reversed(turns):
            turn()
    rate = statistics.median(b[0] for b in bench)
    floor = statistics.median(f[0] for f in fio)
    ratio = statistics.median(b[0] / f[0] for b, f in zip(bench, fio))
    cpu = statistics.median(b[1] for b in bench)
    fio_cpu = statistics.median(f[1] for f in fio)
    faults = []
    if ratio < case.bar:
        faults.append(f"ratio below {case.bar:.2f}")
    if not case.is_memory and case.block_kib >= 1024 and cpu > arguments.cpu_us_per_mib_max:
        faults.append(f"CPU above {arguments.cpu_us_per_mib_max:.0f} us/MiB")
    print(f"{case}  {rate:8.0f} {floor:8.0f} MiB/s  ratio {ratio:5.2f}  "
          f"CPU {cpu:6.1f} {fio_cpu:6.1f} us/MiB  {'; '.join(faults) or 'holds'}", flush=True)
    return not faults


def is_memory(directory):
    kind = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True,
                          check=True).stdout.strip()
    return kind in ("tmpfs", "ramfs")


def main():
    arguments = parse_arguments()
    if shutil.which("fio") is None:
        print("skipped: fio is not installed (tools/setup installs it)")
        return EXIT_SKIPPED
    holds = True
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs; left disk, right fio")
    for parent in arguments.directory or [tempfile.gettempdir(), "/dev/shm"]:
        with tempfile.TemporaryDirectory(prefix="terrace-floor-", dir=parent) as scratch:
            directory = f"{scratch}/domain"
            for block_kib in arguments.block_kib or (1024, 64):
                for operation in ("write", "read"):
                    case = Case(operation, block_kib, directory, is_memory(scratch))
                    run_bench(arguments, case, arguments.total_mib)  # makes the file, warms up
                    holds &= measure(arguments, case)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
