#!/usr/bin/env python3
# PROMISE: T02 every answer to 16 clients, over tiers that are all too small
# PROMISE: T45 mixed load over more than fits
"""Hours of mixed load: no answer is one that cannot have been, memory, descriptors and the time
that a hit takes stay where they are, and the ledger is exact.

Sixteen clients over more prompts than DRAM, drive and Redis server hold together store, load, read
from the middle and erase small blocks; one of them is killed and replaced every other second. Each
writes down what it was answered, and after each round all of that is judged
(tests/chaos/history_check.h), and the next round begins with an empty cache: none of its reads may
find what was there before. DRAM alone is where most operations fit in a second; of such a round,
whose daemon never loses what it is not told to, more is demanded (Rules::is_settled).

What is counted is blocks: one that was read and judged is an operation, and one that was stored;
a miss is none, nor is a call that was refused. A soak ends when its time is over and, with
--operations, as many of them were made over all tiers.

The daemon's private memory beside its catalog's may not grow after it has warmed up (that has a
bound of its own, which it may take hours to reach, and stays below it); at rest between rounds it
has the same descriptors each time, and at the end every slot is accounted for. Between rounds, too,
a daemon is started that is configured alike and has nothing behind it but as much as fits, and one
caller asks both for the same leased blocks, by turns of a few calls (tests/chaos/probe.cc): old p99
over fresh p99 may be no greater in the last third of the run than in the first. What else the
machine does meets both, so it is the age of the daemon that is measured.
"""
import contextlib
import os
import signal
import statistics
import sys
import time

import rig

CLIENTS = 16
# Their bytes are four times what all tiers have. Few prompts are asked for most of the time, as of
# engines: else hardly an operation is more than a miss.
PROMPTS = 400
BLOCKS = 64
SKEW = 2
SMALL_BYTES = 96
DRAM_MIB = 32
REPLACE_S = 2
SAMPLE_S = 0.5
HOUR_S = 3600
# Private memory: of a run that is shorter than an hour only what is far too much can be told.
WARM_SHARE = 0.1
GROWTH_BYTES_PER_HOUR_MAX = rig.MIB
SHORT_GROWTH_BYTES_PER_HOUR_MAX = 60 * rig.MIB
SHORT_S_MIN = 60
# The probe: a p99 is one of 500 calls, a ratio the median of so many pairs of them.
PROBE_BLOCKS = 16
PROBE_FILL = 600  # prompts of so many: more than fits
PROBE_ROUNDS = (100, 5)  # with --short
PROBE_TURNS = 25  # of 20 calls to each
PROBE_PRIORITY = 1
PROBE_S = 60
PROBE_SETTLE_S = 1.0  # until the fresh daemon has sent down what it was filled with
PROBE_SCRUB_S = 60  # until it has verified that once, as each start does
DRIFT_MAX = 1.10
RATIOS_MIN = 9  # that make three thirds
# Descriptors: what memory grows by, slabs and connections to Redis are opened when first needed.
# The catalog's files come and go; it has at most 64 of them open.
LATE_FDS_MAX = 32
ROUNDS_MIN = 2  # in which one a session that stays is more than that
REST_S = 5
CATALOG_BYTES = 8 * rig.MIB
# What lies below DRAM: MiB of a drive and of a Redis server, and of how many operations one erases.
TIERS = {"settled": (0, 0, 50), "all": (48, 16, 1000)}


