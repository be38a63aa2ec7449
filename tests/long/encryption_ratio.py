#!/usr/bin/env python3
"""How fast an NVMe tier stores and loads blocks that it encrypts, against the same tier without.

disk_bench moves blocks of 1 MiB to a drive and back, plain and encrypted in turn, pinned to the
same processors; the medians of both and their ratio are printed. Both directories lie on one file
system.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RATIO_MIN = 0.85


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--directory", help="on the drive; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--file-mib", type=int, default=512)
    parser.add_argument("--total-mib", type=int, default=1024)
    parser.add_argument("--block-kib", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--processors", default="0-1", help="as taskset names them")
    arguments = parser.parse_args()
    bench = arguments.build / "tests" / "bench" / "disk_bench"
    with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
        def measure(kind, op):
            directory = pathlib.Path(root) / kind
            directory.mkdir(exist_ok=True)
            done = subprocess.run(
                ["taskset", "-c", arguments.processors, bench, "--tier", "--directory", directory,
                 "--op", op, "--block-kib", str(arguments.block_kib), "--depth",
                 str(arguments.depth), "--file-mib", str(arguments.file_mib), "--total-mib",
                 str(arguments.total_mib), *(["--encrypted"] if kind == "encrypted" else [])],
                check=True, capture_output=True, text=True, env={**os.environ})
            return json.loads(done.stdout)

        figures = {}
        for kind in ("plain", "encrypted"):
            measure(kind, "write")  # makes the slab
        for _ in range(arguments.rounds):
            for op in ("write", "read"):
                for kind in ("plain", "encrypted"):
                    figures.setdefault((kind, op), []).append(measure(kind, op))
    is_good = True
    for op, name in (("write", "store"), ("read", "load")):
        speed = {kind: statistics.median(one["mib_per_second"] for one in figures[kind, op])
                 for kind in ("plain", "encrypted")}
        cpu = {kind: statistics.median(one["cpu_us_per_mib"] for one in figures[kind, op])
               for kind in ("plain", "encrypted")}
        ratio = speed["encrypted"] / speed["plain"]
        pairs = sorted(e["mib_per_second"] / p["mib_per_second"] for e, p in
                       zip(figures["encrypted", op], figures["plain", op]))
        is_good &= ratio >= RATIO_MIN
        print(f"{name}: plain {speed['plain']:.0f} MiB/s, encrypted "
              f"{speed['encrypted']:.0f} MiB/s, ratio {ratio:.3f} (of pairs: median "
              f"{statistics.median(pairs):.3f}, {pairs[0]:.3f} to {pairs[-1]:.3f}); "
              f"processor {cpu['plain']:.0f} and {cpu['encrypted']:.0f} us a MiB")
    print(f"{'passed' if is_good else 'FAILED'}: {RATIO_MIN} of plain is asked")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
