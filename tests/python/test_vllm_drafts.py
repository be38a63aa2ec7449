"""Draft models whose layers have KV caches beside the model's, in one KV cache group with them or
in one of their own: an engine that enforces the contract of connectors, and a real daemon. What a
draft of EAGLE's kind keeps of a block follows from the token behind it, too; every byte that
attention would read is compared."""
import random
import types

import pytest

from vllm_driver import (PROMPT, REQUESTS, drive, drive_while_daemons_die, expect_nothing_held,
                         make_engine, run_prompt, terrace, vllm_engine, wait_connected,
                         wait_for_segments)

drafts = terrace.vllm.drafts
GROUPS = pytest.mark.parametrize("groups", [
    {"draft_groups": (0,)}, {"windows": (0, 0), "draft_groups": (1,), "block_count": 70},
    {"windows": (0, 20), "draft_groups": (1,), "block_count": 60}], ids=str)


@GROUPS
@pytest.mark.parametrize("how", [
    {}, {"tp_size": 2, "depth": 2}, {"depth": 3, "copy_threads": 2}], ids=str)
def test_random_requests_are_served_right(daemon, groups, how):
    wait_for_segments(daemon, 2)
    chance = random.Random(3)
    engine = make_engine(daemon, chance, **groups, **how)
    drive(engine, chance, REQUESTS // 2)
    assert engine.connector.side.refusal is None
    assert engine.counts["loaded_tokens"] > REQUESTS // 4
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 20
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("groups", [
    {"draft_groups": (0,)}, {"windows": (0, 20), "draft_groups": (1,)}], ids=str)
def test_instances_share_what_is_right(daemon, groups):
    """Small memories beside one daemon: most of what they read was stored by another one."""
    wait_for_segments(daemon, 2)
    for seed in range(6):
        chance = random.Random(seed)
        engine = make_engine(daemon, chance, block_count=44, **groups)
        drive(engine, chance, 60)
        assert engine.connector.side.refusal is None
        expect_nothing_held(daemon, engine)
    assert engine.counts["loaded_tokens"] > 60


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
@pytest.mark.parametrize("draft_max", [40, 60])
def test_what_steps_leave_out_is_not_stored(daemon, draft_max, method):
    for seed in range(4):
        chance = random.Random(seed)
        engine = make_engine(daemon, chance, draft_groups=(0,), draft_max=draft_max,
                             draft_method=method, block_count=44)
        drive(engine, chance, 60)
        assert engine.connector.side.refusal is None and engine.undrafted_count > 10
        expect_nothing_held(daemon, engine)


def test_daemons_die_under_it(daemon):
    chance = random.Random(4)
    engine = make_engine(daemon, chance, draft_groups=(0,), timeout_ms=2000)
    drive_while_daemons_die(daemon, engine, chance)
    engine.close()


def loaded_tokens(daemon, tokens, **of_request):
    engine = make_engine(daemon, random.Random(7), draft_groups=(0,))
    request = vllm_engine.Request("only", tokens, 1, 8)
    vars(request).update(of_request)
    engine.add(request)
    while engine.has_work:
        engine.step()
    assert engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)
    return engine.counts["loaded_tokens"]


def test_a_block_is_found_before_the_token_it_was_computed_before(daemon):
    head = PROMPT[:40]
    assert [loaded_tokens(daemon, PROMPT), loaded_tokens(daemon, PROMPT),
            loaded_tokens(daemon, head + [1] * 20), loaded_tokens(daemon, head + [1] * 20),
            loaded_tokens(daemon, head + PROMPT[40:41] + [1] * 20)] == [0, 72, 32, 56, 40]


def test_a_draft_model_of_its_own_reads_no_further(daemon):
    named = {"draft_method": "draft_model", "draft_groups": (0,)}
    engine = make_engine(daemon, random.Random(7), **named)
    assert drafts.drafting_of(engine.connector.side._config, ()) == (False, None)
    engine.close()


def test_blocks_of_vllms_own_cache_are_stored_where_they_are_right():
    book = drafts.Drafts(drafts.Drafting(True), 4)
    request = types.SimpleNamespace(all_token_ids=list(range(100, 120)))
    other = types.SimpleNamespace(all_token_ids=list(range(100, 108)) + [1] * 8)
    book.computed([[5, 6]], 0, request)
    assert book.are_right([[5, 6]], 2, request)
    assert not book.are_right([[5, 6]], 2, other) and book.are_right([[5, 6]], 1, other)
    assert not book.are_right([[5, 7]], 2, request) and book.are_right([[5, 0]], 2, request)
    book.written([[5, 6]], 1)
    assert book.are_right([[5]], 1, request) and not book.are_right([[5, 6]], 2, request)
    book.computed([[6]], 1, request, given_away={6})
    assert not book.are_right([[5, 6]], 2, request)


