"""What the vLLM connector says beside keys, as the daemon has it: an engine that enforces the
contract of connectors, and a real daemon."""
import json
import os
import pathlib
import random
import subprocess
import types

import pytest

from vllm_driver import (PROMPT, drive, expect_nothing_held, make_engine, terrace,
                         vllm_engine, warmed_engine)

CALL = 5  # of the tests' vocabulary: a token that begins a call of a tool


def serve(engine, request_id="only", tokens=PROMPT, output_count=1, **named):
    """Has the engine serve one request to its end."""
    request = vllm_engine.Request(request_id, tokens, output_count, 8, **named)
    engine.add(request)
    while engine.has_work:
        engine.step()
    return request


def listed(daemon):
    """What `terrace ls` shows of the blocks, by their place in the prompt."""
    out = subprocess.run(
        [pathlib.Path(os.environ["TERRACE_BUILD"]) / "tools" / "terrace", "ls", "--json",
         "--limit", "1000", "--socket", daemon.socket], check=True, capture_output=True)
    return sorted(json.loads(out.stdout)["blocks"], key=lambda block: block["position"])


SAYS = {"terrace_priority": 80, "terrace_ttl_s": 3000, "terrace_pin": True,
        "terrace_no_store": True}


def is_said(block):
    return (block["priority"] == 80 and block["is_pinned"]
            and 2000 < (block["expires_in_s"] or 0) <= 3001)


@pytest.mark.parametrize("said", [{"says": SAYS}, {"extra": SAYS},
                                  {"extra": {**SAYS, "terrace_priority": 3},
                                   "says": {"terrace_priority": 80}}])
def test_what_a_request_asks_for_its_blocks_is_listed(daemon, said):
    engine = make_engine(daemon, random.Random(7))
    serve(engine, **said)
    blocks = listed(daemon)
    assert len(blocks) == 10 and all(is_said(block) for block in blocks)
    expect_nothing_held(daemon, engine)


def test_blocks_that_were_there_get_what_a_later_request_asks_for(daemon):
    engine = warmed_engine(daemon)
    assert not any(is_said(block) for block in listed(daemon))
    serve(engine, says=SAYS)
    assert engine.counts["loaded_tokens"] == 72
    blocks = listed(daemon)
    assert len(blocks) == 10 and all(is_said(block) for block in blocks)
    expect_nothing_held(daemon, engine)


def test_what_is_wrong_in_parameters_is_said_once_and_the_request_served(daemon, caplog):
    engine = make_engine(daemon, random.Random(7))
    for number in range(3):
        serve(engine, f"r{number}", says={"terrace_priority": 900, "terrace_ttl_s": "soon",
                                          "terrace_colour": "red", "terrace_pin": True})
    texts = [record.getMessage() for record in caplog.records]
    for name in ("terrace_priority", "terrace_ttl_s", "terrace_colour"):
        assert sum(f"parameter {name} is" in text for text in texts) == 1, texts
    assert engine.counts["finished"] == 3 and engine.connector.side.refusal is None
    assert all(block["is_pinned"] and block["priority"] == 35 for block in listed(daemon))
    expect_nothing_held(daemon, engine)


class Heard:
    """What goes to the daemon."""

    def __init__(self, monkeypatch):
        self.touches, self.acquires, self.reserves = [], [], []
        for name, into in (("touch", self.touches), ("acquire", self.acquires),
                           ("reserve", self.reserves)):
            self._listen(monkeypatch, name, into)

    @staticmethod
    def _listen(monkeypatch, name, into):
        call = getattr(terrace.requests.Asker, name)

        def heard(asker, keys, hints=None, *more, **named):
            into.append((len(keys), hints))
            return call(asker, keys, hints, *more, **named)

        monkeypatch.setattr(f"terrace.requests.Asker.{name}", heard)


