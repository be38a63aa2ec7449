"""What requests say in their parameters, and what is learned of prefill steps: without a daemon."""
import logging
import random

import pytest

from terrace.prefill_cost import PrefillCost, StepWork
from terrace.request_hints import HintReader, RequestHints, session_hash_of

logger = logging.getLogger("of.this.test")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_each_parameter_is_read_from_either_dictionary():
    said = {"terrace_priority": 80, "terrace_ttl_s": 60, "terrace_pin": True,
            "terrace_no_store": True, "terrace_session": "s", "terrace_expected_reuse_ms": 500}
    everything = RequestHints(priority=80, ttl_s=60, pin=True, no_store=True, session="s",
                              expected_reuse_ms=500)
    reader = HintReader(logger)
    assert reader.read(said, None) == reader.read(None, said) == everything
    assert reader.read({**said, "terrace_priority": 1}, {"terrace_priority": 80}) == everything
    assert reader.read(None, "no dictionary", {"do_remote_prefill": True, 7: 8}) == RequestHints()


def test_what_json_makes_of_numbers_and_flags_is_taken():
    reader = HintReader(logger)
    assert reader.read({"terrace_priority": 0.0, "terrace_pin": 1, "terrace_no_store": 0,
                        "terrace_session": 17}) == RequestHints(priority=0, pin=True, session="17")


@pytest.mark.parametrize("name, value", [
    ("terrace_priority", 101), ("terrace_priority", -1), ("terrace_priority", "high"),
    ("terrace_priority", True), ("terrace_priority", 1.5), ("terrace_priority", float("nan")),
    ("terrace_priority", float("inf")), ("terrace_priority", None), ("terrace_priority", [1]),
    ("terrace_ttl_s", 0), ("terrace_ttl_s", 1 << 32), ("terrace_pin", "yes"), ("terrace_pin", 2),
    ("terrace_no_store", {}), ("terrace_session", ""), ("terrace_session", "x" * 257),
    ("terrace_session", True), ("terrace_expected_reuse_ms", -5), ("terrace_prio", 5),
    pytest.param("terrace_priority", 10 ** 5000, id="long number"),
    pytest.param("terrace_session", 10 ** 5000, id="long session"),
    pytest.param("terrace_session", nested(5000), id="lists within lists")])
def test_what_cannot_be_is_refused_by_name_and_the_rest_taken(caplog, name, value):
    reader = HintReader(logger)
    for _ in range(3):
        assert reader.read({name: value, "terrace_ttl_s" if name != "terrace_ttl_s"
                            else "terrace_priority": 7}) in (RequestHints(ttl_s=7),
                                                             RequestHints(priority=7))
    assert len(caplog.records) == 1, "said once"
    assert name in caplog.records[0].getMessage()


def test_a_client_that_makes_up_names_fills_no_log(caplog):
    reader = HintReader(logger)
    for number in range(1000):
        reader.read({f"terrace_{number}": 1})
    assert len(caplog.records) == 64


def test_sessions_of_other_tenants_are_others():
    assert session_hash_of("a", "s") == session_hash_of("a", "s") != 0
    assert len({session_hash_of("a", "s"), session_hash_of("b", "s"), session_hash_of(None, "s"),
                session_hash_of("a", "t"), session_hash_of("x" * 65, "s"),
                session_hash_of("x" * 64 + "y", "s")}) == 6


def test_a_session_may_have_any_character_that_json_brings():
    assert len({session_hash_of(None, "\ud800"), session_hash_of(None, "\udfff"),
                session_hash_of("\ud800", "s"), session_hash_of(None, "s")}) == 4


def learned(base, per_token, per_pair, *, steps=40, noise=0.05, chunk=2048):
    """Of an engine that computes long prompts in chunks and short ones at once."""
    chance, cost = random.Random(3), PrefillCost()
    for _ in range(steps):
        first = chance.choice([0, 0, 1, 2]) * chunk
        work = StepWork.of([(first, chunk if first else chance.randrange(64, chunk + 1))])
        seconds = base + per_token * work.tokens + per_pair * work.pairs
        cost.learn(work, seconds * chance.uniform(1 - noise, 1 + noise))
    return cost


@pytest.mark.parametrize("base, per_token, per_pair", [
    (0.003, 2e-4, 0), (0, 1e-4, 3e-8), (0.01, 5e-5, 1e-8), (0.02, 1e-5, 0)])
