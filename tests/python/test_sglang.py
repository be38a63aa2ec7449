"""terrace.sglang against host pools of every layout, as SGLang's storage threads use it, and a real
daemon.

TERRACE_ENGINE_REQUESTS: how many random requests a setting gets (200)."""
import hashlib
import os
import pathlib
import random
import sys
import threading
import time
import types

import pytest
import torch

sys.path.insert(0, os.environ.get("TERRACE_SGLANG") or
                str(pathlib.Path(__file__).resolve().parent / "stubs"))

import terrace.sglang  # noqa: E402  pylint: disable=wrong-import-position
import sglang.srt.mem_cache as mem_cache  # noqa: E402  pylint: disable=wrong-import-position
from sglang.srt.mem_cache import hicache_storage  # noqa: E402  pylint: disable=C0413
import sglang_engine  # noqa: E402  pylint: disable=wrong-import-position
from conftest import (  # noqa: E402  pylint: disable=wrong-import-position
    LONG_S, connect, let_nobody_store)

if not os.environ.get("TERRACE_SGLANG"):  # the stand-in's hashes name everything
    mem_cache.utils = types.ModuleType("sglang.srt.mem_cache.utils")
    mem_cache.utils.storage_namespace_seed = lambda *_: None
    sys.modules[mem_cache.utils.__name__] = mem_cache.utils

REQUESTS = int(os.environ.get("TERRACE_ENGINE_REQUESTS", "200"))

PAGE, LAYERS, HEADS, SIZE, TOKENS = 16, 3, 2, 8, 16 * 40


