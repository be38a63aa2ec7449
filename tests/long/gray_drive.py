#!/usr/bin/env python3
# PROMISE: T14 a drive that answers errors, beside DRAM
# PROMISE: T15 a drive that is slow, hangs, or stumbles
"""A drive that is slow rather than gone: what it costs those who need it, and those who do not.

usage: tests/long/gray_drive.py [--build BUILD] [--seconds 5] [--slow-mb-s 15] [--short]

One program loads what is in DRAM, two load prompts that only a drive has: one whose prompts take
40 ms to compute, and one whose take 4 s, which are worth a slow drive. The drive becomes a hundred
times as slow (all reads and writes of it share so many MB/s), then hangs (no request ends), then
each hundredth request of it takes 5 s; it is itself again after each; all in turns. Shown: of all
that asked, how many were promised what came too late (a silent drive is tried now and then), p99 of
the first program's loads beside those before, and how soon the drive is used again. Bars: 5 of 100;
1.2; 10 s. Of a drive that stumbles nobody can know which read will: there the bar is that whoever
waits is answered 10 ms after its time, 99 in 100.

Then it answers EIO, to all requests or to each hundredth. Bars: it is off 1 s after all began to
fail, DRAM's loads are 0.95 of those before, medians of turns, and it is on again within 30 s. Exit
status 1 where one is not held.
"""
import argparse
import ctypes
import errno
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

import slow_drive

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK_BYTES = 256 << 10
BLOCKS = 16
PROMPTS = 60
COMPUTE_S = (0.040, 4.0)  # a whole prompt, of the one and of the other
DRAM_MIB = 64
PR_SET_PDEATHSIG = 1


def connect(socket):
    """A client, and its group of 256 KiB a block."""
    import terrace  # pylint: disable=import-outside-toplevel
    client = terrace.Client(socket, default_timeout_s=30.0)
    client.wait_connected(30.0)
    group = client.open(terrace.SpaceGroup("gray", [terrace.Space(
        model="gray", revision="1", dtype="int8", layout="flat", layers=1, kv_heads=1,
        head_size=1, block_tokens=16, part_bytes=(BLOCK_BYTES,))]))
    return client, group


class Rig:
    """A terraced with a small DRAM above that drive."""

    def __init__(self, build, directory):
        import terrace  # pylint: disable=import-outside-toplevel
        self.terrace = terrace
        self.drive = slow_drive.SlowDrive(directory)
        self.socket = f"{directory}/t.sock"
        config = pathlib.Path(directory) / "t.toml"
        config.write_text(
            f'[daemon]\ndram_bytes = "{DRAM_MIB}MiB"\nsegment_bytes = "4MiB"\nsegments_spare = 4\n'
            f'[nvme]\nio = "threads"\npaths = ["{directory}/nvme"]\ncapacity_bytes = "1GiB"\n'
            'slab_bytes = "64MiB"\nscrub_bytes_per_second = 0\n')
        self.log = pathlib.Path(directory) / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                [build / "daemon/terraced", "--config", config, "--socket", self.socket],
                stdout=log, stderr=subprocess.STDOUT, env=self.drive.environment,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9))

    def end(self):
        self.process.kill()
        self.process.wait()


class Program(threading.Thread):
    """One that works until it is told to stop; what it saw, by time."""

    def __init__(self, rig):
        super().__init__(daemon=True)
        self.rig = rig
        self.client, self.group = connect(rig.socket)
        self.seen = []
        self.stops = threading.Event()
        self.failure = None

    def run(self):
        try:
            while not self.stops.is_set():
                self.step()
        except Exception as failure:  # pylint: disable=broad-exception-caught
            self.failure = failure

    def step(self):
        raise NotImplementedError

    def since(self, began, ended=float("inf")):
        return [one for one in list(self.seen) if began <= one[0] < ended]


class InMemory(Program):
    """Loads a prompt that stays in DRAM; (when, seconds). In a process of its own: in this one it
    would wait for the interpreter's lock, up to 5 ms, whenever the others have it."""

    def __init__(self, rig):
        super().__init__(rig)
        start = multiprocessing.get_context("spawn")
        self.loads, into = start.Pipe(duplex=False)
        self.process = start.Process(target=load_from_memory, args=(rig.socket, into), daemon=True)
        self.process.start()
        into.close()

    def step(self):
        if self.loads.poll(1.0):
            self.seen.append(self.loads.recv())

    def since(self, began, ended=float("inf")):
        assert self.process.is_alive(), f"the one in memory ended: {self.process.exitcode}"
        return super().since(began, ended)


