#!/usr/bin/env python3
# PROMISE: T03 kills over drives, with erasures
# PROMISE: T08 kills over drives, with erasures
"""kill -9 of a daemon with an NVMe tier, at random moments under load.

Workers store and load more than DRAM holds, so blocks are written below, promoted and evicted all
the time; an archivist keeps prompts of its own. After each kill: no wrong byte, every block that
was reported persisted is still there, nothing that was erased is back. The kills come fractions of
a second apart; with --seconds, as many as fit there, each 1 to 120 s after the one before, and all
that the clients were answered between two of them is judged by itself.
"""
import collections
import itertools
import sys
import time

import rig

DRAM_MIB = 32
NVME_MIB = 768
SLAB_MIB = 16
WORKERS = 3
WORKER_PROMPTS = 60  # about three times DRAM
ARCHIVE_FIRST = 10_000
ARCHIVE_PROMPTS = 12
BLOCKS = 12
RETURN_S = 20
LIMIT_S = 11 * 3600
PAUSE_S = (1, 120)  # between two kills, with --seconds


class Kills:
    """Kills of one daemon, and what they add up to."""

    def __init__(self, stage):
        self.stage = stage
        self.erasing = itertools.cycle(range(ARCHIVE_PROMPTS))
        self.total = collections.Counter()
        self.workers = []
        self.archivist = None

    def begin_load(self):
        stage = self.stage
        self.workers = [stage.client("worker", prompts=WORKER_PROMPTS, blocks=BLOCKS,
                                     seconds=LIMIT_S, seed=stage.random.getrandbits(40))
                        for _ in range(WORKERS)]
        self.archivist = stage.client("archivist", prompt_first=ARCHIVE_FIRST,
                                      prompts=ARCHIVE_PROMPTS, blocks=BLOCKS, seed=77)
        for client in (*self.workers, self.archivist):
            client.expect("ready")

    def one(self, before_s, after_s):
        """A kill; before_s and after_s: the load's time before and after blocks are remembered."""
        stage, archivist, number = self.stage, self.archivist, self.total["kills"]
        archivist.ask("store", 60)
        time.sleep(before_s)
        erased = archivist.ask(f"erase {next(self.erasing)}", 30)["erased"]
        kept = archivist.ask("remember", 30)["persisted"]
        time.sleep(after_s)
        stage.kill_daemon()
        stage.start_daemon()
        back = archivist.ask("erased", RETURN_S)
        if back["back"]:
            raise rig.Failure(f"kill {number}: {back['back']} of {erased} erased blocks came back")
        survivors = archivist.ask("survivors", 60)
        if survivors["found"] < kept or survivors["wrong"]:
            raise rig.Failure(f"kill {number}: of {kept} persisted blocks {survivors}: "
                              f"{archivist.errors()}")
        archivist.ask("forget")
        dead = {w.name: w.process.returncode for w in self.workers if w.process.poll() is not None}
        if dead:
            raise rig.Failure(f"kill {number}: clients ended: {dead}")
        self.total.update(kills=1, remembered=kept, found=survivors["found"], erased=erased)

    def end_load(self):
        stage = self.stage
        statuses = [worker.finish() for worker in self.workers]
        stage.check(statuses == [0] * WORKERS, f"workers ended with {statuses}")
        clients = [*self.workers, self.archivist]
        stage.check_clients(clients)
        self.total["operations"] += stage.check_histories(clients, settled=False)["operations"]
        stage.forget_clients(clients)


def main():
    arguments = rig.parse_arguments(__doc__, LIMIT_S, kills=(100, 3), seconds=(0, 0))
    stage = rig.Rig(arguments, dram_mib=DRAM_MIB, segment_mib=4, nvme_mib=NVME_MIB,
                    slab_mib=SLAB_MIB, histories=True)
    with stage:
        kills, draw = Kills(stage), stage.random
        stage.console(prompts=WORKER_PROMPTS, blocks=BLOCKS)
        if arguments.seconds == 0:
            kills.begin_load()
            for number in range(arguments.kills):
                kills.one(draw.random() * 0.3, draw.random() * 0.2 * (number % 2))
            kills.end_load()
        end = time.monotonic() + arguments.seconds
        while time.monotonic() < end and not stage.failures:
            kills.begin_load()
            kills.one(draw.uniform(*PAUSE_S), draw.random() * 0.2)
            kills.end_load()
            stage.console_client.ask("reset")
        total = kills.total
        stage.check(total["remembered"] > 0 and total["found"] == total["remembered"],
                    f"{total['kills']} daemons killed: {total['found']} of {total['remembered']} "
                    "blocks that were reported persisted were there")
        stage.check(total["erased"] > 0, f"none of {total['erased']} erased blocks came back")
        tier = stage.console_client.ask("stats")["lower_tiers"][0]
        stage.check(tier["is_healthy"], f"the tier holds {tier['used_bytes'] / rig.MIB:.0f} of "
                                        f"{tier['capacity_bytes'] / rig.MIB:.0f} MiB")
        stage.summary = (f"{total['kills']} kill -9 under load: 0 wrong bytes, {total['found']} of "
                         f"{total['remembered']} persisted blocks found again, {total['erased']} "
                         f"erased ones gone, {total['operations']} operations judged")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