@pytest.mark.parametrize("end_reason, request_says", [
    ("length", {}), ("end_of_turn", {"ends": "FINISHED_STOPPED"}),
    ("aborted", {"ends": "FINISHED_ERROR"}), ("aborted", {"ends": "FINISHED_REPETITION"})])
def test_why_a_request_ended_is_said_of_its_last_block(daemon, monkeypatch, end_reason,
                                                       request_says):
    heard = Heard(monkeypatch)
    engine = make_engine(daemon, random.Random(7), tool_call_tokens=[CALL])
    serve(engine, **request_says)
    assert [(count, hints.end_reason) for count, hints in heard.touches] == [(1, end_reason)]
    expect_nothing_held(daemon, engine)


def test_an_answer_that_calls_a_tool_says_so(daemon, monkeypatch):
    heard = Heard(monkeypatch)
    engine = make_engine(daemon, random.Random(7), tool_call_tokens=[CALL, 6])
    request = vllm_engine.Request("only", PROMPT, 3, 8, ends="FINISHED_STOPPED")
    engine.add(request)
    while request.num_tokens < len(PROMPT) + 2:
        engine.step()
    request.tokens[-1] = CALL
    while engine.has_work:
        engine.step()
    assert [hints.end_reason for _, hints in heard.touches] == ["tool_call"]
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("stop, end_reasons", [((), ["aborted"]), (("###",), [])])
def test_an_abort_may_be_a_front_end_that_met_a_text_to_stop_at(daemon, monkeypatch, stop,
                                                                end_reasons):
    heard = Heard(monkeypatch)
    engine = make_engine(daemon, random.Random(7))
    request = vllm_engine.Request("only", PROMPT, 30, 8, stop=stop)
    engine.add(request)
    while request.num_tokens < len(PROMPT) + 5:
        engine.step()
    engine.abort(request)
    while engine.has_work:
        engine.step()
    assert [hints.end_reason for _, hints in heard.touches] == end_reasons
    expect_nothing_held(daemon, engine)


def test_nothing_is_said_of_a_request_before_its_blocks_are_there(daemon, monkeypatch):
    told = []
    touch = terrace.requests.Asker.touch

    def look(asker, keys, hints, wait_s):
        told.append([block.state for block in asker.group.query(keys)])
        touch(asker, keys, hints, wait_s)

    monkeypatch.setattr("terrace.requests.Asker.touch", look)
    engine = make_engine(daemon, random.Random(7), tp_size=2)
    serve(engine, output_count=30, says={"terrace_priority": 3})
    assert told == [["sealed"] * 13]
    expect_nothing_held(daemon, engine)


def test_random_requests_with_hints_leave_nothing_behind(daemon):
    chance = random.Random(11)

    def make(number, chance):
        tokens = [chance.randrange(6)] * 8 * chance.randrange(1, 6) + [1]
        says = {name: value for name, value in SAYS.items()
                if name != "terrace_pin" and chance.random() < 0.3}
        return vllm_engine.Request(f"r{number}", tokens, chance.randrange(1, 20), 8, says=says,
                                   ends=chance.choice(["FINISHED_STOPPED",
                                                       "FINISHED_LENGTH_CAPPED"]))

    engine = make_engine(daemon, chance, tp_size=2, depth=2)
    drive(engine, chance, 100, make=make)
    assert engine.connector.side.refusal is None and engine.counts["finished"] > 50
    assert not [t for t in engine.connector.side.scheduler._tracked.values()]
    expect_nothing_held(daemon, engine)


def test_sessions_go_with_every_question(daemon, monkeypatch):
    heard = Heard(monkeypatch)
    engine = make_engine(daemon, random.Random(7))
    for number, says in enumerate(({"terrace_session": "one"}, {"terrace_session": "one"}, None,
                                   None)):
        serve(engine, f"r{number}", tokens=[number] * 60, says=says)
    request = vllm_engine.Request("salted", [9] * 60, 1, 8, says={"terrace_session": "one"})
    request.cache_salt = "tenant"
    engine.add(request)
    while engine.has_work:
        engine.step()
    hashes = [hints.session_hash for _, hints in heard.acquires]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4 and 0 not in hashes
    assert {hints.session_hash for _, hints in heard.reserves} == set(hashes)
    expect_nothing_held(daemon, engine)