def load_from_memory(socket, seen):
    """As a process: sends (when, seconds) of each load of one pinned prompt, until it is killed."""
    sys.path.insert(0, str(ROOT / "client/python"))
    client, group = connect(socket)
    keys = group.hash([7] * 16 * BLOCKS)
    with group.reserve(keys) as lease:
        lease.write([bytes(BLOCK_BYTES)] * BLOCKS)
        assert lease.commit() == BLOCKS
    group.pin(keys)
    into = bytearray(BLOCK_BYTES)
    while client is not None:
        began = time.monotonic()
        with group.acquire(keys) as lease:
            assert lease.block_count == BLOCKS
            lease.copy_into(into, block_count=1)
        seen.send((began, time.monotonic() - began))
        time.sleep(0.001)


class FromTheDrive(Program):
    """Asks for prompts of the drive, and computes what is not promised;
    (when, blocks promised, whether they came in time, seconds, whether the drive had some)."""

    def __init__(self, rig, compute_s, pause_s):
        super().__init__(rig)
        self.compute_s, self.pause_s = compute_s, pause_s
        self.hints = rig.terrace.Hints(recompute_ns_per_token=int(compute_s * 1e9 / (16 * BLOCKS)))
        self.random = random.Random(1)
        payload = bytes(BLOCK_BYTES)
        self.prompts = []
        for number in range(PROMPTS):
            keys = self.group.hash([1 + number, int(compute_s * 1000)] * 8 * BLOCKS)
            with self.group.reserve(keys) as lease:
                lease.write([payload] * BLOCKS)
                lease.commit()
            self.group.wait_persisted(keys, 60.0)
            self.prompts.append(keys)

    def step(self):
        keys = self.random.choice(self.prompts)
        began = time.monotonic()
        with self.group.acquire(keys, load_timeout_s=self.compute_s, hints=self.hints) as lease:
            promised = lease.block_count
            is_below = any(span.tier == "nvme" for span in lease.spans)
            came = True
            if promised:
                try:
                    left_s = self.compute_s - (time.monotonic() - began)
                    lease.wait_ready(timeout_s=max(0.001, left_s))
                except self.rig.terrace.TerraceError:
                    came = lease.ready_count >= promised
        self.seen.append((began, promised, came, time.monotonic() - began, is_below))
        time.sleep(self.pause_s)

    def under(self, began, ended):
        """What was asked in that time, and what was waiting when it began."""
        return [one for one in list(self.seen) if began < one[0] + one[3] and one[0] < ended]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def healed_after(asks, began):
    """Seconds until blocks came from the drive in time again."""
    for at, promised, came, took, is_below in asks.seen:
        if at >= began and promised == BLOCKS and came and is_below:
            return at + took - began
    return None


def wait_until_healed(asking, ended):
    """Until each has had blocks of the drive in time again, or ten seconds."""
    while time.monotonic() - ended < 10.0 and any(healed_after(a, ended) is None for a in asking):
        time.sleep(0.05)


def trouble(rig, name, speed, seconds, turns, loads, asking, stumble_nth=0):
    """One trouble, begun and ended in turns; the sentences of what is not held."""
    spans = []  # (calm from, trouble from, until)
    for _ in range(turns):
        calm_began = time.monotonic()
        time.sleep(seconds)
        began = time.monotonic()
        rig.drive.set(speed, stumble_nth)
        time.sleep(seconds)
        spans.append((calm_began, began, time.monotonic()))
        rig.drive.set(0)
        wait_until_healed(asking, spans[-1][2])
    p99s = [[percentile([took for _, took in loads.since(*span)], 0.99) * 1e6 for span in some]
            for some in ([s[:2] for s in spans], [s[1:] for s in spans])]
    ratio = percentile([bad / calm for calm, bad in zip(*p99s)], 0.5)
    print(f"{name}: DRAM p99 {percentile(p99s[0], 0.5):.0f} -> {percentile(p99s[1], 0.5):.0f} us "
          f"({ratio:.2f}, median of {turns} pairs)")
    wrong = []
    if ratio > 1.2:
        wrong.append(f"{name}: DRAM's p99 is {ratio:.2f} of before, the bar is 1.2")
    for asks in asking:
        wrong += judge(name, asks, spans, stumble_nth)
    if speed > 0 and not any(one[1] == BLOCKS and one[2] and one[4] for span in spans
                             for one in asking[-1].under(span[1], span[2])):
        wrong.append(f"{name}: what is worth a slow drive was not loaded from it")
    return wrong


