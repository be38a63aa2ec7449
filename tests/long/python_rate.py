#!/usr/bin/env python3
"""Stores and loads blocks of 1 MiB through the Python package and, in turn, through the C++ client
(tests/bench/client_rate_bench), in pairs on one daemon: the median ratio may not be below 0.9.
"""
import argparse
import importlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS, BLOCKS, MIB = 24, 16, 1 << 20
SEGMENTS = 4
RATIO_MIN = 0.9


def load_package(build):
    os.environ["TERRACE_LIBRARY"] = str(build / "client" / "libterrace.so")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "client" / "python"))
    return importlib.import_module("terrace")


def wait_populated(terrace, socket):
    with terrace.Client(socket, default_timeout_s=30) as client:
        client.wait_connected(30)
        while client.stats()["domain"]["segments_populated"] < SEGMENTS:
            time.sleep(0.05)


def python_side(terrace, socket, first):
    space = terrace.Space(model="rate", revision="1", dtype="bf16", layout="nhd", layers=1,
                          kv_heads=1, head_size=64, block_tokens=16, part_bytes=(MIB,))
    with terrace.Client(socket, default_timeout_s=30) as client:
        client.wait_connected(30)
        group = client.open(terrace.SpaceGroup("rate", [space]))
        data = bytearray(b"\7" * (BLOCKS * MIB))
        prompts = [terrace.Keys.from_hex([f"{first + p:016x}{b + 1:016x}" for b in range(BLOCKS)])
                   for p in range(PROMPTS)]
        began = time.monotonic()
        for keys in prompts:
            with group.reserve(keys) as lease:
                lease.write(data)
                assert lease.commit() == BLOCKS
        store_s = time.monotonic() - began
        began = time.monotonic()
        for keys in prompts:
            with group.acquire(keys) as lease:
                assert lease.block_count == BLOCKS
                lease.wait_ready()
                lease.copy_into(data)
        print(PROMPTS * BLOCKS / store_s, PROMPTS * BLOCKS / (time.monotonic() - began))


def run_side(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--pairs", default=9, type=int)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--short", action="store_true", help="3 pairs")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    if arguments.side:
        return python_side(load_package(build), arguments.side[0], int(arguments.side[1]))
    bench = build / "tests" / "bench" / "client_rate_bench"
    subprocess.run(["ninja", "-C", build, "client_rate_bench", "libterrace", "terraced"],
                   check=True, stdout=subprocess.DEVNULL)
    terrace = load_package(build)
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/t.sock"
        config = pathlib.Path(directory) / "t.toml"
        config.write_text(f'[daemon]\ndram_bytes = "1GiB"\nsegments_spare = {SEGMENTS}\n')
        daemon = subprocess.Popen([build / "daemon" / "terraced", "--config", config, "--socket",
                                   socket], stderr=subprocess.DEVNULL)
        try:
            wait_populated(terrace, socket)
            ratios, first = [], 1
            for pair in range(-1, 3 if arguments.short else arguments.pairs):
                sides = {}
                order = ("python", "c++") if pair % 2 else ("c++", "python")
                for side in order:
                    command = ([bench, socket, str(first), str(PROMPTS), str(BLOCKS)]
                               if side == "c++" else
                               [sys.executable, __file__, "--build", build, "--side", socket,
                                str(first)])
                    sides[side] = run_side(command)
                    first += PROMPTS
                if pair >= 0:  # the first pair populates the arena
                    ratios.append([p / c for p, c in zip(sides["python"], sides["c++"])])
                print(f"python {sides['python'][0]:.0f} / {sides['python'][1]:.0f} MiB/s, "
                      f"c++ {sides['c++'][0]:.0f} / {sides['c++'][1]:.0f} MiB/s (store / load)",
                      flush=True)
        finally:
            daemon.terminate()
            daemon.wait()
    store, load = (statistics.median(column) for column in zip(*ratios))
    is_met = min(store, load) >= RATIO_MIN
    print(f"VERDICT: {'OK' if is_met else 'FAILED'}: python at {store:.2f} of the C++ client's "
          f"store rate and {load:.2f} of its load rate (limit {RATIO_MIN})")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
