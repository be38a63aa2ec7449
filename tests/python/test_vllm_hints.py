"""What the vLLM connector says beside keys, as the daemon has it: an engine that enforces the
contract of connectors, and a real daemon."""
import json
import os
import pathlib
import random
import subprocess
import tempfile
import time
import types

import pytest

from vllm_driver import (ONE_SHARE, PROMPT, GroupOf, drive, expect_nothing_held, make_engine,
                         terrace, vllm_engine, warmed_engine)
from conftest import Daemon, connect, until

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
    return (block["priority"] == 80 and block["is_pinned"] and block["is_no_store"]
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


RANGES = {"token_range_retention_configs": [
    {"token_start": 0, "token_end": 16, "priority": 90},
    {"token_start": 24, "token_end": 40, "priority": 10}], "decode_retention_priority": 5}


@pytest.mark.parametrize("is_warm", (False, True))
def test_ranges_of_a_prompt_and_its_answer_have_priorities_of_their_own(daemon, is_warm):
    engine = warmed_engine(daemon) if is_warm else make_engine(daemon, random.Random(7))
    serve(engine, output_count=17, says={"terrace_retention": RANGES})
    assert [block["priority"] for block in listed(daemon)] == (
        [90, 90, 35, 10, 10] + [35] * 5 + [5, 5])
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


def test_where_its_last_blocks_pass_by_the_one_before_them_says_why_it_ended(daemon, monkeypatch):
    told = []
    touch, take = terrace.requests.Asker.touch, terrace.requests.Asker._take_lease

    def look(asker, keys, hints, wait_s):
        told.append(([block.state for block in asker.group.query(keys)], hints.end_reason))
        touch(asker, keys, hints, wait_s)

    def pass_by(asker, completion, pending):
        take(asker, completion, pending)
        if pending.lease is None or not hasattr(pending.lease, "reserved"):
            return
        pending.no_room_first = pending.lease.reserved[0]
        pending.no_room_count, pending.reserved_count = pending.reserved_count, 0
        pending.is_passed_by = True
        pending.give_up()

    engine = warmed_engine(daemon)
    monkeypatch.setattr("terrace.requests.Asker.touch", look)
    monkeypatch.setattr("terrace.requests.Asker._take_lease", pass_by)
    serve(engine, tokens=PROMPT + list(range(200, 241)))
    assert told == [(["sealed"], "length")]
    counters = engine.connector.side.half.counters
    assert counters["passed_blocks"] == 5 and counters["dropped_blocks"] == 0
    assert len(listed(daemon)) == 10
    expect_nothing_held(daemon, engine)


def test_a_daemon_that_dies_among_ends_leaves_no_store_behind(daemon, monkeypatch):
    take = terrace.requests.Asker._take_lease
    done = terrace.vllm.scheduler.SchedulerHalf.stores_done
    killed = []

    def pass_by(asker, completion, pending):
        take(asker, completion, pending)
        if hasattr(pending.lease, "reserved"):
            pending.no_room_first, pending.no_room_count = len(pending.lease) - 1, 1
            pending.is_passed_by = True

    def die_before_ends(half, reports):
        ending = [n for n in reports if half._stores._in_workers[n].tracked.endings]
        if len(ending) > 1 and not killed:
            daemon.kill()
            while half._asker.group.client.boot_id:
                time.sleep(0.01)
            killed.append(True)
        done(half, reports)

    monkeypatch.setattr("terrace.requests.Asker._take_lease", pass_by)
    monkeypatch.setattr("terrace.vllm.scheduler.SchedulerHalf.stores_done", die_before_ends)
    engine = make_engine(daemon, random.Random(7), timeout_ms=300, lookup_wait_ms=300)
    for i in range(3):
        engine.add(vllm_engine.Request(f"r{i}", list(range(100 + 50 * i, 124 + 50 * i)), 1, 8))
    for _ in range(1000):
        engine.step()
        if not engine.has_work:
            break
    assert killed and not engine.has_work and engine.connector.side.half.held_count == 0
    engine.close()


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


def test_a_recorded_trace_has_why_requests_ended():
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, f'trace_dir = "{directory}"\n')
        connect(daemon).close()
        tool = pathlib.Path(os.environ["TERRACE_BUILD"]) / "tools" / "terrace"

        def record(what):
            subprocess.run([tool, "trace", "record", what, "--socket", daemon.socket], check=True,
                           capture_output=True)

        record("start")
        engine = make_engine(daemon, random.Random(7))
        serve(engine, "one", ends="FINISHED_STOPPED")
        serve(engine, "two", tokens=PROMPT[:60] + [1] * 20)
        expect_nothing_held(daemon, engine)
        record("stop")
        (file,) = pathlib.Path(directory).glob("*.trace.jsonl")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        ends = [line for line in lines if line.get("op") == "touch"]
        assert [line["stop"] for line in ends] == ["end_turn", "length"]
        stored = [line["hash_ids"][-1] for line in lines if line.get("op") == "reserve"]
        assert ends[0]["hash_ids"] == [ends[0]["hash_ids"][0]] and ends[0]["hash_ids"][0] in stored
        out = subprocess.run([tool, "replay", file, "--policy", "hazard", "--json"], check=True,
                             capture_output=True)
        assert json.loads(out.stdout)["results"]
        daemon.stop()


