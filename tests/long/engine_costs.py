#!/usr/bin/env python3
"""What the engines' adapters cost beside what nobody could save.

  * a lookup of 8,192 blocks in vLLM's scheduler, a hit that the daemon leases or a miss: at most 3
    round trips of the same bytes between two processes that do nothing else. Before each the
    scheduler computes for STEP_S, as between lookups of an engine's steps;
  * pages between SGLang's host pool and the daemon: at least 0.85 of memcpy from and to memory that
    is shared in the same way.
Each in pairs with its floor; the medians' ratio counts. The engines are stand-ins.
"""
import argparse
import ctypes
import hashlib
import importlib
import logging
import mmap
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS, KEY_BYTES, REPLY_BYTES = 8192, 16, 96
STEP_S = 0.002
PAGES, PAGE_BYTES, SEGMENTS = 128, 1 << 20, 8
LOOKUP_RATIO_MAX, COPY_RATIO_MIN = 3.0, 0.85
MIB = 1 << 20


def load_packages(build):
    os.environ["TERRACE_LIBRARY"] = str(build / "client" / "libterrace.so")
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "python" / "stubs")]
    return importlib.import_module("terrace")


def median_us(call, count):
    """Median of `count` calls; `call` gives the seconds that count."""
    return statistics.median(call() for _ in range(count)) * 1e6


# ---- lookups ----


def compute():
    until = time.perf_counter() + STEP_S
    while time.perf_counter() < until:
        pass


