"""vLLM's own tiering manager, CPU tier and tier factory with terrace.vllm_tier, for tests/engines:
a line RESULT. The argument is the socket. What one manager's rows were given, another one's get.
"""
import json
import random
import sys
import types
import uuid

import numpy

import vllm
import vllm_tiering
from vllm.v1.kv_offload.config import (OffloadingCacheConfig, OffloadingGroupConfig,
                                       OffloadingModelConfig, OffloadingParallelConfig)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import (CPUPrimaryTierOffloadingManager,
                                                TieringOffloadingManager)

ROWS, ROW_BYTES = 40, 16384
GROUPS = (0, 1)


def make_driver(socket):
    config = types.SimpleNamespace(
        groups=tuple(OffloadingGroupConfig(tokens_per_block=vllm_tiering.CHUNK_TOKENS,
                                           layer_names=(f"layer.{g}",), group_id=g)
                     for g in GROUPS),
        model=OffloadingModelConfig(name="tiers", dtype="float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
            data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None,
            is_parallelism_agnostic=False))
    spec = types.SimpleNamespace(config=config, blocks_per_chunk=1)
    region = SharedOffloadRegion(engine_id=uuid.uuid4().hex, num_chunks=ROWS, rank=None,
                                 kv_bytes_per_chunk=ROW_BYTES, cpu_page_size=ROW_BYTES)
    primary = CPUPrimaryTierOffloadingManager(num_chunks=ROWS, mmap_region=region)
    view = primary.get_kv_memoryview()
    tier = SecondaryTierFactory.create_secondary_tier(
        {"type": "TerraceTier", "module_path": "terrace.vllm_tier", "socket": socket,
         "revision": "1", "timeout_ms": 30_000, "load_timeout_ms": 30_000}, view, spec)
    manager = TieringOffloadingManager(primary_tier=primary, secondary_tiers=[tier])
    memory = numpy.asarray(view).view(numpy.uint8)
    return vllm_tiering.Driver(manager, memory, GROUPS), tier


def run(socket, seed):
    chance = random.Random(seed)
    driver, tier = make_driver(socket)
    for _ in range(100):
        driver.add([chance.randrange(8)] * chance.randrange(1, 6))
        driver.step()
    driver.run()
    driver.manager.reset_cache()
    found = {**driver.counts, **tier.counters, "refusal": tier.refusal}
    manager, driver.memory = driver.manager, None
    manager.shutdown()
    return found


def main():
    first, second = run(sys.argv[1], 1), run(sys.argv[1], 2)
    print("RESULT " + json.dumps({"version": vllm.__version__, "first": first, "second": second}))


if __name__ == "__main__":
    main()