def test_what_a_prefill_costs_is_learned_from_steps(base, per_token, per_pair):
    cost = learned(base, per_token, per_pair)
    for first, last, end in ((0, 7680, 8000), (0, 1984, 2000), (4096, 8192, 8200)):
        chunks = -(-(end - first) // 2048) - -(-(end - last) // 2048)
        real = (base * chunks + per_token * (last - first)
                + per_pair * (last ** 2 - first ** 2) / 2)
        assert cost.seconds(first, last, end) == pytest.approx(real, rel=0.06), (first, last)
        assert cost.ns_per_token(first, last, end) == pytest.approx(real / (last - first) * 1e9,
                                                                    rel=0.06)


def test_a_length_at_which_the_engine_is_slow_is_told_from_its_neighbours():
    chance, cost = random.Random(5), PrefillCost()

    def takes(tokens):  # by a kernel to which one length is what a cache's sets are to a stride
        return 1e-4 * tokens * (1.4 if tokens == 2048 else 1.0)
    lengths = [1024, 1536, 2048, 2048, 2048, 2560, 3072]
    for _ in range(4):
        for tokens in lengths:
            cost.learn(StepWork.of([(0, tokens)]), takes(tokens) * chance.uniform(0.95, 1.05))
    for tokens in lengths:
        assert cost.seconds(0, tokens - 32, tokens) == pytest.approx(takes(tokens), rel=0.1), tokens
    # Of a length that nobody has seen, no more than the fit says; and one step that compiled
    # something turns no later one.
    assert cost.seconds(0, 700, 701) == pytest.approx(takes(700), rel=0.3)
    for _ in range(8):
        cost.learn(StepWork.of([(0, 1536)]), 10 * takes(1536) if _ == 0 else takes(1536))
    assert cost.seconds(0, 1504, 1536) == pytest.approx(takes(1536), rel=0.15)


def test_the_pairs_of_a_step_are_tokens_and_what_each_attends_to():
    assert StepWork.of([]) == (0, 0)
    assert StepWork.of([(0, 4), (10, 2)]) == (6, 4 * 2 + 2 * 11)


def test_no_term_of_a_cost_is_negative():
    cost = PrefillCost()
    for tokens, seconds in ((64, 0.10), (128, 0.16), (1024, 0.60), (2048, 0.80), (4096, 1.0)):
        cost.learn(StepWork.of([(0, tokens)]), seconds)  # ever cheaper
    assert min(cost.coefficients) >= 0 < max(cost.coefficients)


def test_a_step_that_compiled_something_is_not_believed():
    cost = PrefillCost()
    cost.learn(StepWork.of([(0, 512)]), 30.0)
    assert cost.seconds(0, 1024, 1100) == 0, "one step alone says nothing"
    for _ in range(3):
        cost.learn(StepWork.of([(0, 512)]), 0.1)
    assert cost.seconds(0, 1024, 1536) == pytest.approx(0.2, rel=0.05)


def test_steps_of_a_few_tokens_push_out_none_that_say_something():
    cost = learned(0, 1e-4, 0, noise=0)
    for _ in range(200):
        cost.learn(StepWork.of([(2000, 32)]), 0.5)  # what is left of a prompt that was there
    assert cost.seconds(0, 1984, 2000) == pytest.approx(0.198, rel=0.06)
    for _ in range(100):
        cost.learn(StepWork.of([(0, 32)]), 0.032)  # there are only short ones any more
    assert cost.seconds(0, 32, 64) == pytest.approx(0.032, rel=0.06)


def test_nothing_is_known_before_the_first_steps():
    cost = PrefillCost()
    assert cost.ns_per_token(0, 100, 100) == 0
    cost.learn(StepWork.of([]), 1.0)
    cost.learn(StepWork.of([(0, 100)]), 0.0)
    assert cost.coefficients is None
    assert learned(0, 1e-4, 0).ns_per_token(100, 100, 200) == 0


def test_a_number_that_the_frame_has_no_room_for_is_its_largest():
    cost = PrefillCost()
    for _ in range(4):
        cost.learn(StepWork.of([(0, 10)]), 100.0)
    assert cost.ns_per_token(0, 10, 20) == (1 << 32) - 1
