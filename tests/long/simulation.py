#!/usr/bin/env python3
# PROMISE: T01 a night's seeds
"""A night of the simulation: many long seeds, shared out over all processors.

usage: tests/long/simulation.py [--seeds N] [--steps N] [-j N] [--build DIR] [--log FILE] [TEST...]

Runs N seeds (default 400; a night's are 10000) of N steps each (default 50000) in every world of
sim_sim_test, or in those that TEST names, in slices. What FILE of --log holds is not
run again, so that a night may be stopped and gone on with: it counts only for the very program
that ran it. A slice that fails is printed whole, with the command that runs its seed alone.

Exit status 1: a seed failed; 77: sim_sim_test is not built.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLICE_SEEDS_MIN, SLICE_STEPS_MIN = 50, 2_000_000  # a slice is also judged by what it has met
EXIT_SKIPPED = 77
WORLDS = ("ServesNoWrongByteAndLeaksNoSlot", "WhatOutlivesTheDaemonIsWhatItPromised",
          "WhatOutlivesTheDaemonEncryptedIsWhatItPromised", "DramOutlivesTheDaemonAndNeverLies",
          "ADevicesBlocksAreRightWhateverItsClientsDo", "HostsThatShareAServerNeverLie",
          "DrivesComeDownToWhatTheyMayHoldWhateverEndsTheDaemon")


def run(program, world, first, count, steps):
    """One slice; its seconds, and what it printed if it failed."""
    began = time.monotonic()
    done = subprocess.run(
        [program, f"--gtest_filter=Simulation.{world}"], text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        env=os.environ | {"TERRACE_SIM_FIRST_SEED": str(first), "TERRACE_SIM_SEEDS": str(count),
                          "TERRACE_SIM_STEPS": str(steps)})
    is_good = done.returncode == 0 and re.search(r"^\[  PASSED  \] 1 test", done.stdout, re.M)
    return time.monotonic() - began, "" if is_good else done.stdout


def read_log(path, program_hash):
    """(world, first seed, seeds, steps) of the slices that this very program has done."""
    done = set()
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) == 6 and words[0] == program_hash:
                done.add((words[1], *map(int, words[2:5])))
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("worlds", nargs="*", metavar="TEST", default=WORLDS)
    arguments = parser.parse_args()
    unknown = set(arguments.worlds) - set(WORLDS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(WORLDS)}")
    program = arguments.build.resolve() / "tests/sim_sim_test"
    if not program.exists():
        print(f"simulation: SKIPPED: there is no {program}; ninja -C build/release sim_sim_test")
        return EXIT_SKIPPED
    program_hash = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    known = read_log(arguments.log, program_hash)
    size = max(SLICE_SEEDS_MIN, SLICE_STEPS_MIN // arguments.steps)
    slices = [(world, first, min(size, arguments.seeds + 1 - first), arguments.steps)
              for first in range(1, arguments.seeds + 1, size) for world in arguments.worlds]
    seeds_of, seconds_of = collections.Counter(), collections.Counter()
    for world, _, count, _ in set(slices) & known:
        seeds_of[world] += count
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {pool.submit(run, program, *one): one for one in slices if one not in known}
        for future in concurrent.futures.as_completed(futures):
            world, first, count, steps = futures[future]
            seconds, wrong = future.result()
            seconds_of[world] += seconds
            if wrong:
                failures += 1
                print(f"{world}, {count} seeds from {first}:\n{wrong[-6000:]}", flush=True)
                continue
            seeds_of[world] += count
            if arguments.log is not None:
                with arguments.log.open("a") as log:
                    log.write(f"{program_hash} {world} {first} {count} {steps} {seconds:.1f}\n")
    for world in arguments.worlds:
        print(f"{world:55} {seeds_of[world]:6} seeds of {arguments.steps} steps held"
              f" ({seconds_of[world]:.0f} s)")
    print(f"simulation: {'FAILED' if failures else 'OK'}: {sum(seeds_of.values())} worlds,"
          f" {sum(seeds_of.values()) * arguments.steps:,} steps, {failures} slices failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