def test_steps_teach_what_prompts_cost_and_questions_say_it(daemon, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("terrace.vllm.hints.time.monotonic", lambda: clock[0])
    heard = Heard(monkeypatch)
    engine = make_engine(daemon, random.Random(7), chunk_tokens=64, block_count=200)
    finish_step = engine.finish_step

    def take_its_time():
        work = engine.steps[engine.updated][1].work
        clock[0] += 0.001 * sum(each.count for each in work.values())  # 1 ms a token
        finish_step()

    engine.finish_step = take_its_time
    for number in range(3):
        serve(engine, f"r{number}", tokens=[number] * 400)
    assert heard.acquires[0][1].recompute_ns_per_token == 0, "nobody knows"
    assert heard.acquires[-1][1].recompute_ns_per_token == pytest.approx(1e6, rel=0.01)
    assert heard.reserves[-1][1].recompute_ns_per_token == pytest.approx(1e6, rel=0.01)
    expect_nothing_held(daemon, engine)


def test_a_step_begins_when_the_one_before_it_ends(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("terrace.vllm.hints.time.monotonic", lambda: clock[0])
    hints = terrace.vllm.hints
    learned = []
    cost = types.SimpleNamespace(learn=lambda work, seconds: learned.append((work.tokens, seconds)))
    steps = hints.StepClock(cost, depth=2)
    steps.begin([(0, 512)], 512)  # begins at once
    steps.begin([(512, 512)], 512)  # scheduled at once, begins when the first one ends
    clock[0] = 1.0
    steps.end()
    steps.begin([], 1)
    clock[0] = 3.0
    steps.end()
    steps.end()
    steps.end()  # of nothing
    assert learned == [(512, 1.0), (512, 2.0)]
    steps.begin([(0, 512)], 512)
    steps.begin([(0, 256)], 256)
    steps.begin([(0, 128)], 128)  # of the first one nobody told
    clock[0] = 4.0
    steps.end()
    assert learned[-1] == (256, 1.0)


@pytest.mark.parametrize("chunks, token_count", [([(0, 16)], 16), ([(0, 100)], 120), ([], 40)])
def test_steps_that_say_little_of_prompts_are_not_learned_from(chunks, token_count):
    learned = []
    steps = terrace.vllm.hints.StepClock(
        types.SimpleNamespace(learn=lambda *what: learned.append(what)), depth=1)
    steps.begin(chunks, token_count)
    steps.end()
    assert not learned


@pytest.mark.parametrize("name, document", [
    ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "<tool_call>"},
                                                        "8": {"content": "<|im_end|>"}}}),
    ("tokenizer.json", {"added_tokens": [{"id": 7, "content": "[TOOL_CALLS]"},
                                         {"id": 9, "content": "<s>"}]})])
def test_the_tokenizer_says_which_tokens_call_tools(tmp_path, name, document):
    model = types.SimpleNamespace(tokenizer=str(tmp_path), model="elsewhere")
    find = terrace.vllm.hints.tool_call_tokens_of
    assert find(model) == frozenset() and find(None) == frozenset()
    (tmp_path / "tokenizer_config.json").write_text("no JSON")
    assert find(model) == frozenset()
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"1": "odd"}}')
    (tmp_path / name).write_text(json.dumps(document))
    assert find(model) == {7}


def test_where_the_daemon_left_off_it_is_told_nothing(daemon):
    engine = make_engine(daemon, random.Random(7), timeout_ms=2000)
    serve(engine)
    daemon.kill()
    serve(engine, "later", says=SAYS)
    assert engine.connector.side.refusal is None
    assert engine.connector.side.scheduler.held_count == 0
    daemon.start()
    engine.close()
