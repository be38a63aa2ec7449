"""terrace.vllm with `head_units`: instances of other numbers of tensor parallel ranks share blocks,
which are stored by heads. Each head's numbers follow from which of the model's it is, and every
byte that attention would read is compared, on the host's threads and on the simulated GPU. What
cannot be cut by heads is refused by name."""
import itertools
import random

import pytest
import torch

import sim_gpu
from vllm_driver import (REQUESTS, connect, drive, drive_while_daemons_die, expect_nothing_held,
                         make_engine, random_request, run_prompt, terrace, vllm_engine,
                         wait_for_segments)
from vllm_engine import Chunk
from vllm_engine_worker import CodedWorker, HostMemory, Page, TokensFirst, Worker

WHOLE = 72  # tokens of PROMPT that a hit has: the last block is computed
HEADS, HEAD_SIZE = 8, 16


@pytest.fixture(name="gpu")
def simulated_gpu(monkeypatch):
    monkeypatch.setattr(terrace.vllm.worker_role, "CudaEngine", sim_gpu.Engine)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (9, 0))

    def fresh(seed):
        sim_gpu.configure(seed, store_slowness=30)
        return {"memory": sim_gpu.Memory, "plugin_path": sim_gpu.plugin_path()}

    return fresh


def of_ranks(daemon, ranks, chance=None, kv_heads=HEADS, **options):
    """An instance of so many tensor parallel ranks; blocks are of `head_units` units."""
    options = {"head_units": kv_heads, "worker": CodedWorker, "kernels": "FLASH_ATTN",
               "kv_heads": kv_heads, "tp_size": ranks,
               "page_shape": (max(1, kv_heads // ranks), 8, 2 * HEAD_SIZE), **options}
    if options["head_units"] is None:
        del options["head_units"]
    return make_engine(daemon, chance or random.Random(7), **options)


def expect_on(engine):
    assert engine.connector.side.refusal is None
    assert all(worker.connector.side.refusal is None for worker in engine.workers)


def loaded_by(daemon, ranks, **options):
    """Tokens of PROMPT that such an instance finds; all of them are compared, on all ranks."""
    engine = of_ranks(daemon, ranks, **options)
    run_prompt(engine)
    expect_on(engine)
    expect_nothing_held(daemon, engine)
    return engine.counts["loaded_tokens"]


@pytest.mark.parametrize("stored, loaded", [(4, 2), (2, 4), (1, 4), (4, 1), (8, 2), (2, 8)])
@pytest.mark.parametrize("how", ["host", "tokens first", "gpu"])
def test_what_some_ranks_stored_others_load(daemon, gpu, how, stored, loaded):
    wait_for_segments(daemon, 2)
    options = {"worker": TokensFirst} if how == "tokens first" else {}
    for ranks, expected in ((stored, 0), (loaded, WHOLE), (stored, WHOLE)):
        more = gpu(ranks) if how == "gpu" else options
        assert loaded_by(daemon, ranks, **more) == expected


def test_units_of_several_heads_and_the_number_of_ranks_alone_decide_nothing(daemon):
    wait_for_segments(daemon, 2)
    assert loaded_by(daemon, 4, head_units=4) == 0
    assert loaded_by(daemon, 2, head_units=4) == WHOLE
    assert loaded_by(daemon, 4, head_units=8) == 0, "other units are another group"
    assert loaded_by(daemon, 4, head_units=None) == 0, "and so is a rank's own share"
    assert loaded_by(daemon, 4, head_units=None) == WHOLE
    assert loaded_by(daemon, 2, head_units=None) == 0


def test_of_more_ranks_than_heads_the_first_of_each_writes(daemon):
    wait_for_segments(daemon, 2)
    engine = of_ranks(daemon, 8, kv_heads=4)
    run_prompt(engine)
    expect_on(engine)
    halves = [worker.connector.side.worker for worker in engine.workers]
    assert [half.counters["stored_bytes"] > 0 for half in halves] == [True, False] * 4
    assert [[share.member for share in half.shares] for half in halves] == [
        [rank // 2] for rank in range(8)]
    expect_nothing_held(daemon, engine)
    for ranks in (2, 8, 1, 4):
        assert loaded_by(daemon, ranks, kv_heads=4) == WHOLE


@pytest.mark.parametrize("missing", [0, 2, 3])
def test_without_one_rank_s_share_nobody_has_the_block(daemon, missing):
    wait_for_segments(daemon, 2)
    engine = of_ranks(daemon, 4)
    half = engine.workers[missing].connector.side.worker

    def fails(store):
        raise terrace.Unavailable(f"store {store.number} of rank {missing}")

    half._store = fails
    run_prompt(engine)
    expect_nothing_held(daemon, engine)
    with connect(daemon) as client:
        assert client.stats()["domain"]["block_count"] == 0
    assert loaded_by(daemon, 2) == 0
    assert loaded_by(daemon, 4) == WHOLE, "those two have stored it"


def test_kernels_that_pack_heads_share_with_their_own_kind_alone(daemon, monkeypatch):
    wait_for_segments(daemon, 2)
    assert loaded_by(daemon, 4, kernels="CPU_ATTN") == 0
    assert loaded_by(daemon, 2, kernels="CPU_ATTN") == WHOLE
    assert loaded_by(daemon, 2, kernels="TRITON_ATTN") == 0
    assert loaded_by(daemon, 4, kernels="FLASHINFER") == WHOLE
    monkeypatch.setattr(terrace.vllm.model, "packing_of", lambda tensor: "other instructions")
    assert loaded_by(daemon, 2, kernels="FLASH_ATTN") == WHOLE
    assert loaded_by(daemon, 2, kernels="CPU_ATTN") == 0


KINDS = [{}, {"windows": (0, 20), "block_count": 56}, {"windows": (24,)},
         {"stages": [[2], [1]], "depth": 2}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("how", ["host", "gpu"])
def test_random_requests_of_instances_side_by_side_are_served_right(daemon, gpu, kind, how):
    """They store and load at the same time, what themselves and what others have computed."""
    wait_for_segments(daemon, 4)
    chance = random.Random(5)
    more = gpu(5) if how == "gpu" else {"depth": 3}
    request_count = REQUESTS // (8 if how == "gpu" else 4)
    engines = [of_ranks(daemon, ranks, chance, **{**more, **kind}) for ranks in (4, 2, 1)]
    numbers = itertools.count()
    while any(engine.has_work for engine in engines) or next(numbers) == 0:
        for engine in engines:
            while engine.counts["added"] < request_count and len(engine.waiting) < 3:
                engine.add(random_request(next(numbers), chance))
                engine.counts["added"] += 1
            engine.step()
    for engine in engines:
        expect_on(engine)
        assert engine.counts["loaded_tokens"] > REQUESTS // 4
        assert engine.connector.side.scheduler.held_count == 0
    for engine in engines[1:]:
        engine.close()
    expect_nothing_held(daemon, engines[0])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_instance_after_the_other_is_served_right(daemon, kind):
    wait_for_segments(daemon, 4)
    for ranks in (4, 2, 8, 1):
        chance = random.Random(ranks)
        engine = of_ranks(daemon, ranks, chance, **kind)
        drive(engine, chance, max(REQUESTS // 8, 25))  # of fewer none may have been stored before
        expect_on(engine)
        assert engine.counts["loaded_tokens"] > REQUESTS // 4
        expect_nothing_held(daemon, engine)


def test_daemons_die_under_it(daemon):
    for ranks in (4, 2):
        chance = random.Random(ranks)
        engine = of_ranks(daemon, ranks, chance, timeout_ms=2000)
        drive_while_daemons_die(daemon, engine, chance)
        expect_on(engine)
        engine.close()


class Near(HostMemory):
    """What is read is within a codec's bound of what was written: int8, of magnitudes up to 8."""

    @staticmethod
    def is_same(seen, values):
        return float(abs(seen - values).max()) <= 8 / 254 * 1.01


def test_a_codec_s_blocks_are_shared_by_heads_too(daemon):
    wait_for_segments(daemon, 2)
    options = {"codec": "int8", "memory": Near}
    assert loaded_by(daemon, 4, **options) == 0
    for ranks in (2, 8, 1):
        assert loaded_by(daemon, ranks, **options) == WHOLE
    assert loaded_by(daemon, 2) == 0


REFUSALS = [
    ("head_units is 'four': it is a whole number", {"head_units": "four"}),
    ("head_units is 0: it is a whole number", {"head_units": 0}),
    ("head_units is True: it is a whole number", {"head_units": True}),
    ("head_units is 3, and the model has 8 KV heads, which it does not divide", {"head_units": 3}),
    ("head_units is 16, and the model has 8 KV heads", {"head_units": 16}),
    ("head_units is 2, and tensor_parallel_size is 4: a rank would have a part of a unit; use 8",
     {"head_units": 2}),
    ("head_units is 2, and tensor_parallel_size is 8: a rank would have a part of a unit; use 4",
     {"tp_size": 8, "kv_heads": 4, "head_units": 2, "page_shape": (1, 8, 32)}),
    ("with 3 pipeline stages and 3 KV cache groups it makes 72 members of a block, the limit is "
     "64: use at most 7", {"stages": [[1, 1, 1]] * 3, "windows": (0, 20, 40)}),
    ("with 8 pipeline stages and 1 KV cache groups it makes 65 members of a block, the limit is "
     "64: use at most 7", {"stages": [[1]] * 8, "windows": (20,)}),
    ("head_units is 8, and a KV cache group is a MLAAttentionSpec", {"is_latent": True}),
    ("head_units is 8, and a KV cache group is a MambaSpec", {"windows": (0, vllm_engine.STATE)}),
    ("head_units is 8, and a KV cache group is a ChunkedLocalAttentionSpec",
     {"windows": (0, Chunk(24))}),
    ("head_units is 8, and decode_context_parallel_size is 2", {"shards": 2}),
    ("head_units is 8, and cache_dtype is 'fp8_e4m3'", {"cache_dtype": "fp8_e4m3"}),
    ("head_units is 8, and there is a draft (eagle)", {"draft_groups": (0,)}),
    ("head_units is 8, and a KV cache group has layers of 2 sizes",
     {"layers": 3, "page_shape": [Page((2, 8, 32)), Page((2, 8, 64))]}),
    ("head_units is 8, and the attention kernels are ROCM_ATTN: how their pages lie is known of "
     "FLASH_ATTN, TRITON_ATTN, FLASHINFER, CPU_ATTN; leave head_units out",
     {"kernels": "ROCM_ATTN"}),
    ("head_units is 8, and the attention kernels are unknown", {"kernels": None}),
    ("head_units is 8, and a layer's shape is (40, 2, 8, 16)", {"page_shape": (2, 8, 16)}),
    ("head_units is 8, and a layer is of int16", {"worker": Worker})]


@pytest.mark.parametrize("sentence, options", REFUSALS, ids=[each[0][:60] for each in REFUSALS])
def test_what_is_not_cut_by_heads_is_refused_by_name(daemon, sentence, options):
    engine = of_ranks(daemon, **{"ranks": 4, **options})
    assert sentence in engine.workers[0].connector.side.refusal
    assert sentence in engine.connector.side.refusal
    run_prompt(engine)  # vLLM serves on
    assert engine.counts["finished"] == 1 and engine.counts["loaded_tokens"] == 0
    engine.close()


def changed(daemon, change):
    def make(config, role, kv_cache_config):
        change(config, kv_cache_config.kv_cache_groups)
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    return vllm_engine.Engine(make, random.Random(3), socket=daemon.socket, head_units=8,
                              kv_heads=8, tp_size=4, kernels="FLASH_ATTN",
                              page_shape=(2, 8, 32))


def other_heads(_, groups):
    groups[0].kv_cache_spec.num_kv_heads = 1


def says_nothing(config, _):
    vars(config.model_config).pop("get_total_num_kv_heads", None)


@pytest.mark.parametrize("change, sentence", [
    (other_heads, "a KV cache group has 1 heads a rank, where the model's 8 KV heads make 2"),
    (says_nothing, "this vLLM does not say how many KV heads the model has")])
def test_models_of_which_the_heads_are_not_certain_are_refused(daemon, change, sentence):
    engine = changed(daemon, change)
    assert sentence in engine.connector.side.refusal
    run_prompt(engine)
    assert engine.counts["finished"] == 1
    engine.close()
