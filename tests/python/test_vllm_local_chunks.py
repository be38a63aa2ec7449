"""Models with chunked local attention, as Llama 4's: the next token attends to its own chunk of the
prompt alone, beside layers of full attention. An engine that enforces the contract of connectors,
and a real daemon: every byte that attention would read is compared."""
import random

import pytest

from vllm_driver import (PROMPT, REQUESTS, drive, drive_while_daemons_die, expect_nothing_held,
                         make_engine, run_prompt, vllm_engine, wait_for_segments)
from vllm_engine import Chunk

WINDOWS = pytest.mark.parametrize("windows, block_count", [
    ((0, Chunk(24)), 56), ((0, Chunk(20)), 56), ((Chunk(16), 0, 20), 80), ((Chunk(24),), 40)],
    ids=str)


@WINDOWS
@pytest.mark.parametrize("how", [
    {}, {"tp_size": 2, "chunk_tokens": 20}, {"depth": 3, "copy_threads": 2}, {"stages": 2}],
    ids=str)
def test_random_requests_are_served_right(daemon, windows, block_count, how):
    wait_for_segments(daemon, 4)
    chance = random.Random(3)
    how = dict(how)
    if "stages" in how:
        how["stages"] = [[1] * len(windows), [2] * len(windows)]
    engine = make_engine(daemon, chance, windows=windows, block_count=block_count, **how)
    drive(engine, chance, REQUESTS // 2)
    assert engine.connector.side.refusal is None
    assert engine.counts["loaded_tokens"] > 0
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 20
    expect_nothing_held(daemon, engine)


@WINDOWS
def test_daemons_die_under_it(daemon, windows, block_count):
    chance = random.Random(4)
    engine = make_engine(daemon, chance, windows=windows, block_count=block_count, timeout_ms=2000)
    drive_while_daemons_die(daemon, engine, chance)
    assert engine.connector.side.refusal is None
    engine.close()


def loaded(daemon, tokens, windows):
    """Tokens, and bytes in blocks of one member, that an instance loads for a prompt."""
    engine = make_engine(daemon, random.Random(7), windows=windows, chunk_tokens=16)
    engine.add(vllm_engine.Request("only", tokens, 1, 8))
    while engine.has_work:
        engine.step()
    half = engine.workers[0].connector.side.worker
    found = half.counters["loaded_bytes"] / half.group.spec.members[0].block_bytes
    expect_nothing_held(daemon, engine)
    return engine.counts["loaded_tokens"], found


@pytest.mark.parametrize("length, expected", [
    (80, (72, 9 + 3)),  # of [48, 96): 48 to 71
    (97, (96, 12)),  # where a chunk begins nothing of it is needed
    (89, (88, 11 + 5))])
def test_a_hit_loads_its_last_chunk_alone(daemon, length, expected):
    """In chunks of 48 tokens and blocks of 8."""
    wait_for_segments(daemon, 2)
    tokens = [*PROMPT, *range(200, 230)][:length]
    assert loaded(daemon, tokens, (0, Chunk(48))) == (0, 0)
    assert loaded(daemon, tokens, (0, Chunk(48))) == expected


def test_a_prompt_is_found_where_a_chunk_begins(daemon):
    """What the last step before it had computed was freed before it could be stored."""
    wait_for_segments(daemon, 2)
    assert loaded(daemon, PROMPT, (0, Chunk(32))) == (0, 0)
    assert loaded(daemon, PROMPT[:64] + [1] * 20, (0, Chunk(32))) == (64, 8)
    assert loaded(daemon, PROMPT[:56] + [1] * 20, (0, Chunk(32)))[0] in (32, 40, 48)


def test_windows_and_chunks_of_one_size_are_not_shared(daemon):
    wait_for_segments(daemon, 4)
    for windows, expected in (((0, Chunk(24)), 0), ((0, 25), 0), ((0, Chunk(24)), 72)):
        engine = make_engine(daemon, random.Random(7), windows=windows)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == expected
        expect_nothing_held(daemon, engine)