def judge(name, asks, spans, stumble_nth):
    """What one that asks for the drive's blocks has seen of a trouble, and what of it is wrong."""
    seen = [one for _, began, ended in spans for one in asks.under(began, ended)]
    calm = [one for from_s, until, _ in spans for one in asks.since(from_s, until) if one[4]]
    late = [one for one in seen if one[1] > 0 and one[4] and not one[2]]
    healed = [healed_after(asks, ended) for _, _, ended in spans]
    healed_s = None if None in healed else max(healed)
    print(f"  {asks.compute_s * 1000:.0f} ms to compute: {sum(o[2] for o in calm)} of "
          f"{len(calm)} promises kept before; then {len(seen)} asked, "
          f"{sum(o[1] > 0 and o[4] for o in seen)} were promised blocks of the drive, "
          f"{len(late)} too late; used again after "
          f"{'never' if healed_s is None else f'{healed_s:.2f} s'} at most")
    wrong = []
    over_ms = percentile([o[3] - asks.compute_s for o in seen if not o[2]], 0.99) * 1000
    if stumble_nth and over_ms > 10:
        wrong.append(f"{name}: who waited was answered {over_ms:.1f} ms late, the bar is 10")
    if len(late) > max(2 * len(spans), 0.05 * len(seen)) and not stumble_nth:
        wrong.append(f"{name}: {len(late)} of {len(seen)} were promised and came too late")
    if healed_s is None or healed_s > 10.0:
        wrong.append(f"{name}: the drive is used again after {healed_s} s, the bar is 10")
    return wrong


def wait_for_health(rig, client, is_healthy, limit_s):
    """Seconds until the drive is on, or off; None if it was not within the limit."""
    began = time.monotonic()
    while client.stats()["lower_tiers"][0]["is_healthy"] != is_healthy:
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.01)
    return time.monotonic() - began


def failing(rig, nth, turns, seconds, loads):
    """The drive fails and is well again, in turns; the sentences of what is not held."""
    name = "errors, all" if nth == 1 else f"errors, each {nth}th"
    client, _ = connect(rig.socket)
    wrong, ratios, off_s, on_s = [], [], [], []
    for _ in range(turns):
        calm_began = time.monotonic()
        time.sleep(seconds)
        began = time.monotonic()
        rig.drive.fail(errno.EIO, nth)
        if nth == 1:
            off_s.append(wait_for_health(rig, client, False, 30))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        ended = time.monotonic()
        rig.drive.fail(0, 0)
        on_s.append(wait_for_health(rig, client, True, 60))
        calm, bad = ([took for _, took in loads.since(*span)]
                     for span in ((calm_began, began), (began, ended)))
        ratios.append(percentile(calm, 0.5) / percentile(bad, 0.5))
    ratio = percentile(ratios, 0.5)
    latest = {what: max(60.0 if s is None else s for s in some) if some else 0.0
              for what, some in (("off", off_s), ("on", on_s))}
    print(f"{name}: off after {latest['off']:.2f} s, on again after {latest['on']:.2f} s, DRAM's "
          f"loads {ratio:.2f} of those before")
    for holds, sentence in ((latest["off"] <= 1.0, "it is off too late"),
                            (latest["on"] <= 30.0, "it is on again too late"),
                            (ratio >= 0.95, f"DRAM's loads are {ratio:.2f} of those before")):
        if not holds:
            wrong.append(f"{name}: {sentence}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--slow-mb-s", type=int, default=15)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    seconds = 3.0 if arguments.short else arguments.seconds
    build = arguments.build.resolve()
    os.environ["TERRACE_LIBRARY"] = str(build / "client/libterrace.so.1")
    sys.path.insert(0, str(ROOT / "client/python"))
    wrong = []
    with tempfile.TemporaryDirectory(prefix="gray-") as directory:
        rig = Rig(build, directory)
        try:
            loads = InMemory(rig)
            asking = [FromTheDrive(rig, COMPUTE_S[0], 0.02), FromTheDrive(rig, COMPUTE_S[1], 0.2)]
            for program in (loads, *asking):
                program.start()
            time.sleep(2)
            turns = 1 if arguments.short else 7
            wrong += trouble(rig, "slow", arguments.slow_mb_s, seconds, turns, loads, asking)
            wrong += trouble(rig, "hangs", -1, seconds, turns, loads, asking)
            wrong += trouble(rig, "stumbles", 0, seconds, turns, loads, asking, stumble_nth=100)
            for nth in (1, 100):
                wrong += failing(rig, nth, turns, min(2.0, seconds), loads)
            for program in (loads, *asking):
                program.stops.set()
                program.join(60)
                if program.failure is not None:
                    wrong.append(f"{type(program).__name__}: {program.failure!r}")
            loads.process.kill()
        finally:
            rig.drive.set(0)
            rig.end()
    print("VERDICT " + ("OK" if not wrong else "FAILED: " + "; ".join(wrong)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
