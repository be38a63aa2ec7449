"""usage: lmcache_storage.py SOCKET

LMCache's own storage manager, controllers, memory and adapter factory, on the CPU, with Terrace as
a plug-in by its configuration: what one instance stored another one loads, every byte compared.
Prints RESULT and a JSON object.
"""
import hashlib
import json
import sys
import time

import torch

import lmcache
from lmcache.v1.distributed.api import (GroupedObjectKeys, MemoryLayoutDesc, ObjectKey,
                                        PrefetchTaskSpec)
from lmcache.v1.distributed.config import parse_args
from lmcache.v1.distributed.storage_manager import StorageManager

LONG_S = 60
CHUNKS = 12
# Of a full-attention group, and of one with a window of two chunks that has two types.
LAYOUTS = [MemoryLayoutDesc([torch.Size([2, 4, 256, 128])], [torch.bfloat16]),
           MemoryLayoutDesc([torch.Size([2, 2, 256, 64]), torch.Size([256, 4])],
                            [torch.float8_e4m3fn, torch.float32])]
WINDOWS = [-1, 2]


def keys_of(group, rank, tokens, model="m/x"):
    """One a chunk."""
    keys, parent = [], b""
    for token in tokens:
        parent = hashlib.sha256(parent + bytes([token])).digest()
        keys.append(ObjectKey(parent, model, ObjectKey.ComputeKVRank(2, rank, 2, rank), group))
    return keys


def right_bytes(key, count):
    """What an object of that key holds."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.frombuffer(bytearray(digest * (count // 32 + 1)), dtype=torch.uint8)[:count]


def bytes_of(memory):
    return torch.frombuffer(memory.byte_array, dtype=torch.uint8)[:memory.get_size()]


class Instance:
    """A storage manager, as `lmcache server` makes it from its arguments."""

    def __init__(self, parameters, *more, l1_gb="0.25", serde=None):
        spec = {"type": "plugin", "module_path": "terrace.lmcache",
                "class_name": "TerraceL2Adapter", "adapter_params": parameters}
        if serde:
            spec["serde"] = {"type": serde}
        self.manager = StorageManager(parse_args(
            ["--l1-size-gb", l1_gb, "--no-l1-use-lazy", "--eviction-policy", "LRU",
             "--l2-adapter", json.dumps(spec), *more]))
        ((_, self.adapter),) = self.manager.l2_adapters()

    def store(self, tokens, chunks=None):
        """Writes a prompt to LMCache's memory; its controller stores it."""
        before = self.status()["objects_stored"] + self.status()["objects_dropped"]
        count = 0
        for group, layout in enumerate(LAYOUTS):
            for rank in range(2):
                keys = keys_of(group, rank, tokens)[:chunks]
                written = self.manager.reserve_write(keys, layout)
                for key, memory in written.items():
                    bytes_of(memory)[:] = right_bytes(key, memory.get_size())
                self.manager.finish_write(list(written))
                count += len(written)
        deadline = time.monotonic() + LONG_S
        while self.status()["objects_stored"] + self.status()["objects_dropped"] < before + count:
            if time.monotonic() > deadline:
                raise SystemExit(f"stores did not end: {self.status()}")
            time.sleep(0.01)
        return count

    def fetch(self, tokens):
        """Prefetches a prompt; objects that came from below, and those of wrong bytes."""
        rows = [GroupedObjectKeys(keys_of(group, rank, tokens), group, layout, window)
                for group, (layout, window) in enumerate(zip(LAYOUTS, WINDOWS))
                for rank in range(2)]
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec(rows))
        if not self.manager.wait_prefetch_status(handle, LONG_S):
            raise SystemExit("a prefetch did not end")
        result = self.manager.query_prefetch_status(handle)
        wrong = 0
        hits = [key for row, cells in zip(rows, result.hit_cells)
                for i, key in enumerate(row.keys) if cells.test(i)]
        with self.manager.read_prefetched_results(hits) as memories:
            for key, memory in zip(hits, memories or ()):
                wrong += not torch.equal(bytes_of(memory), right_bytes(key, memory.get_size()))
        if hits:
            self.manager.finish_read_prefetched(hits)
        return result.l2_hit_count, wrong, len(hits)

    def status(self):
        inner = getattr(self.adapter, "inner_adapter", None) or getattr(self.adapter, "_inner",
                                                                        self.adapter)
        return inner.report_status()

    def close(self):
        self.manager.close()


def main():
    parameters = {"socket": sys.argv[1], "revision": "1", "timeout_ms": 20_000}
    first = Instance(parameters)
    stored = first.store(range(CHUNKS))
    told = {"version": lmcache.__version__, "stored": first.status()["objects_stored"],
            "written": stored, "usage": first.adapter.get_usage().total_bytes_used}
    first.close()
    second = Instance(parameters)
    told["hits"], told["wrong"], told["read"] = second.fetch(range(CHUNKS))
    told["again"] = second.fetch(range(CHUNKS))[0]  # its own memory has them now
    told["other_end"] = second.fetch([*range(4), 99])[0]
    told["refused"] = second.status()["refusal"]
    second.manager.clear(force=True)
    told["locked"] = second.status()["locked_object_count"]
    second.close()
    other = Instance({**parameters, "revision": "2"})
    told["of_other_weights"] = other.fetch(range(CHUNKS))[0]
    other.close()
    bare = Instance({**parameters, "revision": "", "socket": "/nowhere"})
    bare.store([1])
    told["without"] = bare.fetch([1, 2])[0]
    bare.close()
    print("RESULT " + json.dumps(told))


if __name__ == "__main__":
    main()
