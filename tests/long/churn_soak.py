#!/usr/bin/env python3
# PROMISE: T02 every answer to 16 clients, over tiers that are all too small
# PROMISE: T45 mixed load over more than fits
"""Minutes of mixed load: no answer is one that cannot have been, memory and descriptors stay where
they are, and the ledger is exact.

Sixteen clients over more prompts than DRAM, drive and Redis server hold together store, load, read
from the middle and erase small blocks; one of them is killed and replaced every other second. Each
writes down what it was answered, and after each round of so many operations all of that is judged
(tests/chaos/history_check.h), and the next round begins with an empty cache: none of its reads may
find what was there before. DRAM alone is where most operations fit in a second; of such a round,
whose daemon never loses what it is not told to, more is demanded (--tiers settled). The daemon's
private memory may not grow after it has warmed up, nor its descriptors, and at the end every slot
is accounted for.
"""
import signal
import sys
import time

import rig

CLIENTS = 16
PROMPTS = 400
BLOCKS = 12
SMALL_BYTES = 96
REPLACE_S = 2
SAMPLE_S = 0.5
WARM_SHARE = 0.3
GROWTH_BYTES_PER_HOUR_MAX = 1 << 20
DRIFT_MAX = 1.10
HOUR_S = 3600
REDIS_FDS = 8  # which the tier opens when it needs them
# What lies below DRAM: MiB of a drive and of a Redis server, and of how many operations one erases.
TIERS = {"settled": (0, 0, 50), "all": (24, 8, 1000)}


def slope(samples):
    """Least squares over (seconds, value)."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread


class Soak:
    """Rounds of load on one daemon, and what they add up to."""

    def __init__(self, stage, kind):
        self.stage = stage
        self.kind = kind
        self.began = time.monotonic()
        self.operations = self.blocks = self.erasures = 0
        self.samples = []  # (seconds, private bytes, descriptors)
        self.p99s_us = []

    def start(self):
        return self.stage.client("worker", prompts=PROMPTS, blocks=BLOCKS, seconds=10 * HOUR_S,
                                 erase_nth=TIERS[self.kind][2], peek_nth=8,
                                 seed=self.stage.random.getrandbits(40))

    def round(self, seconds, operations):
        stage = self.stage
        running = [self.start() for _ in range(CLIENTS)]
        everyone = list(running)
        for client in running:
            client.expect("ready")
        began = replaced = time.monotonic()
        while (now := time.monotonic()) - began < seconds:
            stage.require_daemon()
            if now - replaced > REPLACE_S:
                replaced = now
                victim = running.pop(0)
                victim.signal(signal.SIGKILL)
                victim.close()
                running.append(self.start())
                everyone.append(running[-1])
                running[-1].expect("ready")
            self.samples.append((now - self.began, stage.daemon_memory()[0],
                                 stage.daemon_fd_count()))
            if sum(sum(c.counters()["statuses"]) for c in everyone) >= operations:
                break
            time.sleep(SAMPLE_S)
        statuses = [client.finish() for client in running]
        stage.check(statuses == [0] * CLIENTS, f"clients ended with {statuses}")
        stage.check_clients(everyone)
        total = stage.check_histories(everyone, self.kind == "settled")
        self.operations += total["operations"]
        self.blocks += total["blocks_read"]
        self.erasures += total["erasures"]
        self.p99s_us.append(total["read_p99_us"])
        stage.forget_clients(everyone)
        stage.console_client.ask("reset")

    def check_growth(self, seconds):
        """Of more than a minute; less is too little to say by how much it grows in an hour."""
        warm = [s for s in self.samples if s[0] > WARM_SHARE * seconds]
        growth = slope([(s[0], s[1]) for s in warm]) * HOUR_S
        self.stage.check(seconds < HOUR_S or growth <= GROWTH_BYTES_PER_HOUR_MAX,
                         f"private memory {warm[0][1] / rig.MIB:.1f} to "
                         f"{warm[-1][1] / rig.MIB:.1f} MiB, {growth / 1024:+.0f} KiB an hour "
                         f"(limit {GROWTH_BYTES_PER_HOUR_MAX // 1024})")
        quarter = len(self.p99s_us) // 4
        if quarter == 0:
            return
        early, late = (sorted(part)[len(part) // 2] for part in
                       (self.p99s_us[quarter:2 * quarter], self.p99s_us[-quarter:]))
        self.stage.check(seconds < HOUR_S or late <= DRIFT_MAX * early,
                         f"p99 of an Acquire {early} us in the second quarter, {late} us in the "
                         f"last (limit {DRIFT_MAX:g} times)")


def soak(arguments, kind, seconds):
    nvme_mib, redis_mib, _ = TIERS[kind]
    stage = rig.Rig(arguments, dram_mib=8, segment_mib=2, nvme_mib=nvme_mib, slab_mib=8,
                    redis_mib=redis_mib, histories=True, small_bytes=SMALL_BYTES)
    with stage:
        stage.console()
        fds_before = stage.daemon_fd_count_at_rest()
        load = Soak(stage, kind)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stage.failures:
            load.round(end - time.monotonic(), arguments.round_operations)
        load.check_growth(seconds)
        fds_max = fds_before + (REDIS_FDS if redis_mib else 0)
        fell = rig.wait_until(lambda: stage.daemon_fd_count() <= fds_max, 5)
        fds = [s[2] for s in load.samples]
        stage.check(fell is not None, f"descriptors: {fds_before} before, {min(fds)} to {max(fds)} "
                                      f"under load, {stage.daemon_fd_count()} after")
        stage.check_nothing_left()
        stage.summary = (f"{seconds} s over {kind} tiers, {load.operations} operations of "
                         f"{CLIENTS} clients, {load.blocks} blocks read, {load.erasures} erasures: "
                         "none that cannot have been, ledger exact")
    return stage.verdict()


def main():
    arguments = rig.parse_arguments(__doc__, 11 * HOUR_S, seconds=(300, 5),
                                    all_tiers_seconds=(300, 3),
                                    round_operations=(2_000_000, 12_000))
    return max(soak(arguments, "settled", arguments.seconds),
               soak(arguments, "all", arguments.all_tiers_seconds))


if __name__ == "__main__":
    sys.exit(main())
