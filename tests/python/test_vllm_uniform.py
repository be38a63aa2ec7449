"""Models whose layers are of one kind and several sizes, in one KV cache group: DeepSeek V3.2 has
an indexer's keys beside each layer's latents. An engine that enforces the contract of connectors,
and a real daemon: every byte that attention would read is compared."""
import random

import pytest

from vllm_driver import (REQUESTS, drive, drive_while_daemons_die, expect_nothing_held, make_engine,
                         run_prompt, terrace, vllm_engine, wait_for_segments)
from vllm_engine_worker import FullAttentionSpec, Page, SlidingWindowSpec

LATENTS_AND_KEYS = {"is_latent": True, "layers": 4, "page_shape": [Page((8, 40)), Page((8, 12))]}
HEADS_OF_TWO_SIZES = {"layers": 3, "page_shape": [Page((2, 8, 16)), Page((2, 8, 24))]}
LATENTS_AND_HEADS = {"is_latent": True, "layers": 3, "page_shape": [
    Page((8, 40)), Page((8, 12)), Page((2, 8, 16), FullAttentionSpec)]}
KINDS = pytest.mark.parametrize("kind", [LATENTS_AND_KEYS, HEADS_OF_TWO_SIZES, LATENTS_AND_HEADS],
                                ids=["latents_and_keys", "two_sizes", "latents_and_heads"])


def served_right(daemon, **options):
    wait_for_segments(daemon, 4)
    chance = random.Random(5)
    engine = make_engine(daemon, chance, **options)
    drive(engine, chance, REQUESTS // 2)
    assert engine.connector.side.refusal is None
    assert engine.counts["loaded_tokens"] > REQUESTS // 4
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 20
    expect_nothing_held(daemon, engine)


@KINDS
@pytest.mark.parametrize("how", [
    {}, {"tp_size": 2, "depth": 2}, {"stages": [[2], [3]], "depth": 3}, {"copy_threads": 2}],
    ids=str)
def test_random_requests_are_served_right(daemon, kind, how):
    served_right(daemon, **kind, **how)


@pytest.mark.parametrize("windows, block_count", [((0, 20), 56), ((20,), 40)])
def test_random_requests_with_windows_are_served_right(daemon, windows, block_count):
    served_right(daemon, windows=windows, block_count=block_count, **HEADS_OF_TWO_SIZES)


@KINDS
def test_daemons_die_under_it(daemon, kind):
    chance = random.Random(6)
    engine = make_engine(daemon, chance, timeout_ms=2000, **kind)
    drive_while_daemons_die(daemon, engine, chance)
    assert engine.connector.side.refusal is None
    engine.close()


def shares_of(engine):
    return [(share, piece.rank_count, sum(piece.part_bytes)) for _, _, piece, share
            in engine.connector.side.layout.shares()]


def test_another_instance_loads_all_sizes(daemon):
    wait_for_segments(daemon, 2)
    for expected in (0, 72):
        engine = make_engine(daemon, random.Random(7), tp_size=2, **LATENTS_AND_HEADS)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == expected
        # Each latent once, each head's share: of 9 blocks of one layer each.
        assert shares_of(engine) == [(0, 1, 640), (0, 1, 192), (0, 2, 512), (1, 2, 512)]
        for worker in engine.workers:
            loaded = worker.connector.side.worker.counters["loaded_bytes"]
            assert loaded >= expected // 8 * (640 + 192 + 512)
        expect_nothing_held(daemon, engine)


def test_what_two_ranks_stored_of_latents_and_keys_four_load(daemon):
    wait_for_segments(daemon, 2)
    for tp_size, expected in ((2, 0), (4, 72)):
        engine = make_engine(daemon, random.Random(7), tp_size=tp_size, **LATENTS_AND_KEYS)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == expected
        expect_nothing_held(daemon, engine)


def test_layers_that_keep_other_tokens_are_refused_by_name(daemon):
    def changed(config, role, kv_cache_config):
        for group in kv_cache_config.kv_cache_groups:
            for name, spec in list(getattr(group.kv_cache_spec, "kv_cache_specs", {}).items())[1:]:
                group.kv_cache_spec.kv_cache_specs[name] = SlidingWindowSpec(
                    **vars(spec), sliding_window=20)
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    engine = vllm_engine.Engine(changed, random.Random(3), socket=daemon.socket,
                                **HEADS_OF_TWO_SIZES)
    run_prompt(engine)  # vLLM serves on
    assert engine.counts["finished"] == 1
    assert "layers that are FullAttentionSpec and SlidingWindowSpec" in \
        engine.connector.side.refusal
    engine.close()


def test_a_codec_is_refused_by_name(daemon):
    engine = make_engine(daemon, random.Random(3), codec="int8", **LATENTS_AND_KEYS)
    assert "a KV cache group is a MLAAttentionSpec" in engine.connector.side.refusal
    engine.close()
