#!/usr/bin/env python3
"""What loading a part of a prompt, or all of it, or none, takes until its answer, against the
better of loading all of it and computing all of it.

usage: tests/long/load_or_compute.py [--build BUILD] [--repeats 3] [--speeds full,200,50]

The engine is one whose prompts take so many ms a block: it says so, is promised what the daemon
finds worth waiting for, takes of it what the vLLM connector would (arrivals.py), waits as long as
that would, and computes the rest, which is not carried out but added. Each cell is a length of a
prompt and how long computing it takes, in times of what loading it has just taken; of every second
prompt the first half is in DRAM. Shown by the speed of the drive (see eta_error.py): of each cell
the median of answer ÷ min(load, compute), of all the median, the 90th of a hundred and the worst;
and the floor, the same of a plain load in place of the answer, where loading is the better: what
the drive differs from one prompt to the next. At a speed that is held to, no cell's median may be
above 1.1; a drive at its full speed is as steady as it is.
"""
import argparse
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

from eta_error import BLOCK_BYTES, ROOT, Rig

LENGTHS = (8, 32, 96)  # blocks
TIMES = (0.3, 0.7, 0.9, 1.1, 1.5, 4.0)  # computing ÷ loading
BLOCK_TOKENS = 16
RATIO_MAX = 1.1
DRAIN_S = 0.5  # what was left is read behind, and is no part of the next measurement


class Engine:
    """One that takes `block_s` seconds to compute a block."""

    def __init__(self, rig, block_s):
        from terrace.prefill_cost import PrefillCost, StepWork
        from terrace.vllm import arrivals
        self.rig, self.block_s, self.arrivals = rig, block_s, arrivals
        self.cost = PrefillCost()
        for blocks in (1024, 2048, 1024):
            self.cost.learn(StepWork(BLOCK_TOKENS * blocks, 0), blocks * block_s)
        self.hints = rig.terrace.Hints(recompute_ns_per_token=max(
            1, round(block_s / BLOCK_TOKENS * 1e9)))

    def answer_s(self, keys):
        """(until the answer, how many blocks were taken)."""
        began = time.monotonic()
        with self.rig.group.acquire(keys, hints=self.hints, load_timeout_s=60.0) as lease:
            promise = self.arrivals.worth(
                lease.spans, lease.block_count,
                self.arrivals.Prompt(0, len(keys) * BLOCK_TOKENS, BLOCK_TOKENS), self.cost)
            got = promise.block_count
            if got > lease.ready_count:
                try:
                    lease.wait_ready(got, timeout_s=promise.wait_s or 60.0)
                except self.rig.terrace.Busy:
                    got = min(got, lease.ready_count)
            return time.monotonic() - began + (len(keys) - got) * self.block_s, got


def load_s(rig, keys, count):
    """Until the first `count` blocks are there; the engine says nothing."""
    began = time.monotonic()
    with rig.group.acquire(keys[:count], load_timeout_s=60.0) as lease:
        lease.wait_ready(timeout_s=60.0)
        assert lease.block_count == count
    return time.monotonic() - began


def cell(rig, pair, times, has_half):
    """answer ÷ min(load, compute), the share of the prompt that was taken, and a plain load ÷ the
    one before it."""
    length = len(pair[0])
    ready_count = length // 2 if has_half else 0
    for keys in pair:
        if has_half:
            load_s(rig, keys, ready_count)
    time.sleep(DRAIN_S)
    loading_s = load_s(rig, pair[0], length)
    block_s = times * loading_s / (length - ready_count)
    time.sleep(DRAIN_S)
    answer_s, got = Engine(rig, block_s).answer_s(pair[1])
    time.sleep(DRAIN_S)
    again_s = load_s(rig, pair[2], length)
    time.sleep(DRAIN_S)
    return (answer_s / min(loading_s, block_s * (length - ready_count)), got / length,
            again_s / loading_s)


def measure(build, speed, repeats):
    cells = [(length, times, number % 2 == 1) for length in LENGTHS for times in TIMES
             for number in range(repeats)]
    random.Random(1).shuffle(cells)
    with tempfile.TemporaryDirectory(prefix="load-") as directory:
        rig = Rig(build, directory, is_slowed=speed is not None)
        try:
            teachers = [rig.store(length) for length in LENGTHS]
            pairs = [tuple(rig.store(length) for _ in range(3)) for length, _, _ in cells]
            rig.flood()
            rig.drive.set(speed or 0)
            began = time.monotonic()
            for keys in teachers:
                load_s(rig, keys, len(keys))
            rate = sum(LENGTHS) * BLOCK_BYTES / 1e6 / (time.monotonic() - began)
            return rate, [(*one, *cell(rig, pair, one[1], one[2]))
                          for one, pair in zip(cells, pairs)]
        finally:
            rig.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--speeds", default="full,200,50")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    os.environ["TERRACE_LIBRARY"] = str(build / "client/libterrace.so.1")
    sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/python")]
    import vllm_driver  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
    is_met = True
    for text in arguments.speeds.split(","):
        rate, found = measure(build, None if text == "full" else int(text), arguments.repeats)
        print(f"drive {text} (read at {rate:.0f} MB/s): blocks, then answer / min(load, compute) "
              "(share loaded) where computing takes so many times as long")
        print("        " + "".join(f"{times:>14}" for times in TIMES))
        for length in LENGTHS:
            line = ""
            for times in TIMES:
                own = [one for one in found if one[:2] == (length, times)]
                ratio = statistics.median(one[3] for one in own)
                is_met &= text == "full" or ratio <= RATIO_MAX
                line += f"{ratio:8.2f} " \
                        f"({statistics.mean(one[4] for one in own):.2f})"
            print(f"{length:8}{line}")
        ratios = sorted(one[3] for one in found)
        print(f"   of {len(ratios)}: median {statistics.median(ratios):.2f}, 90th "
              f"{ratios[len(ratios) * 9 // 10]:.2f}, worst {ratios[-1]:.2f}, at most {RATIO_MAX}: "
              f"{sum(ratio <= RATIO_MAX for ratio in ratios) / len(ratios):.2f}")
        floors = sorted(one[5] for one in found)
        print(f"   floor: median {statistics.median(floors):.2f}, 90th "
              f"{floors[len(floors) * 9 // 10]:.2f}, worst {floors[-1]:.2f}, at most {RATIO_MAX}: "
              f"{sum(ratio <= RATIO_MAX for ratio in floors) / len(floors):.2f}")
    print("VERDICT " + ("OK" if is_met else "FAILED"))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