def test_where_the_daemon_left_off_it_is_told_nothing(daemon):
    engine = make_engine(daemon, random.Random(7), timeout_ms=2000)
    serve(engine)
    daemon.kill()
    serve(engine, "later", says=SAYS)
    assert engine.connector.side.refusal is None
    assert engine.connector.side.scheduler.held_count == 0
    daemon.start()
    engine.close()


def cost_of(ms_per_token):
    """Of an engine whose prompts take so long."""
    cost = terrace.prefill_cost.PrefillCost()
    for tokens in (64, 128, 64):
        cost.learn(terrace.prefill_cost.StepWork.of([(0, tokens)]), tokens * ms_per_token / 1000)
    return cost


def worth(spans, block_count, **named):
    arrivals = terrace.vllm.arrivals
    return arrivals.worth([terrace.calls.Span(*span) for span in spans], block_count,
                          arrivals.Prompt(0, 82, 8), cost_of(1), **named)


READY, FAST = (0, 2, "ready", "dram", 0.0), (2, 3, "coming", "nvme", 0.010)


@pytest.mark.parametrize("spans, block_count, wanted, wait_s", [
    ([(0, 10, "ready", "dram", 0.0)], 10, 10, None),
    ([READY, FAST], 5, 5, 0.05),  # 3 blocks in 10 ms instead of 24
    ([READY, (2, 3, "coming", "nvme", 0.025)], 5, 2, None),
    ([READY, FAST, (5, 5, "coming", "redis", 0.045)], 10, 10, 0.08),  # 5 more for 35 ms, not 40
    ([READY, FAST, (5, 5, "coming", "redis", 0.055)], 10, 5, 0.05),
    ([(0, 10, "coming", "nvme", 0.079)], 10, 10, 0.08),
    ([(0, 10, "coming", "nvme", 0.081)], 10, 0, None),
    ([READY, FAST], 4, 4, 0.05),  # the request has use for no more
])
def test_what_comes_before_computing_would_is_loaded_and_no_more(spans, block_count, wanted,
                                                                 wait_s):
    promise = worth(spans, block_count)
    assert promise.block_count == wanted
    assert promise.wait_s == (None if wait_s is None else pytest.approx(wait_s, rel=0.01))


def test_of_what_is_of_use_as_a_whole_no_part_is_loaded():
    late = (2, 8, "coming", "nvme", 0.066)
    assert worth([READY, late], 10).block_count == 2
    assert worth([READY, late], 10, is_whole=True).block_count == 10, "rather than none"
    assert worth([READY, (2, 8, "coming", "nvme", 0.5)], 10, is_whole=True).block_count == 0


def test_without_anything_known_of_costs_all_is_loaded():
    arrivals = terrace.vllm.arrivals
    spans = [terrace.calls.Span(0, 4, "coming", "redis", 99.0)]
    empty = terrace.prefill_cost.PrefillCost()
    assert arrivals.worth(spans, 4, arrivals.Prompt(0, 82, 8), empty) == arrivals.Promise(4)


