"""Each kind of model of the table in docs/INTEGRATIONS.md is served, or refused by name at the
start; the table says by which test, and this is the test of what has no other."""
import pathlib
import random
import re
import types

import pytest

from vllm_driver import (PROMPT, expect_nothing_held, make_engine, run_prompt, terrace,
                         vllm_engine)
from vllm_engine_worker import require

kinds = terrace.vllm.kinds
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "INTEGRATIONS.md"


def changed_engine(daemon, change, **options):
    def make(config, role, kv_cache_config):
        change(config, kv_cache_config.kv_cache_groups)
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    return vllm_engine.Engine(make, random.Random(3), socket=daemon.socket, **options)


def of_kind(name):
    kind = type(name, (types.SimpleNamespace,), {})

    def change(_, groups):
        for group in groups:
            group.kv_cache_spec = kind(**vars(group.kv_cache_spec))

    return change


@pytest.mark.parametrize("name", [
    "SinkFullAttentionSpec",
    "CrossAttentionSpec", "EncoderOnlyAttentionSpec", "RSWASpec",
    "CircularBufferSpec", "HiSparseHotSpec", "HiddenStateCacheSpec"])
def test_kinds_of_attention_that_are_refused(daemon, name):
    engine = changed_engine(daemon, of_kind(name))
    assert engine.connector.side.refusal.startswith(f"a KV cache group is a {name}")
    run_prompt(engine)  # vLLM serves on
    assert engine.counts["finished"] == 1
    engine.close()


def two_sizes(_, groups):
    groups[1].kv_cache_spec.block_size = 16


def prefill_shards(config, _):
    config.parallel_config.prefill_context_parallel_size = 2


@pytest.mark.parametrize("change, words", [
    (two_sizes, r"blocks of \[8, 16\] tokens"),
    (prefill_shards, "prefill_context_parallel_size is 2")])
def test_configurations_that_are_refused(daemon, change, words):
    engine = changed_engine(daemon, change, windows=(0, 20))
    assert re.search(words, engine.connector.side.refusal)
    run_prompt(engine)
    assert engine.counts["finished"] == 1
    engine.close()


def test_what_four_ranks_stored_is_none_of_twos_and_of_their_own_latents_all(daemon):
    """Shares of other sizes are other Spaces: nothing wrong is loaded, and nothing found. A latent
    is the same on every rank, so it is found whatever their number."""
    for is_latent, expected in ((False, 0), (True, 72)):
        first = make_engine(daemon, random.Random(7), tp_size=4, is_latent=is_latent)
        run_prompt(first)
        expect_nothing_held(daemon, first)
        second = make_engine(daemon, random.Random(7), tp_size=2, is_latent=is_latent)
        run_prompt(second)
        assert second.counts["loaded_tokens"] == expected
        expect_nothing_held(daemon, second)


def test_a_group_that_attends_both_ways_is_refused(daemon):
    def change(_, groups):
        groups[0].kv_cache_spec.non_causal = True

    engine = changed_engine(daemon, change)
    assert "that is non_causal" in engine.connector.side.refusal
    run_prompt(engine)
    assert engine.counts["finished"] == 1 and not engine.counts["loaded_tokens"]
    engine.close()


def test_a_window_that_is_computed_anew_is_refused(daemon):
    def bounded(_, groups):
        groups[1].kv_cache_spec.prefix_cacheable = False

    engine = changed_engine(daemon, bounded, windows=(0, 20), is_latent=True)
    assert "SlidingWindowMLASpec whose blocks are of no prefix" in engine.connector.side.refusal
    run_prompt(engine)
    assert engine.counts["finished"] == 1
    engine.close()


def windowed(**fields):
    spec = type("SlidingWindowSpec", (types.SimpleNamespace,), {})
    return spec(**{"block_size": 8, "sliding_window": 20, **fields})


def test_a_window_reaches_as_far_as_the_next_token_does_and_what_is_kept_beyond():
    assert kinds.window_of(windowed()) == 19
    assert kinds.window_of(windowed(extra_retained_tokens=3)) == 22
    assert kinds.window_of(windowed(sliding_window=1)) == 1


def test_layers_of_one_group_with_two_windows_are_refused():
    def refusal(*specs):
        group = types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(
            kv_cache_specs=dict(enumerate(specs))))
        return kinds.refusal_of(types.SimpleNamespace(kv_cache_groups=[group]))

    assert refusal(windowed(), windowed(num_kv_heads=2)) is None
    assert "windows of [19, 31] tokens: one is" in refusal(windowed(), windowed(sliding_window=32))


def rows():
    """Of the table of kinds."""
    text = PAGE.read_text()
    table = text[text.index("<!-- kinds -->"):].split("\n\n")[0].splitlines()[3:]
    for line in table:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_names_tests_that_are_there():
    found = list(rows())
    assert len(found) > 15
    for kind, verdict, why, tests in found:
        require(verdict in ("served", "refused", "left alone"), f"{kind}: {verdict}")
        require(why, f"{kind}: without a word")
        for name in re.findall(r"`(\w+\.py)::(\w+)`", tests):
            source = (ROOT / "tests" / "python" / name[0]).read_text()
            assert f"def {name[1]}(" in source, f"{kind}: {name}"
        assert re.search(r"`\w+\.py::\w+`", tests), f"{kind}: no test"
    assert PROMPT
