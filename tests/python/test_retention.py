"""Retention by token ranges: the cases of TensorRT-LLM's own tests (KvCacheRetentionConfigTest in
cpp/tests/unit_tests/batch_manager/evictionPolicyTest.cpp), and what requests say of it."""
import json
import logging
import random
import time

import pytest

from terrace.request_hints import HintReader, RequestHints
from terrace.retention import BlockRetention, Retention, TokenRange

NONE = None  # a block keeps what it has


def of_block(ranges, answer, first_token, prompt_tokens):
    """What the page of the format says of the block that begins there."""
    if first_token >= prompt_tokens:
        return answer
    return next((BlockRetention(each.priority, each.duration_ms) for each in ranges
                 if each.start <= first_token and (each.end is None or first_token < each.end)),
                BlockRetention())


def of_blocks(retention, block_tokens, prompt_tokens, block_count):
    """Of each block from the prompt's first on."""
    return [each for begin, end, each in retention.runs(0, block_count, block_tokens, prompt_tokens)
            for _ in range(begin, end)]


@pytest.mark.parametrize("ranges", [
    [(0, None, 80), (64, 128, 80)], [(0, 64, 80), (64, 32, 80)], [(0, 64, 80), (30, 128, 80)]],
    ids=["open, and not the last", "negative length", "overlap"])
def test_their_refusals(ranges):
    with pytest.raises(ValueError):
        Retention([TokenRange(*each) for each in ranges], 30)


@pytest.mark.parametrize("ranges, block_tokens, prompt_tokens, expected", [
    ([(0, 64, 80), (64, 128, 50)], 64, 256, [80, 50, NONE, NONE]),
    ([(0, 63, 80), (63, 127, 30)], 32, 127, [80, 80, 30, 30]),
    ([(0, 1, 80), (1, 2, 5)], 32, 128, [80, NONE, NONE, NONE]),
    ([(0, 128, 80)], 256, 192, [80]),
    ([(0, 65, 80), (65, 129, 30)], 64, 192, [80, 80, 30]),
    ([(0, 64, 80), (129, None, 50)], 64, 256, [80, NONE, NONE, 50]),
    ([(0, 64, 80), (66, 67, 50)], 64, 256, [80, NONE, NONE, NONE]),
    ([(127, 193, 80)], 64, 256, [NONE, NONE, 80, 80]),
    ([(127, 193, 80)], 64, 32, [NONE]),
    ([(1, None, 80)], 64, 128, [NONE, 80])])
def test_their_priorities_of_blocks(ranges, block_tokens, prompt_tokens, expected):
    retention = Retention([TokenRange(*each) for each in ranges], 30)
    *of_prompt, of_answer = of_blocks(retention, block_tokens, prompt_tokens, len(expected) + 1)
    assert [each.priority for each in of_prompt] == expected and of_answer.priority == 30


def test_durations_go_with_their_ranges_and_the_answer_has_its_own():
    retention = Retention([TokenRange(0, 64, 80, 1500), TokenRange(64, None, 50)], 90, 20)
    assert of_blocks(retention, 64, 128, 3) == [
        BlockRetention(80, 1500), BlockRetention(50), BlockRetention(90, 20)]
    assert [each.duration_s for each in (BlockRetention(80, 1500), BlockRetention(50),
                                         BlockRetention(90, 20))] == [2, 0, 1]
    assert of_blocks(Retention(), 1, 1, 2) == [BlockRetention(), BlockRetention(35)]


def random_ranges(chance):
    """In order, with gaps and without, of few priorities, so that neighbours may be alike."""
    ranges, at = [], 0
    for _ in range(chance.randrange(7)):
        start = at + chance.choice((0, 0, 1, chance.randrange(60)))
        at = start + chance.choice((1, chance.randrange(1, 90)))
        ranges.append(TokenRange(start, at, chance.randrange(3), chance.choice((None, 7))))
    if ranges and chance.random() < 0.3:
        ranges[-1] = ranges[-1]._replace(end=None)
    return ranges


def test_blocks_are_cut_where_it_changes():
    chance = random.Random(1)
    for _ in range(3000):
        ranges = random_ranges(chance)
        answer = BlockRetention(chance.randrange(3), chance.choice((None, 7)))
        retention = Retention(ranges, *answer)
        size, prompt = chance.randrange(1, 40), chance.randrange(500)
        first = chance.randrange(20)
        last = first + chance.randrange(30)
        runs = retention.runs(first, last, size, prompt)
        assert all(a[1] == b[0] and a[2] != b[2] for a, b in zip(runs, runs[1:]))
        assert all(begin < end for begin, end, _ in runs)
        assert [block for begin, end, _ in runs for block in range(begin, end)] == list(
            range(first, last))
        assert [each for begin, end, each in runs for _ in range(begin, end)] == [
            of_block(ranges, answer, block * size, prompt) for block in range(first, last)]


