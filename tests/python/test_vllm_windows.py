"""Models whose layers all have a window, as Mistral 7B's, or all states, as Mamba's; latents with a
window: an engine that enforces the contract of connectors, and a real daemon. Every byte that
attention would read is compared."""
import random

import pytest

from vllm_driver import (REQUESTS, drive, drive_while_daemons_die, expect_nothing_held,
                         make_engine, run_prompt, wait_for_segments)
from vllm_engine import STATE

WINDOWS = pytest.mark.parametrize("windows", [(24,), (24, 40), (STATE,), (STATE, STATE)], ids=str)


@WINDOWS
@pytest.mark.parametrize("how", [{}, {"tp_size": 2}, {"depth": 3}, {"stages": 2}], ids=str)
def test_random_requests_are_served_right(daemon, windows, how):
    wait_for_segments(daemon, 4)
    chance = random.Random(3)
    how = dict(how)
    if "stages" in how:
        how["stages"] = [[1] * len(windows), [2] * len(windows)]
    engine = make_engine(daemon, chance, windows=windows, **how)
    drive(engine, chance, REQUESTS // 2)
    assert engine.connector.side.refusal is None
    assert engine.counts["loaded_tokens"] > 0
    expect_nothing_held(daemon, engine)


@WINDOWS
def test_daemons_die_under_it(daemon, windows):
    chance = random.Random(4)
    engine = make_engine(daemon, chance, windows=windows, timeout_ms=2000)
    drive_while_daemons_die(daemon, engine, chance)
    assert engine.connector.side.refusal is None
    engine.close()


def test_another_instance_loads_the_window_alone(daemon):
    wait_for_segments(daemon, 2)
    first = make_engine(daemon, random.Random(7), windows=(20,))
    run_prompt(first)
    expect_nothing_held(daemon, first)
    second = make_engine(daemon, random.Random(7), windows=(20,))
    run_prompt(second)
    assert second.counts["loaded_tokens"] == 72
    loaded = second.workers[0].connector.side.worker.counters["loaded_bytes"]
    space = second.workers[0].connector.side.worker.group.spec.members[0]
    assert loaded == 3 * space.block_bytes  # of nine: 19 tokens before the next one
    expect_nothing_held(daemon, second)


def test_what_is_lost_on_its_way_costs_the_whole_hit(daemon, monkeypatch):
    wait_for_segments(daemon, 2)
    first = make_engine(daemon, random.Random(7), windows=(20,))
    run_prompt(first)
    first.close()
    second = make_engine(daemon, random.Random(7), windows=(20,))
    half = second.workers[0].connector.side.worker
    monkeypatch.setattr(half, "_copy", lambda load, deadline: len(load.block_ids[0]) - 1)
    run_prompt(second)
    assert second.counts["lost_loads"] == 1 and second.counts["finished"] == 1
    expect_nothing_held(daemon, second)


def test_another_instance_loads_the_last_state_alone(daemon):
    wait_for_segments(daemon, 2)
    first = make_engine(daemon, random.Random(7), windows=(STATE,))
    run_prompt(first)
    expect_nothing_held(daemon, first)
    second = make_engine(daemon, random.Random(7), windows=(STATE,))
    run_prompt(second)
    assert second.counts["loaded_tokens"] == 72
    half = second.workers[0].connector.side.worker
    assert half.counters["loaded_bytes"] == half.group.spec.members[0].block_bytes
    expect_nothing_held(daemon, second)


@pytest.mark.parametrize("windows, how", [
    ((0, 20), {}), ((0, 20), {"tp_size": 2, "depth": 2}), ((24,), {"tp_size": 2}),
    ((0, 20), {"copy_threads": 2, "depth": 3})], ids=str)
def test_random_requests_of_latents_with_a_window_are_served_right(daemon, windows, how):
    wait_for_segments(daemon, 4)
    chance = random.Random(3)
    engine = make_engine(daemon, chance, windows=windows, block_count=56, is_latent=True, **how)
    drive(engine, chance, REQUESTS // 2)
    assert engine.connector.side.refusal is None
    assert engine.counts["loaded_tokens"] > REQUESTS // 4
    expect_nothing_held(daemon, engine)


def test_what_two_ranks_stored_of_latents_with_a_window_one_loads(daemon):
    wait_for_segments(daemon, 2)
    for tp_size, expected in ((2, 0), (1, 72)):
        engine = make_engine(daemon, random.Random(7), tp_size=tp_size, windows=(0, 20),
                             is_latent=True)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == expected
        expect_nothing_held(daemon, engine)
