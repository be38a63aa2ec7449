"""terrace.vllm beside another connector of vLLM's MultiConnector that loads: what that has not
brought, or not yet, is stored by nobody."""
import random
import types

import pytest

from vllm_driver import (PROMPT, REQUESTS, drive, expect_nothing_held, make_engine, run_prompt,
                         terrace, vllm_engine, wait_for_segments)
from vllm_engine_siblings import Sibling

BLOCKS = (len(PROMPT) - 1) // 8


def expect_right(daemon, block_count):
    """A second instance loads what is there of PROMPT: it compares every byte."""
    second = make_engine(daemon, random.Random(7))
    run_prompt(second)
    assert second.counts["loaded_tokens"] == 8 * block_count
    expect_nothing_held(daemon, second)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("hides_tables", [False, True])
@pytest.mark.parametrize("tp_size, depth", [(1, 1), (2, 2), (1, 3)])
def test_random_requests_beside_one_that_loads_keep_the_contract(daemon, is_async, hides_tables,
                                                                tp_size, depth):
    chance = random.Random(depth)
    sibling = Sibling(lambda request, local: chance.choice((0, 0, chance.randrange(6))), is_async,
                      lambda request: chance.choice((0, 0, 1, 3)), hides_tables)
    engine = make_engine(daemon, chance, sibling=sibling, tp_size=tp_size, depth=depth)
    drive(engine, chance, REQUESTS)
    counters = engine.connector.side.scheduler.counters
    assert engine.counts["its_tokens"] > REQUESTS and engine.counts["loaded_tokens"] > REQUESTS // 8
    assert engine.counts["rewound" if not is_async else "lost_loads"] > 0
    assert counters["stored_blocks"] > 20 and engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("fail_count", [0, 2, 5])
@pytest.mark.parametrize("depth, output_count", [(1, 1), (1, 20), (2, 1), (3, 20)])
def test_what_another_one_loads_within_a_step_is_stored_once_it_is_right(daemon, fail_count, depth,
                                                                        output_count):
    wait_for_segments(daemon, 2)
    fails = [fail_count]  # once
    engine = make_engine(daemon, random.Random(7), depth=depth, chunk_tokens=16, sibling=Sibling(
        lambda request, local: 5, fails=lambda request: fails.pop() if fails else 0))
    engine.add(vllm_engine.Request("only", PROMPT, output_count, 8))
    while engine.has_work:
        engine.step()
    assert engine.counts["rewound"] == bool(fail_count) and engine.counts["its_tokens"] == 40
    expect_nothing_held(daemon, engine)
    expect_right(daemon, BLOCKS)


@pytest.mark.parametrize("hides_tables", [False, True])
def test_of_a_request_that_ends_while_another_one_loads_nothing_is_stored(daemon, hides_tables):
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), sibling=Sibling(
        lambda request, local: 5, is_async=True, hides_tables=hides_tables))
    request = vllm_engine.Request("only", PROMPT, 1, 8)
    engine.add(request)
    engine.step()
    assert request.state == vllm_engine.LOADING and request.num_computed_tokens == 40
    engine.abort(request)
    while engine.has_work:
        engine.step()
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 0
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("keeps_blocks", [True, False])
def test_stores_under_way_that_no_fence_keeps_a_load_off_are_lost(keeps_blocks):
    """A load aside from the steps is not ordered behind the engine's kernels."""
    fences, step = terrace.vllm.fences.Fences(True, False, keeps_blocks), types.SimpleNamespace()
    for number in range(4):
        fences.begin(number, [[10 * number, 10 * number + 1]])
    fences.freed(2)
    fences.write([[5, 11]], 0)
    fences.load_beside([[5, 11]], 1)
    assert fences.take_lost(step) == [1] and fences.take_fences() == []
    fences.write([[]], 0)
    fences.load_beside([[]], 0)  # into blocks that nobody names
    assert fences.is_any_written
    assert fences.take_lost(step) == ([2] if keeps_blocks else [0, 2, 3])
    assert fences.take_fences() == [] and not fences.is_any_written
    fences.write([[1, 31]], 0)
    assert fences.take_lost(step) == [] and fences.take_fences() == ([0, 3] if keeps_blocks else [])


def test_a_load_within_a_step_is_certain_once_the_step_has_ended():
    steps = terrace.vllm.doubts.Steps()
    doubts = terrace.vllm.doubts.Doubts(steps)
    steps.begin()
    steps.begin()
    doubts.load([0, 4, 5])
    assert doubts.awaited([[3, 4, 5]], 2) == {4}
    steps.end()
    assert doubts.are_awaited({5})
    steps.end()
    assert not doubts.are_awaited({4, 5}) and doubts.awaited([[3, 4, 5]], 3) == frozenset()
    steps.begin()
    doubts.load([4])
    for _ in range(64):  # whose end nobody tells
        assert doubts.are_awaited({4})
        steps.begin()
    assert not doubts.are_awaited({4})
    doubts.fail({7})
    doubts.written([[6, 7, 8]], 0, 1)
    assert doubts.first_unfilled([[6, 8], [6, 7]]) == 1
    doubts.written([[6, 7, 8]], 1)
    assert doubts.first_unfilled([[6, 8], [6, 7]]) is None
