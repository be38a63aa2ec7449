"""Retention by token ranges: the cases of TensorRT-LLM's own tests (KvCacheRetentionConfigTest in
cpp/tests/unit_tests/batch_manager/evictionPolicyTest.cpp), and what requests say of it."""
import json
import logging
import random

import pytest

from terrace.request_hints import HintReader, RequestHints
from terrace.retention import BlockRetention, Retention, TokenRange

NONE = None  # a block keeps what it has


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
    assert [each.priority for each in retention.of_prompt(block_tokens, prompt_tokens)] == expected
    assert retention.of_block(prompt_tokens, prompt_tokens).priority == 30  # an answer's


def test_durations_go_with_their_ranges_and_the_answer_has_its_own():
    retention = Retention([TokenRange(0, 64, 80, 1500), TokenRange(64, None, 50)], 90, 20)
    assert retention.of_prompt(64, 128) == [BlockRetention(80, 1500), BlockRetention(50)]
    assert retention.of_block(128, 128) == BlockRetention(90, 20)
    assert [each.duration_s for each in (BlockRetention(80, 1500), BlockRetention(50),
                                         BlockRetention(90, 20))] == [2, 0, 1]
    assert Retention().of_block(0, 1) == BlockRetention()
    assert Retention().of_block(1, 1) == BlockRetention(35)


def test_blocks_are_cut_where_it_changes():
    chance = random.Random(1)
    for _ in range(300):
        cuts = sorted(chance.sample(range(500), 6))
        retention = Retention([TokenRange(a, b, chance.randrange(101)) for a, b in
                               zip(cuts[::2], cuts[1::2])], chance.randrange(101))
        size, prompt = chance.randrange(1, 40), chance.randrange(1, 500)
        first = chance.randrange(20)
        last = first + chance.randrange(1, 30)
        runs = retention.runs(first, last, size, prompt)
        assert runs[0][0] == first and runs[-1][1] == last
        assert all(a[1] == b[0] and a[2] != b[2] for a, b in zip(runs, runs[1:]))
        assert [each for begin, end, each in runs for _ in range(begin, end)] == [
            retention.of_block(block * size, prompt) for block in range(first, last)]


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
    {"decode_retention_priority": -1}, {"decode_duration_ms": 1 << 60}, "[" * 100_000])
def test_what_cannot_be_is_refused_by_name_and_the_request_served(caplog, said):
    reader = HintReader(logging.getLogger("test"))
    assert reader.read({"terrace_retention": said, "terrace_priority": 7}) == RequestHints(
        priority=7)
    (record,) = caplog.records
    assert "terrace_retention" in record.getMessage() and "KvCache" in record.getMessage()


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
