#!/usr/bin/env python3
"""Filling far beyond the capacity never takes more memory than the cap.

Clients store several times what the arena holds while the daemon's memory is sampled: the
allocated blocks of its memfds and its shared resident pages stay within dram_bytes and the slot
table; blocks are evicted; whatever is still resident at the end verifies.
"""
import sys
import time

import rig

DRAM_MIB = 64
BLOCKS = 12


def main():
    arguments = rig.parse_arguments(__doc__, 300, times_capacity=(6, 3))
    stage = rig.Rig(arguments, dram_mib=DRAM_MIB, segment_mib=4)
    with stage:
        ledger = stage.console(prompts=2000, blocks=BLOCKS).ask("ledger")
        block_bytes = 2 * ledger["slot_bytes"]
        wanted_blocks = arguments.times_capacity * stage.dram_bytes // block_bytes
        prompts = 2 * wanted_blocks // BLOCKS
        workers = [stage.client("worker", prompts=prompts, seconds=240, blocks=BLOCKS, seed=i + 1)
                   for i in range(2)]
        arena_max = total_max = shared_max = samples = 0
        # The arena grows beside the stores, on its own thread.
        while ((sealed := stage.stats()["blocks_sealed"]) < wanted_blocks
               or arena_max <= stage.dram_bytes // 2):
            stage.require_daemon()
            _, shared, files = stage.daemon_memory()
            arena_max = max(arena_max, *files.values(), 0, 0)
            total_max = max(total_max, sum(files.values()))
            shared_max = max(shared_max, shared)
            samples += 1
            time.sleep(0.002)
        statuses = [worker.finish() for worker in workers]
        stats = stage.stats()
        # A row a page, the sessions noted (9 pages: 32 KiB and a mark a segment) and the trailer.
        slot_table_bytes = stage.dram_bytes // 4096 * 128 + 10 * 4096
        notice_page_bytes = 4096
        cap = stage.dram_bytes + slot_table_bytes + notice_page_bytes
        stage.check(True, f"{sealed} blocks of {block_bytes} bytes stored: "
                          f"{sealed * block_bytes / stage.dram_bytes:.1f} times the capacity")
        stage.check(0 < arena_max <= stage.dram_bytes,
                    f"largest memfd: at most {arena_max} bytes of dram_bytes {stage.dram_bytes}, "
                    f"{samples} samples")
        stage.check(total_max <= cap, f"all memfds: at most {total_max} bytes; dram_bytes, slot "
                                      f"table and notice page are {cap}")
        stage.check(shared_max <= cap, f"RssShmem: at most {shared_max} bytes")
        stage.check(arena_max > stage.dram_bytes // 2, "more than half of the cap was in use")
        stage.check(stats["blocks_evicted"] > 0, f"{stats['blocks_evicted']} blocks were evicted")
        stage.check(statuses == [0, 0], f"workers ended with {statuses}")
        audit = stage.console_client.ask("audit", 60)
        stage.check(audit["wrong"] == 0 and audit["blocks"] == stats["block_count"],
                    f"{audit['blocks']} of {stats['block_count']} resident blocks read, "
                    f"{audit['wrong']} wrong")
        stage.check_clients(workers)
        stage.check_nothing_left()
        stage.summary = (f"at most {total_max / rig.MIB:.1f} MiB of {cap / rig.MIB:.1f} used while "
                         f"{sealed * block_bytes / rig.MIB:.0f} MiB were stored")
    return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