class Echo:
    """A process that answers every request of so many bytes with so many others."""

    def __init__(self, request_bytes, reply_bytes):
        self.request, self.reply_bytes = b"x" * request_bytes, reply_bytes
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (self.ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        self.pid = os.fork()
        if self.pid == 0:
            self.ours.close()
            reply, room = b"y" * reply_bytes, bytearray(request_bytes)
            while self.receive(theirs, room):
                theirs.sendall(reply)
            os._exit(0)
        theirs.close()

    @staticmethod
    def receive(end, room):
        view = memoryview(room)
        while view:
            count = end.recv_into(view)
            if count == 0:
                return False
            view = view[count:]
        return True

    def round_trip(self):
        room = bytearray(self.reply_bytes)
        compute()
        began = time.perf_counter()
        self.ours.sendall(self.request)
        self.receive(self.ours, room)
        return time.perf_counter() - began

    def close(self):
        self.ours.close()
        os.waitpid(self.pid, 0)


def request_of(seed):
    hashes = []
    for i in range(BLOCKS):
        hashes.append(hashlib.sha256(struct.pack("<QQ", seed, i)).digest())
    return types.SimpleNamespace(request_id=f"r{seed}", num_tokens=BLOCKS * 16 + 1,
                                 block_hashes=hashes, num_computed_tokens=0)


def lookups(terrace, client, rounds):
    """(name, ratio) of a hit and of a miss."""
    scheduler = importlib.import_module("terrace.vllm.scheduler")
    space = terrace.Space(model="costs", revision="1", dtype="bf16", layout="nhd", layers=1,
                          kv_heads=1, head_size=64, block_tokens=16, part_bytes=(1024,))
    spec = terrace.SpaceGroup("lookups", [space])
    group = client.open(spec)
    stored, unknown = request_of(1), request_of(2)
    keys = group.keys_of_digests(stored.block_hashes)
    first = 0
    while first < BLOCKS:
        with group.reserve(keys[first:first + 1024], parent=keys[first - 1] if first else None,
                           first_position=first) as lease:
            lease.write(bytes(1024 * len(lease)))
            lease.commit()
        first += 1024
    group = client.open(spec, self_mask=0)  # a scheduler reads no slots
    half = scheduler.SchedulerHalf(group, block_tokens=16, adapters=scheduler.Adapters(None),
                                   weights=scheduler.Weights(None, logging.getLogger()),
                                   lookup_wait_s=10.0, timeout_s=10.0)

    def ask(request, tokens):
        half.begin(request)
        compute()
        began = time.perf_counter()
        found = half.matched_tokens(request, 0)
        took_s = time.perf_counter() - began
        assert found == tokens, f"{found} tokens of {tokens}"
        half.finished(request, [[]])
        return took_s

    for name, request, tokens in ("hit", stored, BLOCKS * 16), ("miss", unknown, 0):
        echo = Echo(BLOCKS * KEY_BYTES, REPLY_BYTES)
        ask(request, tokens), echo.round_trip()
        pairs = [(ask(request, tokens), echo.round_trip()) for _ in range(rounds)]
        echo.close()
        ours, floor = (statistics.median(column) * 1e6 for column in zip(*pairs))
        quick, quick_floor = (statistics.quantiles(column, n=10)[0] * 1e6 for column in zip(*pairs))
        yield (f"lookup of {BLOCKS} blocks, {name}: {ours:.0f} us beside a bare round trip of "
               f"{floor:.0f} us (the quickest tenth {quick:.0f} and {quick_floor:.0f}, "
               f"{quick / quick_floor:.2f})", ours / floor, ours / floor <= LOOKUP_RATIO_MAX)
    half.close()


# ---- pages ----


class Pool:
    """SGLang's host pool, page first: K and V of a page are one piece each."""

    layout, page_size, layer_num, head_num, head_dim, dtype = "page_first", 64, 8, 8, 64, "bfloat16"

    def __init__(self):
        self.memory = mmap.mmap(-1, PAGES * PAGE_BYTES)
        self.memory[:] = b"\5" * len(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def get_page_buffer_meta(self, indices):
        half = PAGE_BYTES // 2
        pages = [int(i) // self.page_size for i in indices[::self.page_size]]
        pointers = [self.address + page * PAGE_BYTES + part * half
                    for page in pages for part in (0, 1)]
        return pointers, [half] * len(pointers)


def shared_memory(byte_count):
    """As the arena's: a memfd, all of it there."""
    fd = os.memfd_create("floor")
    os.ftruncate(fd, byte_count)
    found = mmap.mmap(fd, byte_count)
    found[:] = b"\1" * byte_count
    return found, ctypes.addressof(ctypes.c_char.from_buffer(found))


def pages(socket_path, rounds):
    sglang = importlib.import_module("terrace.sglang")
    import torch

    config = types.SimpleNamespace(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, model_name="costs", should_split_heads=False,
        extra_config={"socket": socket_path, "revision": "1", "timeout_ms": 30_000,
                      "one_namespace": True})
    backend = sglang.TerraceHiCache(config, {})
    pool = Pool()
    backend.register_mem_pool_host(pool)
    indices = torch.arange(PAGES * pool.page_size)
    _keep, floor = shared_memory(PAGES * PAGE_BYTES)

    def timed(call):
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def store(number):
        keys = [hashlib.sha256(struct.pack("<QQ", number, i)).hexdigest() for i in range(PAGES)]
        return keys, timed(lambda: check(backend.batch_set_v1(keys, indices)))

    def check(answers):
        assert all(answers), (answers, backend.refusal)

    found = {"store": [], "load": []}
    for number in range(-4, rounds):  # the first ones are slow
        keys, store_s = store(number + 1000)
        put_s = timed(lambda: ctypes.memmove(floor, pool.address, PAGES * PAGE_BYTES))
        load_s = timed(lambda: check(backend.batch_get_v1(keys, indices)))
        get_s = timed(lambda: ctypes.memmove(pool.address, floor, PAGES * PAGE_BYTES))
        if number >= 0:
            found["store"].append(put_s / store_s)
            found["load"].append(get_s / load_s)
        backend.clear()
    backend.close()
    for name, ratios in found.items():
        ratio = statistics.median(ratios)
        yield f"HiCache {name} of {PAGES} pages of 1 MiB, of memcpy", ratio, ratio >= COPY_RATIO_MIN


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=ROOT / "build" / "release", type=pathlib.Path)
    parser.add_argument("--rounds", default=51, type=int)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    terrace = load_packages(build)
    is_met = True
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/t.sock"
        config = pathlib.Path(directory) / "t.toml"
        config.write_text('[daemon]\ndram_bytes = "256MiB"\nsegment_bytes = "32MiB"\n'
                          f'segments_spare = {SEGMENTS}\n')
        daemon = subprocess.Popen([build / "daemon" / "terraced", "--config", config, "--socket",
                                   path], stderr=subprocess.DEVNULL)
        try:
            with terrace.Client(path, default_timeout_s=30) as client:
                client.wait_connected(30)
                while client.stats()["domain"]["segments_populated"] < SEGMENTS:
                    time.sleep(0.05)
                for results in (lookups(terrace, client, arguments.rounds),
                                pages(path, arguments.rounds)):
                    for what, ratio, is_good in results:
                        print(f"{'ok  ' if is_good else 'FAIL'} {what}: {ratio:.2f}", flush=True)
                        is_met = is_met and is_good
        finally:
            daemon.terminate()
            daemon.wait()
    print(f"VERDICT: {'OK' if is_met else 'FAILED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