class ShardedPool:
    """SGLang's host pool of a latent with decode context parallel: a rank has every dcp_size-th
    token of a page, and pages are told by the tokens of all shards."""

    layer_num, head_num, head_dim, dtype = LAYERS, 1, SIZE, torch.float16
    layout = "page_first"

    def __init__(self, dcp_size):
        self.dcp_size = dcp_size
        self.page_size, self.logical_page_size = PAGE // dcp_size, PAGE
        self.kv_buffer = torch.zeros(TOKENS // dcp_size * LAYERS * SIZE, dtype=torch.float16)

    def get_page_buffer_meta(self, indices):
        assert len(indices) % self.logical_page_size == 0
        row = LAYERS * SIZE * 2
        pages = indices.tolist()[::self.logical_page_size]
        return ([self.kv_buffer.data_ptr() + first // self.dcp_size * row for first in pages],
                [self.page_size * row] * len(pages))

    fill = lambda self, pages, seed: HostPool.fill(self, pages, seed)  # noqa: E731
    bytes_of = lambda self, page: HostPool.bytes_of(self, page)  # noqa: E731


class HostPool:
    """SGLang's host pool: where the pieces of a page lie, by layout."""

    page_size, layer_num, head_num, head_dim, dtype = PAGE, LAYERS, HEADS, SIZE, torch.float16

    def __init__(self, layout, is_latent=False):
        self.layout = layout
        self.planes = 1 if is_latent else 2
        self.kv_buffer = torch.zeros(self.planes * LAYERS * TOKENS * HEADS * SIZE,
                                     dtype=torch.float16)

    def get_page_buffer_meta(self, indices):
        assert len(indices) % PAGE == 0
        base, item = self.kv_buffer.data_ptr(), 2
        token = HEADS * SIZE * item
        plane = LAYERS * TOKENS * token
        pointers, sizes = [], []
        for first in indices.tolist()[::PAGE]:
            for layer in range(LAYERS if self.layout == "layer_first" else 1):
                for part in range(self.planes):
                    if self.layout == "layer_first":
                        pointers.append(base + part * plane + (layer * TOKENS + first) * token)
                        sizes.append(PAGE * token)
                    else:
                        pointers.append(base + part * plane + first * LAYERS * token)
                        sizes.append(LAYERS * PAGE * token)
        return pointers, sizes

    def get_split_heads_page_buffer_meta(self, indices, split_factor):
        """As SGLang's: heads are the outermost dimension of a page."""
        assert self.layout == "page_head" and len(indices) % PAGE == 0
        pointers, sizes = self.get_page_buffer_meta(indices)
        share = sizes[0] // split_factor
        found = [pointers[page * self.planes + plane] + shard * share
                 for page in range(len(indices) // PAGE) for shard in range(split_factor)
                 for plane in range(self.planes)]
        return found, [share] * len(found)

    def clear(self):
        """As a flush of SGLang's cache does; the bytes stay where they are."""

    def fill(self, pages, seed):
        generator = torch.Generator().manual_seed(seed)
        self.kv_buffer.copy_(torch.randn(self.kv_buffer.shape, generator=generator))
        return {page: self.bytes_of(page) for page in pages}

    def bytes_of(self, page):
        import ctypes

        return b"".join(ctypes.string_at(p, n) for p, n in zip(
            *self.get_page_buffer_meta(torch.arange(page * PAGE, (page + 1) * PAGE))))


def indices_of(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def config_of(daemon, *, tp_rank=0, tp_size=1, is_mla=False, **extra):
    return types.SimpleNamespace(
        tp_rank=tp_rank, tp_size=tp_size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=is_mla, enable_storage_metrics=False, is_page_first_layout=True,
        model_name="stand-in", tp_lcm_size=None, should_split_heads=False,
        extra_config={"socket": daemon.socket, "revision": "1", "timeout_ms": 1000 * LONG_S,
                      "interface_v1": 1, **extra})


def make(daemon, layout="page_first", is_mla=False, **named):
    backend = terrace.sglang.TerraceHiCache(config_of(daemon, is_mla=is_mla, **named), {})
    backend.register_mem_pool_host(HostPool(layout, is_mla))
    return backend


def hashes(count, prior=b""):
    """As SGLang chains them."""
    found = []
    for i in range(count):
        prior = hashlib.sha256(prior + bytes([i])).digest()
        found.append(prior.hex())
    return found


def wait_populated(client):
    while client.stats()["domain"]["segments_populated"] == 0:
        time.sleep(0.01)


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
@pytest.mark.parametrize("is_mla", [False, True])
def test_pages_come_back_in_any_layout(daemon, client, layout, is_mla):
    wait_populated(client)
    writer, reader = (make(daemon, layout, is_mla) for _ in range(2))
    keys, pages = hashes(6), [3, 9, 1, 30, 31, 7]
    right = writer.mem_pool_host.fill(pages, 1)
    assert reader.batch_exists(keys) == 0
    assert writer.batch_set_v1(keys, indices_of(pages)) == [True] * 6
    assert writer.batch_set_v1(keys, indices_of(pages)) == [True] * 6  # they exist
    assert reader.batch_exists(keys + ["ff" * 32]) == 6
    into = [20, 21, 22, 23, 24, 25]
    assert reader.batch_get_v1(keys + ["ff" * 32], indices_of(into + [26])) == [True] * 6 + [False]
    assert [reader.mem_pool_host.bytes_of(p) for p in into] == [right[p] for p in pages]
    assert reader.mem_pool_host.bytes_of(26) == bytes(len(right[3]))
    assert writer.counters["pages_stored"] == 6 and reader.counters["pages_hit"] == 6
    for backend in (writer, reader):
        assert backend.refusal is None
        backend.close()


def make_ranks(daemon, tp_size, lcm_size=2):
    """Of one instance, whose ranks together have lcm_size heads."""
    ranks = []
    for rank in range(tp_size):
        config = config_of(daemon, tp_rank=rank, tp_size=tp_size)
        config.tp_lcm_size, config.should_split_heads = lcm_size, tp_size < lcm_size
        pool = HostPool("page_head")
        pool.head_num = lcm_size // tp_size
        backend = terrace.sglang.TerraceHiCache(config, {})
        backend.register_mem_pool_host(pool)
        ranks.append(backend)
    return ranks


# PROMISE: T05 ranks of other numbers
@pytest.mark.parametrize("writing, reading", [(1, 2), (2, 1), (1, 1)])
def test_heads_are_shared_with_instances_of_other_tp_sizes(daemon, client, writing, reading,
                                                           monkeypatch):
    wait_populated(client)
    # Every rank's pool has HEADS heads in the stand-in: as many as the smallest share has.
    page_bytes = {}

    def meta(self, indices, original=HostPool.get_page_buffer_meta):
        pointers, sizes = original(self, indices)
        return pointers, [n * self.head_num // HEADS for n in sizes]

    monkeypatch.setattr(HostPool, "get_page_buffer_meta", meta)
    writers, readers = make_ranks(daemon, writing), make_ranks(daemon, reading)
    keys, pages = hashes(4), [5, 2, 8, 3]
    for number, writer in enumerate(writers):
        page_bytes[number] = writer.mem_pool_host.fill(pages, 10 + number)
    assert [reader.batch_exists(keys) for reader in readers] == [0] * reading
    for writer in writers:
        assert writer.batch_set_v1(keys, indices_of(pages)) == [True] * 4
        assert writer.counters["pages_stored"] == 4
    for reader in readers:
        assert reader.batch_exists(keys) == 4
        assert reader.batch_get_v1(keys + ["ff" * 32], indices_of([20, 21, 22, 23, 24])) == \
            [True] * 4 + [False]

    def heads(ranks, where):
        """K and V of each head of a page, over all ranks."""
        found = []
        for backend in ranks:
            whole = backend.mem_pool_host.bytes_of(where)
            count, half = backend.mem_pool_host.head_num, len(whole) // 2
            for head in range(count):
                found.append(tuple(whole[plane * half + head * half // count:
                                         plane * half + (head + 1) * half // count]
                                   for plane in (0, 1)))
        return found

    for into, page in zip((20, 21, 22, 23), pages):
        assert heads(readers, into) == heads(writers, page)
    assert all(backend.refusal is None for backend in writers + readers)
    readers[0].clear()  # one rank's shares alone
    assert [reader.batch_exists(keys) for reader in readers] == [0] + [4] * (reading - 1)
    for backend in writers + readers:
        backend.close()


def test_layouts_ranks_and_revisions_share_nothing(daemon, client):
    wait_populated(client)
    first = make(daemon)
    keys = hashes(2)
    first.mem_pool_host.fill([0, 1], 1)
    assert first.batch_set_v1(keys, indices_of([0, 1])) == [True, True]
    for other in (make(daemon, "page_head"), make(daemon, tp_rank=1, tp_size=2),
                  make(daemon, tp_rank=0, tp_size=2), make(daemon, revision="2")):
        assert other.batch_exists(keys) == 0
    assert make(daemon).batch_exists(keys) == 2


def test_of_a_latent_cache_rank_0_writes_and_all_read(daemon, client):
    wait_populated(client)
    ranks = [make(daemon, is_mla=True, tp_rank=rank, tp_size=4) for rank in range(4)]
    keys = hashes(3)
    for rank in (3, 2, 1):
        assert ranks[rank].batch_set_v1(keys, indices_of([0, 1, 2])) == [True] * 3
        assert ranks[rank].batch_exists(keys) == 0
    right = ranks[0].mem_pool_host.fill([0, 1, 2], 5)
    assert ranks[0].batch_set_v1(keys, indices_of([0, 1, 2])) == [True] * 3
    for rank in ranks:
        assert rank.batch_get_v1(keys, indices_of([4, 5, 6])) == [True] * 3
        assert rank.mem_pool_host.bytes_of(5) == right[1]


@pytest.mark.parametrize("tp_size, dcp_size", [(2, 2), (4, 2), (8, 4)])
def test_of_a_latent_cut_by_tokens_one_rank_a_shard_writes(daemon, client, tp_size, dcp_size):
    wait_populated(client)
    ranks = []
    for rank in range(tp_size):
        config = config_of(daemon, is_mla=True, tp_rank=rank, tp_size=tp_size)
        config.dcp_rank, config.dcp_size = rank % dcp_size, dcp_size
        backend = terrace.sglang.TerraceHiCache(config, {})
        backend.register_mem_pool_host(ShardedPool(dcp_size))
        assert backend.refusal is None
        ranks.append(backend)
    keys, right = hashes(3), {}
    for rank in reversed(range(tp_size)):
        right[rank % dcp_size] = ranks[rank].mem_pool_host.fill([0, 1, 2], 5 + rank % dcp_size)
        assert ranks[rank].batch_set_v1(keys, indices_of([0, 1, 2])) == [True] * 3
        assert ranks[rank].counters["pages_stored"] == (3 if rank < dcp_size else 0)
    for number, rank in enumerate(ranks):
        assert rank.batch_exists(keys) == 3
        assert rank.batch_get_v1(keys, indices_of([4, 5, 6])) == [True] * 3
        for into, page in ((4, 0), (5, 1), (6, 2)):
            assert rank.mem_pool_host.bytes_of(into) == right[number % dcp_size][page]
    for backend in ranks:
        backend.close()


def store(backend, keys, seed):
    right = backend.mem_pool_host.fill(range(len(keys)), seed)
    assert backend.batch_set_v1(keys, indices_of(range(len(keys)))) == [True] * len(keys)
    return right


def test_what_cannot_be_erased_is_not_used_any_more(daemon, client, caplog):
    wait_populated(client)
    backend = make(daemon, timeout_ms=2000)
    keys = hashes(3)
    store(backend, keys, 1)
    daemon.process.send_signal(19)
    backend.clear()
    daemon.process.send_signal(18)
    connect(daemon).close()
    assert "could not be erased" in caplog.text and backend.refusal is None
    assert backend.batch_exists(keys) == 0
    store(backend, keys, 2)  # in an epoch of its own, whatever becomes of the request
    assert make(daemon).batch_exists(keys) == 0


def test_a_prompt_stored_in_two_batches_is_one_chain(daemon, client):
    wait_populated(client)
    backend = make(daemon)
    keys = hashes(5)
    backend.mem_pool_host.fill(range(5), 1)
    assert all(backend.batch_set_v1(keys[:2], indices_of([0, 1])))
    more = types.SimpleNamespace(prefix_keys=keys[:2])
    assert all(backend.batch_set_v1(keys[2:], indices_of([2, 3, 4]), more))
    assert backend.batch_exists(keys) == 5
    (group,) = backend._pools["kv"].groups
    evicted = group.evict(backend._keys(group, keys[1:2]), with_descendants=True)
    assert evicted.block_count == 4
    assert backend.batch_exists(keys) == 1


def make_hybrid(daemon, **named):
    backend = make(daemon, **named)
    for name in ("swa", "dsa"):
        backend.register_mem_host_pool_v2(HostPool("page_first"), name)
        backend._pools[name].host.fill(range(40), len(name) + 1)
    return backend


def transfer(name, pages, keys, policy=hicache_storage.PoolHitPolicy.ALL_PAGES):
    return hicache_storage.PoolTransfer(name, indices_of(pages), keys, policy)


def test_a_hybrid_prefix_is_as_long_as_all_its_pools_allow(daemon, client):
    wait_populated(client)
    writer, reader = make_hybrid(daemon), make_hybrid(daemon)
    keys, trailing = hashes(6), hicache_storage.PoolHitPolicy.TRAILING_PAGES
    writer.mem_pool_host.fill(range(40), 7)
    assert all(writer.batch_set_v1(keys, indices_of(range(6))))

    def restorable(*transfers):
        result = reader.batch_exists_v2(keys, list(transfers))
        assert result.kv_hit_pages == max(result.restorable_prefix_pages, default=0)
        return result.restorable_prefix_pages

    two_of_swa = transfer("swa", [0, 1], keys[:2], trailing)
    assert restorable() == [1, 2, 3, 4, 5, 6] and restorable(two_of_swa) == []
    for last in (3, 6):  # windows of two pages at the ends of two prompts
        stored = writer.batch_set_v2([transfer("swa", [last - 2, last - 1], keys[last - 2:last])])
        assert stored == {"swa": [True, True]}
    assert restorable(two_of_swa) == [3, 6]
    assert restorable(transfer("swa", [0], keys[:1], trailing)) == [2, 3, 5, 6]
    assert restorable(two_of_swa, transfer("dsa", [0], keys)) == []
    assert writer.batch_set_v2([transfer("dsa", range(4), keys[:4])]) == {"dsa": [True] * 4}
    assert restorable(two_of_swa, transfer("dsa", [0], keys)) == [3]
    assert restorable(transfer("x", [0], keys, hicache_storage.PoolHitPolicy.BLOCK_GROUPS)) == [
        1, 2, 3, 4, 5, 6]
    got = reader.batch_get_v2([transfer("swa", [20, 21, 22], keys[4:] + ["ff" * 32]),
                               transfer("dsa", [30], keys[3:4]), transfer("x", [0], keys[:1])])
    assert got == {"swa": [True, True, False], "dsa": [True], "x": [False]}
    for name, pages in (("swa", {20: 4, 21: 5}), ("dsa", {30: 3})):
        for into, source in pages.items():
            assert (reader._pools[name].host.bytes_of(into)
                    == writer._pools[name].host.bytes_of(source))
    reader.clear()
    assert restorable(two_of_swa) == []
    assert writer.refusal is None and reader.refusal is None


def test_pools_beside_a_latent_cache_are_of_each_rank(daemon, client):
    wait_populated(client)
    ranks = [make_hybrid(daemon, is_mla=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    keys = hashes(1)
    assert ranks[1].batch_set_v2([transfer("swa", [0], keys)]) == {"swa": [True]}
    assert ranks[0].batch_get_v2([transfer("swa", [1], keys)]) == {"swa": [False]}
    assert ranks[1].batch_get_v2([transfer("swa", [1], keys)]) == {"swa": [True]}


def test_a_pool_that_says_nothing_of_its_pages_has_none(daemon, client, caplog):
    class Silent:
        def get_page_buffer_meta(self, indices):
            raise ValueError("page_first layout is needed")

    backend = make(daemon)
    backend.register_mem_host_pool_v2(Silent(), "mamba")
    assert "page_first layout is needed" in caplog.text and backend.refusal is None
    assert backend.batch_get_v2([transfer("mamba", [0], hashes(1))]) == {"mamba": [False]}


def test_nothing_raises_whatever_happens_to_the_daemon(daemon, client):
    wait_populated(client)
    backend = make(daemon, timeout_ms=300)
    chance = random.Random(1)
    wrong, stop = [], threading.Event()
    backend.mem_pool_host.fill(range(40), 1)
    right = {page: backend.mem_pool_host.bytes_of(page) for page in range(20)}

    def work(seed):
        mine = random.Random(seed)
        while not stop.is_set():
            first = mine.randrange(10)
            keys, pages = hashes(10)[:first + 1], list(range(first + 1))
            try:
                if seed == 0:
                    assert len(backend.batch_set_v1(keys, indices_of(pages))) == len(keys)
                elif seed == 1:
                    assert 0 <= backend.batch_exists(keys) <= len(keys)
                else:
                    got = backend.batch_get_v1(keys, indices_of([p + 20 for p in pages]))
                    wrong.extend(p for p, hit in zip(pages, got)
                                 if hit and backend.mem_pool_host.bytes_of(p + 20) != right[p])
            except BaseException as error:  # pylint: disable=broad-except
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        time.sleep(0.2 + chance.random() * 0.2)
        daemon.kill()
        time.sleep(0.1)
        daemon.start()
    hits = backend.counters["pages_hit"]
    deadline = time.monotonic() + LONG_S
    while backend.counters["pages_hit"] == hits and time.monotonic() < deadline:
        time.sleep(0.05)  # until the last daemon serves
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and backend.refusal is None
    assert backend.counters["pages_hit"] > hits


def transfer_for(name, indices, keys, is_trailing=False):
    policy = "TRAILING_PAGES" if is_trailing else "ALL_PAGES"
    return hicache_storage.PoolTransfer(name=name, keys=keys, host_indices=indices,
                                        hit_policy=hicache_storage.PoolHitPolicy[policy])


def make_controller(daemon, chance, tp_size, *, is_mla=False, window_pages=0, **named):
    ranks = []
    for rank in range(tp_size):
        backend = make(daemon, is_mla=is_mla, tp_rank=rank, tp_size=tp_size, **named)
        pools = {"kv": backend.mem_pool_host}
        if window_pages:
            pools["swa"] = HostPool("page_first")
            backend.register_mem_host_pool_v2(pools["swa"], "swa")
        ranks.append(sglang_engine.Rank(backend, pools, 0 if is_mla else rank))
    return sglang_engine.Controller(ranks, chance, transfer_for, page_count=TOKENS // PAGE,
                                    window_pages=window_pages)


def random_prompt(chance):
    """Prompts share heads of several lengths."""
    head, tail = chance.randrange(8), chance.randrange(30)
    return hashes(chance.randrange(1, 8), bytes([head])) + hashes(chance.randrange(0, 7),
                                                                  bytes([head, tail]))


@pytest.mark.parametrize("tp_size, named", [
    (1, {}), (2, {}), (4, {}), (2, {"is_mla": True}), (2, {"window_pages": 2}),
    (2, {"timeout_ms": 2000, "is_killed": True}),
    (1, {"timeout_ms": 2000, "is_killed": True, "window_pages": 2})])
def test_random_requests_keep_the_contract(daemon, client, tp_size, named):
    wait_populated(client)
    named, chance = dict(named), random.Random(tp_size)
    is_killed = named.pop("is_killed", False)
    engine = make_controller(daemon, chance, tp_size, **named)
    for number in range(REQUESTS):
        if is_killed and number % 100 == 50:
            daemon.kill()
        elif is_killed and number % 100 == 60:
            daemon.start()
        engine.run(random_prompt(chance))
    if is_killed and daemon.process.poll() is not None:
        daemon.start()
    assert engine.counts["finished"] > REQUESTS // 2
    assert engine.counts["loaded"] > (0 if is_killed else REQUESTS // 4)
    assert all(rank.backend.refusal is None for rank in engine.ranks)
    for rank in engine.ranks:
        rank.backend.close()
    with connect(daemon) as other:
        deadline = time.monotonic() + LONG_S
        while True:
            domain = other.stats()["domain"]
            if domain["lease_count"] == 0 and domain["reserved_count"] == 0:
                break
            assert time.monotonic() < deadline, domain


def test_what_is_missing_is_named_and_everything_misses(daemon, caplog):
    backend = terrace.sglang.TerraceHiCache(config_of(daemon, revision=""), {})
    backend.register_mem_pool_host(HostPool("page_first"))
    assert "revision" in backend.refusal and "revision" in caplog.text
    assert backend.batch_exists(hashes(2)) == 0
    assert backend.batch_get_v1(hashes(2), indices_of([0, 1])) == [False, False]
    assert backend.batch_set_v1(hashes(2), indices_of([0, 1])) == [False, False]
    backend.clear()
    backend.close()


@pytest.mark.parametrize("has_module", [True, False])
def test_hashes_that_name_no_adapter_are_refused_unless_there_is_none(daemon, monkeypatch, caplog,
                                                                      has_module):
    if has_module:
        monkeypatch.delattr("sglang.srt.mem_cache.utils.storage_namespace_seed")
    else:
        monkeypatch.delattr("sglang.srt.mem_cache.utils")
        monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.utils", None)
    refused = terrace.sglang.TerraceHiCache(config_of(daemon), {})
    assert "one_namespace" in refused.refusal and "LoRA" in caplog.text
    served = terrace.sglang.TerraceHiCache(config_of(daemon, one_namespace=True), {})
    assert served.refusal is None
    served.close()


def test_what_an_instance_asks_for_its_pages_is_theirs(daemon, client, caplog):
    wait_populated(client)
    backend = make(daemon, terrace_priority=70, terrace_ttl_s=600, terrace_no_store=True,
                   terrace_pin="perhaps", recompute_ns_per_token=5000)
    keys = hashes(4)
    backend.mem_pool_host.fill([1, 2, 3, 4], 1)
    assert backend.batch_set_v1(keys, indices_of([1, 2, 3, 4])) == [True] * 4
    (group,) = backend._pools["kv"].groups
    blocks = group.query(group.keys_of_digests([bytes.fromhex(key) for key in keys]))
    assert [(b.priority, b.is_no_store, b.is_pinned) for b in blocks] == [(70, True, False)] * 4
    texts = [record.getMessage() for record in caplog.records]
    assert sum("terrace_pin is 'perhaps'" in text for text in texts) == 1, texts
    assert backend.refusal is None
    backend.close()


def test_a_session_that_comes_with_a_call_and_the_cost_are_said(daemon, client, monkeypatch):
    wait_populated(client)
    backend, told = make(daemon, recompute_ns_per_token=5000), []
    group_type = terrace.group.Group
    for name in ("acquire", "reserve"):
        monkeypatch.setattr(group_type, name, lambda self, keys, *arguments, _call=getattr(
            group_type, name), **named: (told.append(named["hints"]),
                                         _call(self, keys, *arguments, **named))[1])
    info = hicache_storage.HiCacheStorageExtraInfo(
        extra_info={"session_id": "one", "terrace_priority": 0})
    keys = hashes(2)
    backend.batch_set_v1(keys, indices_of([1, 2]), info)
    backend.batch_get_v1(keys, indices_of([1, 2]), info)
    backend.batch_get_v1(keys, indices_of([1, 2]))
    assert [hints.recompute_ns_per_token for hints in told] == [5000] * 3
    assert [hints.priority for hints in told] == [0, None, None], "a question has no priority"
    assert told[0].session_hash == told[1].session_hash != 0 == told[2].session_hash
    backend.close()


@pytest.mark.parametrize("cost", [-1, 1 << 32, "much", 1.5])
def test_a_cost_that_cannot_be_is_named_and_passed_over(daemon, caplog, cost):
    backend = make(daemon, recompute_ns_per_token=cost)
    assert "recompute_ns_per_token" in caplog.text and backend.refusal is None
    backend.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_reader_gets_pages_and_sets_none(daemon, client, caplog, monkeypatch, is_known):
    """Not known: the role changed between the question and the store."""
    wait_populated(client)
    writer = make(daemon)
    keys, pages = hashes(3), [3, 9, 1]
    right = writer.mem_pool_host.fill(pages, 1)
    assert writer.batch_set_v1(keys, indices_of(pages)) == [True] * 3
    let_nobody_store(daemon)
    reader = make(daemon)
    if not is_known:
        monkeypatch.setattr(type(reader), "_is_reader", False)
    into = [20, 21, 22]
    with caplog.at_level("INFO"):
        assert reader.batch_get_v1(keys, indices_of(into)) == [True] * 3
        assert [reader.mem_pool_host.bytes_of(p) for p in into] == [right[p] for p in pages]
        for _ in range(2):
            assert reader.batch_set_v1(hashes(3, b"other"), indices_of(into)) == [False] * 3
        if is_known:  # root, whom tests may be, erases
            reader.clear()
    said = [r.getMessage() for r in caplog.records if "may only read" in r.getMessage()]
    assert len(said) == 1 and "writer_uids" in said[0]
    assert reader.refusal is None and reader.counters["pages_stored"] == 0
    assert client.stats()["domain"]["block_count"] == 3, "nothing was stored, nothing erased"
    for backend in (writer, reader):
        backend.close()
