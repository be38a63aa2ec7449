#!/usr/bin/env python3
"""Disk and NvmeTier against fio: the same file, block size, depth, memory and CPUs, taking turns.

usage: tests/long/disk_floor.py --bench build/release/tests/bench/disk_bench [--directory DIR ...]

Demotion is writing in sequence, promotion reading at random. Each turn runs disk_bench and fio, in
an order that alternates; ratios are medians over the pairs, CPU time is the least of the runs (what
others do to caches and clocks only adds to it). Both use the very same memory, shared,
huge or plain, and register it and the file: how far pages lie apart decides what a transfer costs.
What the drive itself moved is read from /sys/dev/block/*/stat: a run that a cache served proves
nothing. Exit status 0: every bar holds; 1: one does not; 77: fio is not installed.
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

MIB = 1 << 20
SECTOR_BYTES = 512
EXIT_SKIPPED = 77
RUN_S_MAX = 120
DEVICE_RATIO_MIN = 0.98
HUGE_PAGE_BYTES = 2 * MIB
CPU_US_PER_MIB_MAX = {"huge": 15.0, "plain": 70.0}  # of 1 MiB blocks; nothing is checksummed here
FIO_MEMORY = {"huge": "mmaphuge", "plain": "mmapshared", "unregistered": "mmapshared"}
FIO_ALIGNMENT_BYTES = 2 * MIB  # more than what fio takes beyond its blocks


@dataclasses.dataclass(frozen=True)
class Case:
    subject: str
    operation: str
    block_kib: int
    memory: str
    memory_file: str
    parent: str

    @property
    def directory(self):
        return f"{self.parent}/{self.subject}-{self.block_kib}"

    @property
    def is_on_tmpfs(self):
        return kind_of(self.parent) == "tmpfs"

    @property
    def bar(self):
        return 0.90 if self.block_kib >= 1024 and not self.is_on_tmpfs else 0.85

    @property
    def cpu_max(self):
        if self.block_kib < 1024 or self.is_on_tmpfs:
            return float("inf")
        return CPU_US_PER_MIB_MAX.get(self.memory, float("inf"))

    def __str__(self):
        return (f"{kind_of(self.parent):6}{self.subject:5}{self.operation:6}{self.block_kib:5} KiB "
                f"{self.memory:12}")


@dataclasses.dataclass(frozen=True)
class Outcome:
    mib_per_second: float
    cpu_us_per_mib: float
    device_ratio: float  # what the drive moved, of what the program moved


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, type=pathlib.Path)
    parser.add_argument("--directory", action="append",
                        help="of the drive, and of a tmpfs (default: the temporary one, /dev/shm)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--file-mib", type=int, default=1024)
    parser.add_argument("--total-mib", type=int, default=2048, help="moved in each run")
    parser.add_argument("--block-kib", type=int, action="append", help="default: 1024 and 64")
    parser.add_argument("--subject", action="append", choices=("disk", "tier"),
                        help="default: both")
    parser.add_argument("--memory", action="append", choices=tuple(FIO_MEMORY),
                        help="default: plain, and huge if vm.nr_hugepages has enough")
    parser.add_argument("--operation", action="append", choices=("write", "read"),
                        help="default: both")
    parser.add_argument("--cpus", default="0,1", help="both programs are pinned to these")
    parser.add_argument("--engine", default="auto", choices=("auto", "uring", "threads"))
    return parser.parse_args()


def kind_of(directory):
    return subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True,
                          check=True).stdout.strip().replace("ext2/ext3", "ext4")


def device_bytes(case):
    """Bytes the drive under the directory has moved so far; None: there is no drive."""
    number = os.stat(case.parent).st_dev
    path = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    if not path.exists():
        return None
    fields = path.read_text(encoding="ascii").split()
    return int(fields[6 if case.operation == "write" else 2]) * SECTOR_BYTES


def run(arguments, case, command, mib_moved):
    before = device_bytes(case)
    finished = subprocess.run(["taskset", "-c", arguments.cpus, *map(str, command)],
                              capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    if finished.returncode != 0:
        sys.exit(f"{command[0]} failed: {finished.stderr.strip() or finished.stdout.strip()}")
    after = device_bytes(case)
    result = json.loads(finished.stdout[finished.stdout.index("{"):])
    return result, (1.0 if before is None else (after - before) / (mib_moved * MIB))


def run_bench(arguments, case):
    command = [arguments.bench, "--directory", case.directory, "--op", case.operation,
               "--engine", arguments.engine, "--block-kib", case.block_kib,
               "--depth", arguments.depth, "--file-mib", arguments.file_mib,
               "--total-mib", arguments.total_mib, "--memory-file", case.memory_file]
    command += ["--tier"] * (case.subject == "tier")
    command += ["--unregistered"] * (case.memory == "unregistered")
    result, ratio = run(arguments, case, command, arguments.total_mib)
    return result, Outcome(result["mib_per_second"], result["cpu_us_per_mib"], ratio)


def run_fio(arguments, case, place):
    command = ["fio", "--name=floor", f"--filename={case.directory}/{place['file']}",
               "--ioengine=io_uring", "--direct=1", "--thread",
               f"--rw={'write' if case.operation == 'write' else 'randread'}",
               f"--bs={case.block_kib}k", f"--iodepth={arguments.depth}",
               f"--offset={place['offset_bytes']}", f"--size={place['length_bytes']}",
               f"--io_size={arguments.total_mib}m", "--overwrite=1", "--norandommap",
               "--randrepeat=1", "--fallocate=none", "--output-format=json",
               f"--iomem={FIO_MEMORY[case.memory]}:{case.memory_file}"]
    if case.memory != "unregistered":
        command += ["--fixedbufs=1", "--registerfiles=1"]
    result, ratio = run(arguments, case, command, arguments.total_mib)
    job = result["jobs"][0]
    side = job[case.operation]
    cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000
    return Outcome(side["bw_bytes"] / MIB, cpu_us / (side["io_bytes"] / MIB), ratio)


def measure(arguments, case):
    place, _ = run_bench(arguments, case)  # makes the file, warms up
    bench, fio = [], []
    for pair in range(arguments.pairs):
        turns = [lambda: bench.append(run_bench(arguments, case)[1]),
                 lambda: fio.append(run_fio(arguments, case, place))]
        for turn in turns if pair % 2 == 0 else reversed(turns):
            turn()

    def median(outcomes, field):
        return statistics.median(getattr(outcome, field) for outcome in outcomes)

    ratio = statistics.median(b.mib_per_second / f.mib_per_second for b, f in zip(bench, fio))
    cpu = min(outcome.cpu_us_per_mib for outcome in bench)
    fio_cpu = min(outcome.cpu_us_per_mib for outcome in fio)
    faults = []
    if ratio < case.bar:
        faults.append(f"ratio below {case.bar:.2f}")
    if cpu > case.cpu_max:
        faults.append(f"CPU above {case.cpu_max:.0f} us/MiB")
    if median(bench, "device_ratio") < DEVICE_RATIO_MIN:
        faults.append("not all of it reached the drive")
    print(f"{case}{median(bench, 'mib_per_second'):7.0f} {median(fio, 'mib_per_second'):7.0f}"
          f"  {ratio:5.2f}  {cpu:6.1f} {fio_cpu:6.1f}"
          f"  {median(bench, 'device_ratio'):5.3f} {median(fio, 'device_ratio'):5.3f}"
          f"  {'; '.join(faults) or 'holds'}", flush=True)
    return not faults


class Memory:
    """A file on a tmpfs or a hugetlbfs, mounted for the purpose: needs root."""

    def __init__(self, kind, length_bytes):
        self.directory = tempfile.mkdtemp(prefix="terrace-memory-")
        mount = (["hugetlbfs", "-o", f"pagesize={HUGE_PAGE_BYTES}"] if kind == "huge"
                 else ["tmpfs", "-o", "size=90%"])
        subprocess.run(["mount", "-t", mount[0], *mount[1:], "terrace-floor", self.directory],
                       check=True)
        self.path = f"{self.directory}/memory"
        with open(self.path, "wb") as file:
            file.truncate(length_bytes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.directory], check=False)
        os.rmdir(self.directory)


def memories(arguments, length_bytes):
    if arguments.memory:
        return arguments.memory
    needed = length_bytes // HUGE_PAGE_BYTES
    free = int(pathlib.Path("/proc/sys/vm/nr_hugepages").read_text(encoding="ascii"))
    if free >= needed:
        return ["huge", "plain"]
    print(f"huge pages are skipped: vm.nr_hugepages is {free}, this needs {needed}")
    return ["plain"]


def cases(arguments, scratch, memory, memory_file):
    for subject in arguments.subject or ("disk", "tier"):
        for block_kib in arguments.block_kib or (1024, 64):
            for operation in arguments.operation or ("write", "read"):
                yield Case(subject, operation, block_kib, memory, memory_file, scratch)


def main():
    arguments = parse_arguments()
    if shutil.which("fio") is None:
        print("skipped: fio is not installed (tools/setup installs it)")
        return EXIT_SKIPPED
    block_bytes = max(arguments.block_kib or (1024,)) << 10
    length_bytes = block_bytes * arguments.depth + FIO_ALIGNMENT_BYTES
    length_bytes += -length_bytes % HUGE_PAGE_BYTES
    holds = True
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs; left Terrace, right fio\n"
          "fs    what op     block     memory         MiB/s   MiB/s  ratio  us/MiB us/MiB"
          "  of device")
    for parent in arguments.directory or [tempfile.gettempdir(), "/dev/shm"]:
        with tempfile.TemporaryDirectory(prefix="terrace-floor-", dir=parent) as scratch:
            for kind in memories(arguments, length_bytes):
                with Memory(kind, length_bytes) as memory:
                    for case in cases(arguments, scratch, kind, memory.path):
                        holds &= measure(arguments, case)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