def engine_with_blocks_coming(daemon, monkeypatch, eta_s):
    """One whose prompts take 1 ms a token, and of whose hits all but READY is to come."""
    engine = warmed_engine(daemon)
    cost = engine.connector.side.scheduler.hints.cost
    for _ in range(2):
        cost.learn(terrace.prefill_cost.StepWork.of([(0, 64)]), 0.064)
    monkeypatch.setattr(terrace.leases.ReadLease, "ready_count", property(lambda _: READY[1]))
    monkeypatch.setattr(terrace.leases.ReadLease, "spans", property(lambda lease: [
        terrace.calls.Span(*READY),
        terrace.calls.Span(2, lease.block_count - 2, "coming", "nvme", eta_s)]))
    return engine


@pytest.mark.parametrize("eta_s, loaded, policy", [(0.010, 72, "recompute"), (9.0, 16, "recompute"),
                                                   (0.010, 72, "fail")])
def test_the_engine_computes_what_would_come_too_late(daemon, monkeypatch, eta_s, loaded, policy):
    engine, waits = engine_with_blocks_coming(daemon, monkeypatch, eta_s), []
    half = engine.connector.side.scheduler
    half._may_give_up = policy == "recompute"
    copy = terrace.vllm.worker.WorkerHalf._copy
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy", lambda self, loading: (
        waits.append(loading.load.wait_s), copy(self, loading))[1])
    serve(engine)
    assert engine.counts["loaded_tokens"] == loaded
    assert half.counters["left_tokens"] == 72 - loaded
    assert waits == [pytest.approx(0.072, rel=0.01) if loaded == 72 and policy == "recompute"
                     else None]
    expect_nothing_held(daemon, engine)


def test_what_has_come_while_a_request_waited_its_turn_is_loaded(daemon, monkeypatch):
    engine, asked = engine_with_blocks_coming(daemon, monkeypatch, 9.0), []
    half = engine.connector.side.scheduler
    matched = half.matched_tokens

    def ask_again(request, local_tokens):
        asked.append(matched(request, local_tokens))
        monkeypatch.setattr(terrace.leases.ReadLease, "ready_count",
                            property(lambda lease: lease.block_count))
        asked.append(matched(request, local_tokens))
        return asked[-1]

    half.matched_tokens = ask_again
    serve(engine)
    assert asked == [16, 72] and engine.counts["loaded_tokens"] == 72
    assert half.counters["left_tokens"] == 0
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("ready_count, found, wanted", [(9, 9, 9), (8, 9, 0), (0, 9, 0)])
def test_of_windows_nothing_is_loaded_before_all_has_come(ready_count, found, wanted):
    half = types.SimpleNamespace(_groups=terrace.vllm.tables.CacheGroups(8, (0, 64)))
    lease = types.SimpleNamespace(ready_count=ready_count, block_count=found)
    promise = terrace.vllm.arrivals.Promise(0)
    assert terrace.vllm.scheduler.SchedulerHalf._with_what_has_come(
        half, promise, lease, 9).block_count == wanted


def test_what_has_left_a_lease_is_not_promised_any_more():
    half = types.SimpleNamespace(_groups=terrace.vllm.tables.CacheGroups(8))
    lease = types.SimpleNamespace(ready_count=1, block_count=4)
    promise = terrace.vllm.arrivals.Promise(9, 0.5)
    assert terrace.vllm.scheduler.SchedulerHalf._with_what_has_come(
        half, promise, lease, 9) == (4, 0.5)


def test_a_load_that_computing_has_overtaken_is_given_up(monkeypatch):
    waits, clock = [], [100.0]
    monkeypatch.setattr("terrace.vllm.worker.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy", lambda half, loading: (
        waits.append(loading.deadline - clock[0]), 0)[1])
    half = terrace.vllm.worker.WorkerHalf(
        GroupOf(), lambda: terrace.vllm.copies.InStep({}), shares=ONE_SHARE,
        load_timeout_s=10.0)
    half.load([terrace.vllm.messages.Load("r", (1, 1), [[1]], wait_s) for wait_s in
               (None, 0.25, 60.0)])
    until(lambda: len(waits) == 3)
    half.close()
    assert sorted(waits) == [0.25, 10.0, 10.0]