def slope(samples):
    """Least squares over (seconds, value)."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread


@contextlib.contextmanager
def before_all_others(*pids):
    """What else the machine has to do waits for these processes, where this one may say so."""
    try:
        schedule(pids, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, PROBE_PRIORITY)
    except PermissionError:
        print("      not root: the comparison shares the processors with all others")
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            schedule(pids, os.SCHED_OTHER, 0)


def schedule(pids, policy, priority):
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):  # it may have ended, or a thread of it
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def new_stage(arguments, kind):
    nvme_mib, redis_mib, _ = TIERS[kind]
    return rig.Rig(arguments, dram_mib=DRAM_MIB, segment_mib=2, nvme_mib=nvme_mib, slab_mib=8,
                   nvme_keys={"catalog_memory_bytes": CATALOG_BYTES}, redis_mib=redis_mib,
                   histories=True, small_bytes=SMALL_BYTES)


class Soak:
    """Rounds of load on one daemon, and what they add up to."""

    def __init__(self, stage, kind):
        self.stage = stage
        self.kind = kind
        self.began = time.monotonic()
        self.operations = self.calls = self.erasures = 0
        self.samples = []  # (seconds, private bytes beside the catalog's), under load
        self.catalog_bytes_max = 0
        self.fds_before = stage.daemon_fd_count_at_rest()
        self.fds = []  # at rest, behind each round
        self.ratios = []  # old p99 over fresh p99, behind each round

    def seconds(self):
        return time.monotonic() - self.began

    def start(self):
        return self.stage.client("worker", prompts=PROMPTS, blocks=BLOCKS, skew=SKEW, peek_nth=8,
                                 erase_nth=TIERS[self.kind][2], seconds=100 * HOUR_S,
                                 seed=self.stage.random.getrandbits(40))

    def round(self, seconds):
        stage = self.stage
        running = [self.start() for _ in range(CLIENTS)]
        everyone = list(running)
        for client in running:
            client.expect("ready")
        began = replaced = time.monotonic()
        while (now := time.monotonic()) - began < seconds:
            if now - replaced > REPLACE_S:
                replaced = now
                victim = running.pop(0)
                victim.signal(signal.SIGKILL)
                victim.close()
                running.append(self.start())
                everyone.append(running[-1])
                running[-1].expect("ready")
            self.sample()
            time.sleep(SAMPLE_S)
        statuses = [client.finish() for client in running]
        stage.check(statuses == [0] * CLIENTS, f"clients ended with {statuses}")
        stored = stage.check_clients(everyone)["blocks_committed"]
        total = stage.check_histories(everyone, self.kind == "settled")
        self.operations += total["blocks_read"] + total["blocks_held"] + stored
        self.calls += total["operations"]
        self.erasures += total["erasures"]
        stage.forget_clients(everyone)
        self.rest()
        self.compare()
        stage.console_client.ask("reset")

    def sample(self):
        private = self.stage.daemon_memory()[0]
        tiers = self.stage.console_client.ask("stats")["lower_tiers"]
        catalog = sum(tier["catalog_memory_bytes"] for tier in tiers)
        self.catalog_bytes_max = max(self.catalog_bytes_max, catalog)
        self.samples.append((self.seconds(), private - catalog))

    def rest(self):
        """The descriptors of a daemon whose clients have gone."""
        fds_max = self.fds[-1] if self.fds else self.fds_before + LATE_FDS_MAX
        rig.wait_until(lambda: self.stage.daemon_fd_count() <= fds_max, REST_S)
        self.fds.append(self.stage.daemon_fd_count_at_rest())

    def compare(self):
        """This daemon as the round has left it, and one that has just been started and filled."""
        stage = self.stage
        with new_stage(stage.arguments, self.kind) as fresh:
            probe = stage.client("probe", beside=fresh.socket_path, fill_beside=PROBE_FILL,
                                 blocks=PROBE_BLOCKS)
            probe.expect("ready", PROBE_S)
            self.settle(fresh)
            judged = (stage.daemon.pid, fresh.daemon.pid, probe.pid)
            with before_all_others(*(() if stage.arguments.short else judged)):
                probe.ask(f"compare 1 {PROBE_TURNS}", PROBE_S)  # which warms them up
                rounds = PROBE_ROUNDS[stage.arguments.short]
                pairs = probe.ask(f"compare {rounds} {PROBE_TURNS}", PROBE_S)["p99_ns"]
            self.ratios.append(statistics.median(old / young for old, young in pairs))
            old, young = (statistics.median(side) / 1000 for side in zip(*pairs))
            stage.check(probe.finish() == 0, f"p99 of a hit {old:.1f} us, of a fresh daemon's "
                                             f"{young:.1f} us, ratio {self.ratios[-1]:.3f}")
            stage.forget_clients([probe])
        stage.failures += fresh.failures

    def settle(self, fresh):
        """Waits until a daemon that was just filled does nothing unasked.

        The scrub that each start begins reads the drive at its full rate, and as often as not it
        is the other daemon whose caller it keeps from a processor: a p99 of 100 us beside 50.
        """
        time.sleep(PROBE_SETTLE_S)
        if self.stage.arguments.short or self.kind == "settled":
            return
        fresh.console()
        waited_s = rig.wait_until(lambda: fresh.stats()["scrub_passes"] > 0, PROBE_SCRUB_S, 0.1)
        self.stage.check(waited_s is not None,
                         f"the fresh daemon's first scrub ended within {PROBE_SCRUB_S} s")

    # ---- at the end ----
    def check_growth(self):
        elapsed_s = self.seconds()
        warm = [s for s in self.samples if s[0] > WARM_SHARE * self.samples[-1][0]]
        limit = (GROWTH_BYTES_PER_HOUR_MAX if elapsed_s >= HOUR_S else
                 SHORT_GROWTH_BYTES_PER_HOUR_MAX)
        growth = slope(warm) * HOUR_S
        is_judged = elapsed_s >= SHORT_S_MIN and self.stage.arguments.judge_memory
        self.stage.check(not is_judged or growth <= limit,
                         f"private memory {warm[0][1] / rig.MIB:.1f} to "
                         f"{warm[-1][1] / rig.MIB:.1f} MiB, {growth / rig.MIB:+.2f} MiB an hour "
                         f"(limit {limit / rig.MIB:g}) over {warm[-1][0] - warm[0][0]:.0f} s")
        self.stage.check(self.catalog_bytes_max <= CATALOG_BYTES,
                         f"beside it the catalog, at most {self.catalog_bytes_max / rig.MIB:.1f} "
                         f"MiB (limit {CATALOG_BYTES / rig.MIB:g})")

    def check_descriptors(self):
        warm = self.fds[max(1, round(WARM_SHARE * len(self.fds))):] or self.fds
        self.stage.check(min(warm) == max(warm) <= self.fds_before + LATE_FDS_MAX,
                         f"descriptors at rest: {self.fds_before} at the start, "
                         f"{' '.join(map(str, sorted(set(warm))))} behind {len(warm)} rounds")

    def check_drift(self):
        if not self.ratios:
            return  # and the failure is told
        third = max(1, len(self.ratios) // 3)
        early, late = (statistics.median(part)
                       for part in (self.ratios[:third], self.ratios[-third:]))
        is_judged = len(self.ratios) >= RATIOS_MIN
        limit = f"limit {DRIFT_MAX:g}" if is_judged else f"not judged of fewer than {RATIOS_MIN}"
        self.stage.check(not is_judged or late <= DRIFT_MAX * early,
                         f"p99 of a hit over a fresh daemon's: {early:.3f} in the first third, "
                         f"{late:.3f} in the last, drift {late / early:.3f} ({limit}) "
                         f"of {len(self.ratios)} comparisons")


def soak(arguments, kind, seconds, operations):
    with new_stage(arguments, kind) as stage:
        stage.console()
        load = Soak(stage, kind)
        while not stage.failures and (load.seconds() < seconds or load.operations < operations
                                      or len(load.fds) < ROUNDS_MIN):
            load.round(min(arguments.round_seconds, seconds))
        load.check_growth()
        load.check_drift()
        load.check_descriptors()
        stage.check_nothing_left()
        stage.summary = (f"{load.seconds():.0f} s over {kind} tiers, {load.operations} operations "
                         f"on blocks in {load.calls} calls of {CLIENTS} clients, {load.erasures} "
                         "erasures: none that cannot have been, ledger exact")
    return stage.verdict()


def main():
    arguments = rig.parse_arguments(__doc__, 80 * HOUR_S, seconds=(300, 5),
                                    all_tiers_seconds=(300, 3), round_seconds=(20, 3),
                                    operations=(0, 0), judge_memory=(1, 1))
    soaks = (("settled", arguments.seconds, 0),
             ("all", arguments.all_tiers_seconds, arguments.operations))
    return max(soak(arguments, *which) for which in soaks if which[1] > 0)


if __name__ == "__main__":
    sys.exit(main())