def test_what_a_step_writes_to_is_known_as_it_is_said():
    fences = terrace.vllm.fences.Fences(True, False)
    fences.write([[1, 2]], 1)
    assert fences.written() == {2}
    fences.write([[3], [4]], 0)
    assert fences.written() == {2, 3, 4}
    fences.take_fences()
    fences.write([[5]], 0)
    assert fences.written() == {5}


def test_another_image_behind_a_block_is_another_key(daemon):
    """Its tokens are the same, and the block's hash ends before it."""
    def loads(identifier, offset=40):
        place = types.SimpleNamespace(offset=offset, length=20)
        return loaded_tokens(daemon, PROMPT, mm_features=[
            types.SimpleNamespace(mm_position=place, identifier=identifier)])

    assert [loads("cat"), loads("cat"), loads("dog"), loads("cat", 39)] == [0, 72, 32, 32]


def test_a_prompt_of_embeddings_is_not_shared(daemon):
    assert [loaded_tokens(daemon, PROMPT, prompt_embeds="some") for _ in range(2)] == [0, 0]


def test_what_vllms_own_cache_has_is_stored_again_behind_it(daemon):
    """The daemon has lost it, and the engine has not."""
    engine = make_engine(daemon, random.Random(7), draft_groups=(0,))
    run_prompt(engine, "first")
    daemon.kill()
    daemon.start()
    wait_connected(engine)
    before = engine.connector.side.scheduler.counters["stored_blocks"]
    run_prompt(engine, "second")
    assert engine.connector.side.scheduler.counters["stored_blocks"] - before >= 9
    expect_nothing_held(daemon, engine)
    assert loaded_tokens(daemon, PROMPT) == 72


def configured(**speculation):
    named = {"method": "eagle", "num_speculative_tokens": 3, "uses_draft_kv_cache": lambda: True,
             "draft_model_config": types.SimpleNamespace(
                 model="a-draft", revision="r", hf_config=None, max_model_len=4096), **speculation}
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(model="m", max_model_len=4096, hf_config=None),
        load_config=types.SimpleNamespace(load_format="auto"),
        kv_transfer_config=types.SimpleNamespace(engine_id="one"),
        speculative_config=types.SimpleNamespace(**named))


@pytest.mark.parametrize("speculation, words", [
    ({}, None), ({"method": "eagle3"}, None), ({"method": "deepseek_mtp"}, None),
    ({"method": "draft_model"}, None),
    ({"method": "ngram", "uses_draft_kv_cache": lambda: False}, None),
    ({"method": "dflash"}, "the draft is of method 'dflash'"),
    ({"method": "eagle3", "parallel_drafting": True}, "'eagle3', in parallel"),
    ({"method": "mtp", "use_multi_module_mtp": lambda: True}, "read 3 tokens ahead"),
    ({"draft_model_config": types.SimpleNamespace(max_model_len=2048)},
     "takes sequences of 2048 tokens and the model of 4096")])
def test_drafts_that_are_not_certain_are_refused(speculation, words):
    found = drafts.refusal_of(configured(**speculation))
    assert (found is None) if words is None else words in found


def test_a_draft_that_is_refused_turns_the_connector_off(daemon):
    engine = make_engine(daemon, random.Random(7), draft_groups=(0,), draft_method="dspark")
    run_prompt(engine)
    assert "method 'dspark'" in engine.connector.side.refusal
    assert engine.counts["finished"] == 1
    engine.close()


def test_the_weights_of_a_draft_are_part_of_the_space():
    def weights(revision="1", **of_draft):
        config = configured()
        vars(config.speculative_config.draft_model_config).update(of_draft)
        return terrace.vllm.model.weights_of(config, revision)

    assert weights() == weights()
    assert len({weights(), weights(model="another"), weights(revision="2"),
                weights(dtype="torch.float16")}) == 4
    plain = configured(method="ngram", uses_draft_kv_cache=lambda: False)
    assert terrace.vllm.model.weights_of(plain, "1") == "1"
