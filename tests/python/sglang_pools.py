"""SGLang's own backend factory and host pools with terrace.sglang, for tests/engines: a line
RESULT. The argument is the socket. Pages written from one pool are read into another, in every
layout.
"""
import hashlib
import json
import sys

import torch

import sglang
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorageConfig, PoolHitPolicy, PoolName,
                                                  PoolTransfer)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

LAYERS, HEADS, SIZE, PAGE, TOKENS = 3, 2, 16, 16, 16 * 20
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


def make_pool(layout):
    planes = [tuple(torch.zeros(TOKENS, HEADS, SIZE, dtype=torch.float16) for _ in range(LAYERS))
              for _ in range(2)]
    pointers = [torch.tensor([t.data_ptr() for t in plane], dtype=torch.uint64)
                for plane in planes]
    info = MHABufferInfo(
        buffers=KVBuffers(k=planes[0], v=planes[1], k_data_ptrs=pointers[0],
                          v_data_ptrs=pointers[1], layout=KVBufferLayout.NHD),
        page_size=PAGE, head_num=HEADS, head_dim=SIZE, v_head_dim=SIZE, dtype=torch.float16,
        device=torch.device("cpu"))
    return MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False, device="cpu",
                                device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS)


def make_backend(layout, socket):
    pool = make_pool(layout)
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, enable_storage_metrics=False,
        is_page_first_layout=layout != "layer_first", model_name="pools",
        extra_config={"backend_name": "terrace", "module_path": "terrace.sglang",
                      "class_name": "TerraceHiCache", "interface_v1": 1, "socket": socket,
                      "revision": "1", "timeout_ms": 30_000})
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    backend.register_mem_pool_host(pool)
    return backend, pool


def indices_of(pages):
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def check_two_pools(layout, writer, reader, keys):
    """Interface v2: a second pool, of which only the last two pages of the prefix are there."""
    pools = [make_pool(layout) for _ in range(2)]
    for backend, pool in zip((writer, reader), pools):
        backend.register_mem_host_pool_v2(pool, PoolName.SWA)
    for page in (3, 4):
        flat = torch.randn(pools[0].get_dummy_flat_data_page().shape).to(torch.float16)
        pools[0].set_from_flat_data_page(page * PAGE, flat)
    last = keys[3:]
    wanted = PoolTransfer(name=PoolName.SWA, keys=last, hit_policy=PoolHitPolicy.TRAILING_PAGES,
                          host_indices=indices_of([8, 9]))
    stored = writer.batch_set_v2([PoolTransfer(name=PoolName.SWA, keys=last,
                                               host_indices=indices_of([3, 4]))])
    found = reader.batch_exists_v2(keys, [wanted])
    got = reader.batch_get_v2([wanted])
    return [stored == {PoolName.SWA: [True, True]}, found.restorable_prefix_pages == [5],
            found.kv_hit_pages == 5, got == {PoolName.SWA: [True, True]},
            *(torch.equal(pools[0].get_data_page(s * PAGE), pools[1].get_data_page(t * PAGE))
              for s, t in ((3, 8), (4, 9)))]


def main():
    keys, digest, failed = [], b"", []
    for i in range(5):
        digest = hashlib.sha256(digest + bytes([i])).digest()
        keys.append(digest.hex())
    source, target = [1, 4, 2, 7, 9], [10, 11, 12, 13, 14]
    for layout in LAYOUTS:
        (writer, from_pool), (reader, to_pool) = (make_backend(layout, sys.argv[1])
                                                  for _ in range(2))
        for page in source:
            flat = torch.randn(from_pool.get_dummy_flat_data_page().shape).to(torch.float16)
            from_pool.set_from_flat_data_page(page * PAGE, flat)
        answers = [reader.batch_exists(keys) == 0,
                   all(writer.batch_set_v1(keys, indices_of(source))),
                   reader.batch_exists(keys) == 5,
                   all(reader.batch_get_v1(keys, indices_of(target)))]
        answers += [torch.equal(from_pool.get_data_page(s * PAGE), to_pool.get_data_page(t * PAGE))
                    for s, t in zip(source, target)]
        answers += check_two_pools(layout, writer, reader, keys)
        if not all(answers):
            failed.append(f"{layout}: {answers} {writer.refusal} {reader.refusal}")
    print("RESULT " + json.dumps({"version": sglang.__version__, "failed": failed,
                                  "layouts": len(LAYOUTS)}), flush=True)


if __name__ == "__main__":
    main()
