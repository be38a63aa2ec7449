#!/usr/bin/env python3
# PROMISE: T03 kills over drives, with erasures
# PROMISE: T08 kills over drives, with erasures
"""kill -9 of a daemon with an NVMe tier, at random moments under load.

Workers store and load more than DRAM holds, so blocks are written below, promoted and evicted all
the time; an archivist keeps prompts of its own. After each kill: no wrong byte, every block that
was reported persisted is still there, nothing that was erased is back.
"""
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


def main():
    arguments = rig.parse_arguments(__doc__, 1500, kills=(100, 3))
    stage = rig.Rig(arguments, dram_mib=DRAM_MIB, segment_mib=4, nvme_mib=NVME_MIB,
                    slab_mib=SLAB_MIB, histories=True)
    with stage:
        workers = [stage.client("worker", prompts=WORKER_PROMPTS, blocks=BLOCKS, seconds=1500,
                                seed=i + 1) for i in range(WORKERS)]
        archivist = stage.client("archivist", prompt_first=ARCHIVE_FIRST, prompts=ARCHIVE_PROMPTS,
                                 blocks=BLOCKS, seed=77)
        for client in (*workers, archivist):
            client.expect("ready")
        stage.console(prompts=WORKER_PROMPTS, blocks=BLOCKS)
        erasing = itertools.cycle(range(ARCHIVE_PROMPTS))
        remembered = found = erased = 0
        for number in range(arguments.kills):
            archivist.ask("store", 60)
            time.sleep(stage.random.random() * 0.3)
            erased_now = archivist.ask(f"erase {next(erasing)}", 30)["erased"]
            kept = archivist.ask("remember", 30)["persisted"]
            if number % 2:
                time.sleep(stage.random.random() * 0.2)
            stage.kill_daemon()
            stage.start_daemon()
            back = archivist.ask("erased", RETURN_S)
            if back["back"]:
                raise rig.Failure(f"kill {number}: {back['back']} of {erased_now} erased blocks "
                                  "came back")
            survivors = archivist.ask("survivors", 60)
            if survivors["found"] < kept or survivors["wrong"]:
                raise rig.Failure(f"kill {number}: of {kept} persisted blocks {survivors}: "
                                  f"{archivist.errors()}")
            archivist.ask("forget")
            remembered += kept
            found += survivors["found"]
            erased += erased_now
            dead = {w.name: w.process.returncode for w in workers if w.process.poll() is not None}
            if dead:
                raise rig.Failure(f"kill {number}: clients ended: {dead}")
        stage.check(remembered > 0 and found == remembered,
                    f"{arguments.kills} daemons killed: {found} of {remembered} blocks that were "
                    "reported persisted were there")
        stage.check(erased > 0, f"none of {erased} erased blocks came back")
        tier = stage.console_client.ask("stats")["lower_tiers"][0]
        stage.check(tier["is_healthy"], f"the tier holds {tier['used_bytes'] / rig.MIB:.0f} of "
                                        f"{tier['capacity_bytes'] / rig.MIB:.0f} MiB")
        statuses = [worker.finish() for worker in workers]
        stage.check(statuses == [0] * WORKERS, f"workers ended with {statuses}")
        stage.check_clients([*workers, archivist])
        stage.check_histories([*workers, archivist], settled=False)
        stage.summary = (f"{arguments.kills} kill -9 under load: 0 wrong bytes, {found} of "
                         f"{remembered} persisted blocks found again, {erased} erased ones gone")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
