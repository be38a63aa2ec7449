#!/usr/bin/env python3
"""How right the estimate is with which a drive's blocks are promised.

usage: tests/long/eta_error.py [--build BUILD] [--repeats 8] [--speeds full,200,50]

Prompts of several lengths are stored and pushed out of DRAM by others; then each is acquired, and
what the lease's spans say of the last block is compared with when it came. --speeds: of the drive,
in MB/s, held to by slow_drive.py (reads are threads' then).
Shown by speed: the median and the 90th of a hundred of |said − taken| ÷ taken, how many were said
to come sooner than they did, and the floor: the same 90th of who would say of each length the
median of what it takes in this run, the future among it. At a speed that is held to, the 90th may
be at most 0.25; a drive at its full speed is as steady as it is.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import slow_drive

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK_BYTES = 1 << 20
LENGTHS = (4, 16, 64, 128)  # blocks
DRAM_BLOCKS = 256
ERROR_MAX = 0.25


class Rig:
    """A terraced with a small DRAM above a drive."""

    def __init__(self, build, directory, is_slowed):
        import terrace
        self.terrace = terrace
        self.drive = slow_drive.SlowDrive(directory)
        config = pathlib.Path(directory) / "t.toml"
        config.write_text(
            f'[daemon]\ndram_bytes = "{DRAM_BLOCKS}MiB"\nsegment_bytes = "32MiB"\n'
            'eviction = "lru"\n[nvme]\nread_ahead_blocks = 0\n'
            f'io = "{"threads" if is_slowed else "auto"}"\n'
            f'paths = ["{directory}/nvme"]\ncapacity_bytes = "12GiB"\n')
        self.socket = f"{directory}/t.sock"
        self.log = open(f"{directory}/log", "wb")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [build / "daemon/terraced", "--config", config, "--socket", self.socket],
            stdout=self.log, stderr=subprocess.STDOUT, env=self.drive.environment)
        self.client = terrace.Client(self.socket, default_timeout_s=30.0)
        self.client.wait_connected(30.0)
        self.group = self.client.open(terrace.SpaceGroup("eta", [terrace.Space(
            model="eta", revision="1", dtype="int8", layout="flat", layers=1, kv_heads=1,
            head_size=1, block_tokens=16, part_bytes=(BLOCK_BYTES,))]))
        self.payload = bytes(BLOCK_BYTES)
        self.number = 0

    def store(self, count):
        """Stores a prompt that nobody has; its keys."""
        self.number += 1
        keys = self.group.hash([self.number] * 16 * count)
        for first in range(0, count, 16):  # room comes while it is written below
            part = keys[first:first + 16]
            while True:
                parent = keys[first - 1] if first else None
                with self.group.reserve(part, parent=parent, first_position=first) as lease:
                    if len(lease.reserved) == len(part):
                        lease.write([self.payload] * len(part))
                        lease.commit()
                        break
                time.sleep(0.01)
        self.group.wait_persisted(keys, 120.0)
        return keys

    def flood(self):
        """Pushes all that was stored out of DRAM."""
        for _ in range(2):
            self.store(DRAM_BLOCKS // 2)

    def ask(self, keys):
        """(seconds it was said to take, seconds it took); None where all of it was in DRAM."""
        began = time.monotonic()
        with self.group.acquire(keys, load_timeout_s=60.0) as lease:
            coming = [span for span in lease.spans if span.state == "coming"]
            if not coming or lease.block_count < len(keys):
                return None
            said_s = max(span.eta_s for span in coming)
            lease.wait_ready(timeout_s=60.0)
            return said_s, time.monotonic() - began

    def end(self):
        self.client.close()
        self.process.kill()
        self.process.wait()
        self.log.close()


def measure(build, speed, repeats):
    with tempfile.TemporaryDirectory(prefix="eta-") as directory:
        rig = Rig(build, directory, is_slowed=speed is not None)
        try:
            prompts = [rig.store(count) for _ in range(repeats) for count in LENGTHS]
            rig.flood()
            rig.drive.set(speed or 0)
            found = []
            for keys in prompts:
                one = rig.ask(keys)
                if one is not None:
                    found.append((len(keys), *one))
        finally:
            rig.end()
    return found[len(LENGTHS):]  # the first ones teach it how fast the drive is


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--speeds", default="full,200,50")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    os.environ["TERRACE_LIBRARY"] = str(build / "client/libterrace.so.1")
    sys.path.insert(0, str(ROOT / "client/python"))
    is_met = True
    print("drive     asked   error p50   p90   floor p90   too early   MB/s")
    for text in arguments.speeds.split(","):
        speed = None if text == "full" else int(text)
        found = measure(build, speed, arguments.repeats)
        if not found:
            sys.exit(f"{text:8}  nothing came from the drive")
        errors = sorted(abs(said - took) / took for _, said, took in found)
        usual = {length: statistics.median(t for n, _, t in found if n == length)
                 for length in {n for n, _, _ in found}}
        floor = sorted(abs(usual[n] - t) / t for n, _, t in found)
        early = sum(said < took for _, said, took in found) / len(found)
        is_met &= speed is None or errors[len(errors) * 9 // 10] <= ERROR_MAX
        rate = sum(n for n, _, _ in found) * BLOCK_BYTES / 1e6 / sum(t for _, _, t in found)
        print(f"{text:8}  {len(found):5}   {errors[len(errors) // 2]:9.2f}   "
              f"{errors[len(errors) * 9 // 10]:.2f}   {floor[len(floor) * 9 // 10]:9.2f}   "
              f"{early:9.2f}   {rate:.0f}")
        for length in LENGTHS:
            of_length = [(s, t) for n, s, t in found if n == length]
            if of_length:
                wrong = sorted(abs(s - t) / t for s, t in of_length)
                print(f"   {length:4} blocks: error p90 {wrong[len(wrong) * 9 // 10]:.2f}; said / "
                      "taken, ms: " + ", ".join(f"{s * 1e3:.0f} / {t * 1e3:.0f}"
                                                for s, t in of_length[:6]))
    print("VERDICT " + ("OK" if is_met else "FAILED"))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
