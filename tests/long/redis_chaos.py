#!/usr/bin/env python3
# PROMISE: T40 the same, 100,000 times
"""A network that does anything to what a Redis server answers costs misses, never a wrong byte.

100,000 stores and fetches through a proxy that delays by 50 to 5,000 ms, resets, cuts, shortens,
garbles, swaps and swallows replies, in runs with a seed each; after each run the tier works again.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST = "RedisChaos.NeverAWrongByteWhateverTheNetworkDoes"
RUNS = 4
LINE = re.compile(r"(\d+) operations, (\d+) faults in (\d+) replies: (\d+) hits, (\d+) misses, "
                  r"(\d+) failed, (\d+) stored, (\d+) not, (\d+) wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    arguments = parser.parse_args()
    sums = [0] * 9
    for seed in range(arguments.seed, arguments.seed + RUNS):
        environment = dict(os.environ, TERRACE_SEED=str(seed), TERRACE_DELAY_MS_MAX="5000",
                           TERRACE_OPERATIONS=str(arguments.operations // RUNS))
        run = subprocess.run([str(arguments.build / "tests/integration_redis_test"),
                              f"--gtest_filter={TEST}"], env=environment, text=True, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        found = LINE.search(run.stdout)
        if run.returncode != 0 or not found:
            sys.exit(f"redis_chaos: FAILED with seed {seed}:\n{run.stdout[-3000:]}")
        print(f"seed {seed}: {found.group(0)}", flush=True)
        sums = [total + int(one) for total, one in zip(sums, found.groups())]
    print(f"redis_chaos: OK: {sums[0]} operations, {sums[1]} faults in {sums[2]} replies, "
          f"{sums[3]} hits, {sums[8]} wrong bytes")


if __name__ == "__main__":
    main()