def test_ranges_that_are_not_in_order_or_overlap_are_refused():
    chance = random.Random(2)
    for _ in range(300):
        ranges = [each._replace(end=each.end or each.start + 1) for each in random_ranges(chance)]
        shuffled = chance.sample(ranges, len(ranges))
        if shuffled != ranges:
            with pytest.raises(ValueError, match="overlap, or are not in order"):
                Retention(shuffled)


def test_a_long_prompt_takes_no_longer_than_a_short_one():
    retention = Retention([TokenRange(10 * i, 10 * i + 5, i % 2)
                           for i in range(100_000, 100_064)])
    blocks, began = 1 << 19, time.thread_time()
    runs = retention.runs(0, blocks, 16, blocks * 16)
    assert time.thread_time() - began < 0.1  # a look at each block takes seconds
    assert runs[0] == (0, 62_500, BlockRetention()) and runs[-1][1] == blocks


SAID = {"token_range_retention_configs": [
    {"token_start": 0, "token_end": 64, "priority": 80, "duration_ms": 30_000},
    {"token_start": 64, "token_end": None, "priority": 20, "duration_ms": None}],
    "decode_retention_priority": 5, "decode_duration_ms": 1000}
MEANT = Retention([TokenRange(0, 64, 80, 30_000), TokenRange(64, None, 20)], 5, 1000)


def test_requests_say_it_in_their_fields_or_as_json():
    reader = HintReader(logging.getLogger("test"))
    for said in (SAID, json.dumps(SAID)):
        assert reader.read({"terrace_retention": said}).retention == MEANT
    assert reader.read({"terrace_retention": {}}).retention == Retention()


@pytest.mark.parametrize("said", [
    7, "{", "[1]", {"ranges": []}, {"token_range_retention_configs": [1]},
    {"token_range_retention_configs": [{"token_start": -1}]},
    {"token_range_retention_configs": [{"token_start": 0, "token_end": "x"}]},
    {"token_range_retention_configs": [{"start": 0}]},
    {"token_range_retention_configs": [{"priority": 101}]},
    {"token_range_retention_configs": [{"priority": True}]},
    {"token_range_retention_configs": [{"duration_ms": 0}]},
    {"token_range_retention_configs": [{"token_start": i, "token_end": i + 1} for i in range(65)]},
    {"decode_retention_priority": -1}, {"decode_duration_ms": 1 << 60}, "[" * 100_000,
    pytest.param(" " * (1 << 17) + "{}", id="long")])
def test_what_cannot_be_is_refused_by_name_and_the_request_served(caplog, said):
    reader = HintReader(logging.getLogger("test"))
    assert reader.read({"terrace_retention": said, "terrace_priority": 7}) == RequestHints(
        priority=7)
    (record,) = caplog.records
    assert "terrace_retention" in record.getMessage() and "KvCache" in record.getMessage()


class Ranges(list):
    """That nobody looks at."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        raise AssertionError("clients choose how many there are")

    __repr__ = __iter__


def test_of_more_ranges_than_there_may_be_none_is_looked_at(caplog):
    reader = HintReader(logging.getLogger("test"))
    assert reader.read({"terrace_retention": 7}).retention is None
    said = {"terrace_retention": {"token_range_retention_configs": Ranges(1_000_000)}}
    assert reader.read(said).retention is None
    assert len(caplog.records) == 1, "what is wrong again is not told, nor put into words, again"


def test_a_verb_gets_the_ranges_words_before_the_requests():
    request = RequestHints(priority=60, ttl_s=100, ttl_from_hits=True, retention=MEANT)
    plain = request.hints()
    assert (plain.priority, plain.ttl_s, plain.ttl_from_hits, plain.ttl_of_priority) == (
        60, 100, True, False)
    timed = request.hints(retained=BlockRetention(80, 30_000))
    assert (timed.priority, timed.ttl_s, timed.ttl_from_hits, timed.ttl_of_priority) == (
        80, 30, False, True)
    kept = request.hints(retained=BlockRetention(80))
    assert (kept.priority, kept.ttl_s, kept.ttl_of_priority) == (80, 100, False)
    assert request.is_of_blocks and RequestHints(retention=MEANT).is_of_blocks
    assert not RequestHints(ttl_from_hits=True).hints().ttl_from_hits
