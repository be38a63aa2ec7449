"""terrace.vllm with `codec`: pages of numbers go through one of Terrace's codecs, on the host's
threads and on the simulated GPU. What attention reads is near what was computed, never another
block's; what a codec cannot read is refused by name."""
import random
import types

import numpy
import pytest
import torch

import sim_gpu
from vllm_driver import (REQUESTS, connect, drive, expect_nothing_held, make_engine, run_prompt,
                         terrace, vllm_engine, wait_for_segments)
from vllm_engine_worker import CodedWorker, HostMemory, TokensFirst, Worker

coded = terrace.vllm.coded
# Values are at most 8 in magnitude; docs/CODECS.md has the bounds.
ERRORS = {"int8": 8 / 254 * 1.01, "fp8": 8 / 16, "int4": 16.1 / 30 * 1.01}


def memory_of(codec, kind):
    """Where what is read is near what was written."""

    class Near(kind):
        @staticmethod
        def is_same(seen, values):
            return float(numpy.abs(seen - values).max()) <= ERRORS[codec]

    return Near


@pytest.fixture(name="gpu")
def simulated_gpu(monkeypatch):
    monkeypatch.setattr(terrace.vllm.worker_role, "CudaEngine", sim_gpu.Engine)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (9, 0))

    def fresh(codec, seed):
        sim_gpu.configure(seed, store_slowness=30)
        return {"memory": memory_of(codec, sim_gpu.Memory), "plugin_path": sim_gpu.plugin_path()}

    return fresh


def coded_engine(daemon, chance, codec, **options):
    options = {"worker": CodedWorker, "kernels": "FLASH_ATTN", "page_shape": (2, 8, 32),
               "memory": memory_of(codec, HostMemory) if codec else HostMemory, **options}
    return make_engine(daemon, chance, **({"codec": codec} if codec else {}), **options)


@pytest.mark.parametrize("codec", coded.CODECS)
@pytest.mark.parametrize("how, windows, block_count", [
    ("host", (0,), 40), ("gpu", (0,), 40), ("gpu", (0, 20), 56)])
def test_random_requests_keep_the_contract(daemon, gpu, codec, how, windows, block_count):
    chance = random.Random(5)
    options = gpu(codec, 5) if how == "gpu" else {}
    engine = coded_engine(daemon, chance, codec, tp_size=2, depth=2, windows=windows,
                          block_count=block_count, **options)
    drive(engine, chance, REQUESTS // 2)
    assert engine.counts["loaded_tokens"] > REQUESTS // 8
    assert engine.connector.side.refusal is None
    assert all(worker.connector.side.refusal is None for worker in engine.workers)
    expect_nothing_held(daemon, engine)


def test_blocks_are_smaller_and_nobody_else_s(daemon):
    wait_for_segments(daemon, 2)
    raw = 2 * 2 * 8 * 32 * 4  # layers, heads, tokens, keys and values, fp32
    for codec in (None, *coded.CODECS):
        engine = coded_engine(daemon, random.Random(7), codec)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == 0, f"{codec}: what another codec has stored"
        (space,) = engine.connector.side.spaces()
        assert space.block_bytes == raw if codec is None else space.block_bytes < raw / 2
        assert space.quantisation == ("auto" if codec is None else f"terrace:{codec}")
        expect_nothing_held(daemon, engine)
        engine = coded_engine(daemon, random.Random(7), codec)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == 72
        expect_nothing_held(daemon, engine)


def test_instances_share_whatever_their_strides_kernels_and_versions_are(daemon, gpu, monkeypatch):
    wait_for_segments(daemon, 2)
    first = coded_engine(daemon, random.Random(7), "int8")
    run_prompt(first)
    expect_nothing_held(daemon, first)
    for options in ({"worker": TokensFirst, "kernels": "TRITON_ATTN"}, gpu("int8", 3)):
        engine = coded_engine(daemon, random.Random(7), "int8", **options)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == 72
        expect_nothing_held(daemon, engine)
    monkeypatch.setattr(terrace.vllm.model.platform, "machine", lambda: "another")
    engine = coded_engine(daemon, random.Random(7), "int8")
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 72
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("sentence, options", [
    ("codec is 'int7': there are int8, fp8, int4", {"codec": "int7"}),
    ("a KV cache group is a MLAAttentionSpec", {"is_latent": True}),
    ("a KV cache group is a MambaSpec", {"windows": (0, vllm_engine.STATE)}),
    ("cache_dtype is 'fp8_e4m3'", {"cache_dtype": "fp8_e4m3"}),
    ("the attention kernels are CPU_ATTN", {"kernels": "CPU_ATTN"}),
    ("the attention kernels are unknown", {"kernels": None}),
    ("a layer's shape is (40, 2, 8, 16)", {"page_shape": (2, 8, 16)}),
    ("a layer is of int16", {"worker": Worker})])
def test_what_a_codec_cannot_read_is_refused_by_name(daemon, sentence, options):
    options = {"worker": CodedWorker, "kernels": "FLASH_ATTN", "page_shape": (2, 8, 32),
               "codec": "int8", **options}
    engine = make_engine(daemon, random.Random(7), **options)
    assert sentence in engine.workers[0].connector.side.refusal
    assert sentence in engine.connector.side.refusal
    run_prompt(engine)
    assert engine.counts["finished"] == 1 and engine.counts["loaded_tokens"] == 0
    engine.close()


def test_tokens_that_are_shared_out_are_refused_by_name():
    config = types.SimpleNamespace(
        cache_config=types.SimpleNamespace(cache_dtype="auto"),
        parallel_config=types.SimpleNamespace(decode_context_parallel_size=2))
    caches = types.SimpleNamespace(kv_cache_groups=[])
    assert "decode_context_parallel_size is 2" in coded.refusal_of_codec("int8", config, caches)
    assert coded.refusal_of_codec(None, config, caches) is None


def test_kernels_whose_blocks_are_smaller_than_vllm_s():
    spec = types.SimpleNamespace(num_kv_heads=2, head_size=16, block_size=32)
    tensor = torch.zeros(20, 2, 16, 32)
    asked = coded.Asked("codec", "fp8")
    pages, why = coded.pages_of(asked, spec, [tensor, tensor[:]], "FLASHINFER", 10)
    assert why == "" and pages.kernel_tokens == 16 and len(pages.layers) == 1, "shared by layers"
    assert tuple(pages.layers[0].shape) == (20, 2, 16, 2, 16)


def test_a_page_with_a_nan_is_not_stored_and_harms_nobody(daemon, monkeypatch):
    wait_for_segments(daemon, 2)
    right = CodedWorker.right_bytes

    def wrong(self, *arguments):
        values = right(self, *arguments).copy()
        values[3] = numpy.nan
        return values

    engine = coded_engine(daemon, random.Random(7), "int8")
    monkeypatch.setattr(CodedWorker, "right_bytes", wrong)
    monkeypatch.setattr(engine.workers[0].memory, "is_same", lambda seen, values: True)
    run_prompt(engine)
    assert engine.counts["finished"] == 1 and engine.connector.side.refusal is None
    with connect(daemon) as client:
        assert client.stats()["domain"]["block_count"] == 0
    expect_nothing_held(daemon, engine)
