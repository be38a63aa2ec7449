#!/usr/bin/env python3
# PROMISE: T02 kills of a daemon whose memory a keeper holds
# PROMISE: T24 kills of a daemon whose memory a keeper holds
# PROMISE: T25 kills of a daemon whose memory a keeper holds
"""kill -9 of a daemon whose arenas a keeper holds, at random moments under load.

First with room for everything: what was Sealed in DRAM just before each kill must be hit again, by
the same commit and with the right bytes. Then with more prompts than DRAM holds, over an NVMe tier.
All the time no byte may be wrong, and the shared memory of keeper, daemon and clients together may
not exceed the pool by more than a twentieth.
"""
import sys
import time

import rig

DRAM_MIB = 64
BLOCKS = 12
WORKERS = 3
PROMPTS_ROOMY = 24  # some two thirds of DRAM
PROMPTS_TIGHT = 80  # more than twice DRAM
NVME_MIB = 512
RETURN_S = 20
HIT_SHARE_MIN = 0.99
SHARED_SHARE_MAX = 1.05


class Kills:
    """Kills in one setting, and what they add up to."""

    def __init__(self, stage, prompts):
        self.stage = stage
        self.is_roomy = prompts == PROMPTS_ROOMY
        self.prompts = prompts
        self.noted = self.hit = self.wrong = self.adopted = self.sealed = 0
        self.shared_bytes_max = 0
        self.warm_s_max = 0
        options = {"prompts": prompts, "blocks": BLOCKS}
        self.workers = [stage.client("worker", seconds=1500, seed=i + 1, **options)
                        for i in range(WORKERS)]
        self.witness = stage.client("witness", seed=77, **options)
        for client in (*self.workers, self.witness):
            client.expect("ready")
        stage.console(**options)

    def weigh(self):
        self.shared_bytes_max = max(self.shared_bytes_max, self.stage.shared_bytes())

    def kill(self, number):
        stage = self.stage
        self.witness.ask(f"erase {stage.random.randrange(self.prompts)}", RETURN_S)
        time.sleep(0.05 + stage.random.random() * 0.3)
        noted = self.witness.ask("note", RETURN_S)["noted"]
        self.sealed += stage.stats()["block_count"] - stage.stats()["reserved_count"]
        self.weigh()
        stage.kill_daemon()
        self.weigh()
        began = time.monotonic()
        stage.start_daemon()
        check = self.witness.ask("check", RETURN_S)
        self.warm_s_max = max(self.warm_s_max, time.monotonic() - began)
        self.weigh()
        self.adopted += stage.stats()["blocks_adopted"]
        self.noted += noted
        self.hit += check["hit"]
        self.wrong += check["wrong"]
        if self.is_roomy and check["hit"] < noted:
            print(f"      kill {number}: {check}, {stage.stats()['blocks_adopted']} adopted, "
                  f"{stage.stats()['blocks_corrupt']} corrupt", flush=True)
        dead = {c.name: c.process.returncode for c in (*self.workers, self.witness)
                if c.process.poll() is not None}
        if dead:
            raise rig.Failure(f"kill {number}: clients ended: {dead}")

    def finish(self, kills):
        stage = self.stage
        statuses = [worker.finish() for worker in self.workers]
        stage.check(statuses == [0] * WORKERS, f"workers ended with {statuses}")
        stage.check(self.wrong == 0, f"{self.wrong} wrong blocks in {kills} checks after a kill")
        total = stage.check_clients([*self.workers, self.witness])
        stage.check_histories([*self.workers, self.witness], settled=False)
        share = self.shared_bytes_max / stage.dram_bytes
        stage.check(share <= SHARED_SHARE_MAX,
                    f"shared memory at most {self.shared_bytes_max / rig.MIB:.1f} MiB, {share:.3f} "
                    f"of the pool")
        waited_s = rig.wait_until(lambda: stage.stats()["inherited_bytes"] == 0, RETURN_S)
        stage.check(waited_s is not None,
                    f"inherited_bytes {stage.stats()['inherited_bytes']} with its clients gone")
        return total, share


def roomy(arguments):
    stage = rig.Rig(arguments, dram_mib=DRAM_MIB, keeper=True, histories=True)
    with stage:
        kills = Kills(stage, PROMPTS_ROOMY)
        for number in range(arguments.kills):
            kills.kill(number)
        total, share = kills.finish(arguments.kills)
        stage.check(kills.noted > 0 and kills.hit >= HIT_SHARE_MIN * kills.noted,
                    f"{arguments.kills} daemons killed: {kills.hit} of {kills.noted} Sealed blocks "
                    f"({100 * kills.hit / max(kills.noted, 1):.2f} %) hit again; {kills.adopted} "
                    f"adopted, {kills.sealed} sealed before; all read again at most "
                    f"{kills.warm_s_max:.2f} s after the start")
        stage.check(total["blocks_committed"] >= arguments.kills * BLOCKS,
                    f"{total['blocks_committed']} blocks committed: a prompt or more a kill")
        stage.console()
        stage.check_nothing_left()
        stage.summary = (f"{arguments.kills} kill -9 under load: {kills.hit} of {kills.noted} "
                         f"Sealed DRAM blocks hit again, 0 wrong bytes, shared memory at most "
                         f"{share:.3f} of the pool")
    return stage.verdict()


def tight(arguments):
    stage = rig.Rig(arguments, dram_mib=DRAM_MIB // 2, nvme_mib=NVME_MIB, keeper=True,
                    histories=True)
    with stage:
        kills = Kills(stage, PROMPTS_TIGHT)
        for number in range(arguments.tight_kills):
            kills.kill(number)
        _, share = kills.finish(arguments.tight_kills)
        stage.check(kills.adopted > 0, f"{kills.adopted} blocks adopted beside an NVMe tier")
        stage.summary = (f"{arguments.tight_kills} kill -9 with DRAM full and an NVMe tier below: "
                         f"0 wrong bytes, {kills.adopted} blocks adopted, shared memory at most "
                         f"{share:.3f} of the pool")
    return stage.verdict()


def main():
    arguments = rig.parse_arguments(__doc__, 1500, kills=(100, 3), tight_kills=(30, 2))
    return max(roomy(arguments), tight(arguments))


if __name__ == "__main__":
    sys.exit(main())
