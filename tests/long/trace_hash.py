#!/usr/bin/env python3
# PROMISE: T01 equal traces under two compilers and a sanitizer
"""One seed, one trace: builds the simulation with g++, clang++ and AddressSanitizer and compares
the hash of everything that happened in twenty seeds."""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILDS = {
    "g++": [],
    "clang++": ["-DCMAKE_CXX_COMPILER=clang++-14", "-DCMAKE_C_COMPILER=clang-14"],
    "asan": ["-DTERRACE_SANITIZE=address", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
             "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1"],
}


def trace_hash(name, options):
    build = ROOT / "build" / "trace_hash" / name
    for command in (["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options],
                    ["cmake", "--build", str(build), "--target", "sim_sim_test"]):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"trace_hash: {name} does not build:\n{done.stdout[-3000:]}")
    run = subprocess.run([str(build / "tests" / "sim_sim_test"),
                          "--gtest_filter=Simulation.TraceHashOfTwentySeeds"], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = re.search(r"trace hash ([0-9a-f]{16})", run.stdout)
    if run.returncode != 0 or not found:
        sys.exit(f"trace_hash: {name} failed:\n{run.stdout[-3000:]}")
    return found.group(1)


def main():
    if not shutil.which("clang++-14"):
        print("trace_hash: SKIPPED: clang++-14 is missing; tools/setup installs it")
        sys.exit(77)
    hashes = {name: trace_hash(name, options) for name, options in BUILDS.items()}
    for name, value in hashes.items():
        print(f"{name:8} {value}")
    if len(set(hashes.values())) != 1:
        sys.exit("trace_hash: FAILED: the traces differ")
    print("trace_hash: one seed gives one trace under g++, clang++ and ASan")


if __name__ == "__main__":
    main()
