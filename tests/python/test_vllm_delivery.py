"""What terrace.vllm promises comes, or is said not to have come; and it serves beside others."""
import logging
import os
import random
import signal
import tempfile
import types

import pytest

from vllm_driver import (LONG_S, ONE_SHARE, PROMPT, REQUESTS, connect, drive, expect_nothing_held,
                         make_engine, run_prompt, terrace, vllm_engine, wait_connected,
                         wait_for_segments, warmed_engine)
from conftest import Daemon, let_nobody_store
from terrace.presence import Presence
from terrace.requests import Asker, Pending

BLOCKS = (len(PROMPT) - 1) // 8


class ForeignHandshake:
    """As another connector's: it has nothing that ours has."""


@pytest.mark.parametrize("beside", [ForeignHandshake(), False])
@pytest.mark.parametrize("tp_size, stages, depth", [(1, None, 1), (2, None, 2), (2, [[1], [1]], 2)])
def test_beside_other_connectors_it_keeps_the_contract(daemon, monkeypatch, beside, tp_size, stages,
                                                       depth):
    monkeypatch.setattr(terrace.vllm.connector, "_has_siblings", lambda connector: True)
    monkeypatch.setattr(terrace.vllm.scheduler_role, "_LAYOUT_WAIT_S", LONG_S)
    chance = random.Random(11)
    engine = make_engine(daemon, chance, beside=beside, tp_size=tp_size, stages=stages, depth=depth)
    drive(engine, chance, REQUESTS // 2)
    assert engine.connector.side.refusal is None
    assert engine.counts["loaded_tokens"] > REQUESTS // 8
    expect_nothing_held(daemon, engine)


def test_beside_other_connectors_the_first_prompt_is_stored_and_found(daemon, monkeypatch):
    wait_for_segments(daemon, 2)
    monkeypatch.setattr(terrace.vllm.connector, "_has_siblings", lambda connector: True)
    monkeypatch.setattr(terrace.vllm.scheduler_role, "_LAYOUT_WAIT_S", LONG_S)
    for number in range(2):
        engine = make_engine(daemon, random.Random(7), beside=ForeignHandshake())
        wait_connected(engine)
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == (8 * BLOCKS if number else 0)
        expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("somebody_loads", [None, "named", "hidden"])
def test_what_another_connector_loads_into_is_not_stored_any_more(daemon, somebody_loads):
    """vLLM's MultiConnector tells of a request's blocks, with no tokens of ours, before the one
    whose load it is writes to them, or names none (older versions); the daemon is too busy to
    answer a store of them in time."""
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), timeout_ms=1000 * LONG_S, lookup_wait_ms=1,
                         chunk_tokens=100)
    first = vllm_engine.Request("first", PROMPT, 1, 8)
    finish, freed = engine.connector.request_finished_all_groups, []

    def finished(request, table):
        freed.extend(table[0][:9])
        os.kill(daemon.process.pid, signal.SIGSTOP)
        return finish(request, table)

    engine.connector.request_finished_all_groups = finished
    engine.add(first)
    while first.request_id in engine.requests:
        engine.step()
    assert engine.connector.has_pending_push_work()
    if somebody_loads:
        other = vllm_engine.Request("other", [3] * 80, 1, 8)
        engine.connector.on_new_request(other)
        engine.connector.update_state_after_alloc(
            other, types.SimpleNamespace(
                get_block_ids=lambda: (freed if somebody_loads == "named" else [],)), 0)
    engine.step()  # in which the other one's load begins
    if somebody_loads:
        for layer in engine.workers[0].layers[0]:
            layer[freed] = 12345
    os.kill(daemon.process.pid, signal.SIGCONT)
    while engine.connector.has_pending_push_work():
        engine.step()
    engine.close()
    second = make_engine(daemon, random.Random(7))
    run_prompt(second)  # every byte is compared
    assert second.counts["loaded_tokens"] == (0 if somebody_loads else 8 * BLOCKS)
    expect_nothing_held(daemon, second)


def test_a_worker_that_is_off_says_so_beside_other_connectors(daemon, monkeypatch):
    monkeypatch.setattr(terrace.vllm.connector, "_has_siblings", lambda connector: True)
    engine = make_engine(daemon, random.Random(7), beside=ForeignHandshake())
    wait_connected(engine)
    for worker in engine.workers:
        worker.connector.side.refuse("for a test")
    run_prompt(engine)
    assert "for a test" in engine.connector.side.refusal
    engine.close()


def test_workers_that_say_nothing_are_not_waited_for_long(daemon, monkeypatch):
    monkeypatch.setattr(terrace.vllm.connector, "_has_siblings", lambda connector: True)
    monkeypatch.setattr(terrace.vllm.scheduler_role, "_LAYOUT_WAIT_S", 0.05)
    engine = make_engine(daemon, random.Random(7), beside=ForeignHandshake())
    for worker in engine.workers:
        worker.connector.side.has_told_layout = True
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 0 and engine.connector.side.refusal is None
    engine.close()


def asked(monkeypatch, name):
    """The native requests that go through one function of the library."""
    requests = []
    call = getattr(terrace.requests.lib, name)

    def note(*arguments):
        requests.append(arguments[4]._obj)
        return call(*arguments)

    monkeypatch.setattr(terrace.requests.lib, name, note)
    return requests


def test_the_bytes_of_a_lookup_have_a_deadline_of_their_own(daemon, monkeypatch):
    requests = asked(monkeypatch, "terrace_acquire_async")
    engine = warmed_engine(daemon, timeout_ms=1500, load_timeout_ms=7000)
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 8 * BLOCKS
    assert {(r.deadline_us, r.load_deadline_us) for r in requests} == {(1_500_000, 7_000_000)}
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("good_count", [0, 4])
def test_hits_are_what_was_delivered(daemon, monkeypatch, good_count):
    engine = warmed_engine(daemon)
    copy = terrace.vllm.worker.WorkerHalf._copy
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy",
                        lambda self, loading: min(copy(self, loading), good_count))
    request = vllm_engine.Request("only", PROMPT, 1, 8)
    request.prefill_stats = PrefillStats(len(PROMPT), 0, 8 * BLOCKS)
    engine.add(request)
    while engine.has_work:
        engine.step()
    counters = engine.connector.side.scheduler.counters
    assert counters["failed_loads"] == 1
    assert counters["hit_tokens"] == 8 * good_count
    assert counters["lost_tokens"] == 8 * (BLOCKS - good_count)
    assert request.prefill_stats.num_external_cached_tokens == 8 * good_count
    expect_nothing_held(daemon, engine)


class PrefillStats:
    """As vLLM's."""

    def __init__(self, num_prompt_tokens, num_local_cached_tokens, num_external_cached_tokens):
        self.set(num_prompt_tokens, num_local_cached_tokens, num_external_cached_tokens)

    def set(self, num_prompt_tokens, num_local_cached_tokens, num_external_cached_tokens):
        self.num_prompt_tokens = num_prompt_tokens
        self.num_local_cached_tokens = num_local_cached_tokens
        self.num_external_cached_tokens = num_external_cached_tokens


def refuse_reserves(monkeypatch, times):
    """The first so many find no room for any block but the first."""
    ask = Asker.reserve
    left = [times]

    def reserve(self, keys, *arguments, **named):
        if left[0] == 0:
            return ask(self, keys, *arguments, **named)
        left[0] -= 1
        pending = Pending(len(keys), is_done=True)
        pending.no_room_count, pending.no_room_first = len(keys) - 1, 1
        return pending

    monkeypatch.setattr(Asker, "reserve", reserve)


def test_blocks_that_found_no_room_are_offered_again(daemon, monkeypatch):
    connect(daemon).close()
    refuse_reserves(monkeypatch, 1)
    engine = make_engine(daemon, random.Random(7))
    engine.add(vllm_engine.Request("only", PROMPT, 8, 8))
    while engine.has_work:
        engine.step()
    counters = engine.connector.side.scheduler.counters
    assert counters["stored_blocks"] >= 9 and counters["dropped_blocks"] == 0
    expect_nothing_held(daemon, engine)


def test_blocks_that_find_no_room_at_all_are_counted(daemon, monkeypatch):
    connect(daemon).close()
    refuse_reserves(monkeypatch, 1000)
    engine = make_engine(daemon, random.Random(7))
    run_prompt(engine)
    counters = engine.connector.side.scheduler.counters
    assert counters["stored_blocks"] == 0
    assert counters["dropped_stores"] >= 1 and counters["dropped_blocks"] >= 8
    expect_nothing_held(daemon, engine)


def hold_answers(monkeypatch, is_held):
    """While `is_held()`, the daemon's answers are on their way."""
    collect, wait = Asker.collect, Asker.wait
    monkeypatch.setattr(Asker, "collect", lambda self: None if is_held() else collect(self))
    monkeypatch.setattr(Asker, "wait", lambda self, pending, wait_s:
                        pending.is_done if is_held() else wait(self, pending, wait_s))


def run_until_finished(engine, request_id, tokens, on_scheduled=lambda: None):
    """on_scheduled: when it has been looked up."""
    request = vllm_engine.Request(request_id, tokens, 2, 8)
    engine.add(request)
    while not request.was_scheduled:
        engine.step()
    on_scheduled()
    while request_id in engine.requests:
        engine.step()


def no_answer(asker, keys, *_, **__):
    return Pending(len(keys), is_done=True)


@pytest.mark.parametrize("idle_steps", [3, 30])
def test_a_finished_request_is_stored_however_late_the_daemon_answers(daemon, monkeypatch,
                                                                      idle_steps):
    """Its blocks keep what they hold while nobody else gets them."""
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7))
    wait_connected(engine)
    held = []
    hold_answers(monkeypatch, lambda: "only" in held)
    run_until_finished(engine, "only", PROMPT, lambda: held.append("only"))
    for _ in range(idle_steps):
        engine.step()
    counters = engine.connector.side.scheduler.counters
    assert counters["stored_blocks"] == 0 and counters["dropped_stores"] == 0 and engine.has_work
    held.clear()
    while engine.has_work:
        engine.step()
    assert counters["stored_blocks"] >= BLOCKS and counters["dropped_stores"] == 0
    expect_nothing_held(daemon, engine)


def test_of_a_finished_request_whose_blocks_are_given_away_nothing_is_stored(daemon, monkeypatch):
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), block_count=len(PROMPT) // 8 + 4)
    wait_connected(engine)
    held = []
    hold_answers(monkeypatch, lambda: "only" in held)
    run_until_finished(engine, "only", PROMPT, lambda: held.append("only"))
    monkeypatch.setattr(Asker, "acquire", no_answer)
    run_until_finished(engine, "other", [9] * len(PROMPT))
    counters = engine.connector.side.scheduler.counters
    assert counters["dropped_stores"] >= 1 and counters["dropped_blocks"] >= 8
    held.clear()
    while engine.has_work:
        engine.step()
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("windows, zeroes", [((0,), None), ((0,), "v2"), ((0, 24), None),
                                             ((0, vllm_engine.STATE), None)])
def test_answers_that_come_late_now_and_then_store_no_wrong_bytes(daemon, monkeypatch, windows,
                                                                  zeroes):
    chance = random.Random(23)
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, chance, windows=windows, zeroes=zeroes)
    wait_connected(engine)
    hold_answers(monkeypatch, lambda: chance.random() < 0.7)
    drive(engine, chance, REQUESTS)
    assert engine.counts["loaded_tokens"] > 0
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 0
    expect_nothing_held(daemon, engine)


def test_a_store_that_a_worker_drops_is_counted():
    def fail(token, mask):
        raise terrace.Unavailable("nothing there")

    client = types.SimpleNamespace(is_reader=False)
    half = terrace.vllm.worker.WorkerHalf(
        types.SimpleNamespace(join_write=fail, client=client), lambda: None, shares=ONE_SHARE)
    half.store(terrace.vllm.messages.Step(stores=[
        terrace.vllm.messages.Store(1, (1, 1), [[1]])]))
    assert half.counters["dropped_stores"] == 1 and half.take_reports() == {1}
    half.close()


def test_a_fresh_daemon_stores_its_first_prompts_whole():
    """Faster than its memory is populated: 6 times 15 MiB into segments of 16 MiB."""
    space = terrace.Space(model="m", revision="r", dtype="bf16", layout="x", layers=16, kv_heads=2,
                          head_size=64, block_tokens=16, part_bytes=(16384,) * 16)
    block = bytes(space.block_bytes)
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, memory='dram_bytes = "256MiB"\nsegment_bytes = "16MiB"\n')
        try:
            with terrace.Client(daemon.socket, default_timeout_s=LONG_S) as client:
                client.wait_connected(LONG_S)
                group = client.open(terrace.SpaceGroup("g", [space]), 1)
                prompts = [group.hash([prompt] * 16 * 60) for prompt in range(6)]
                for keys in prompts:
                    with group.reserve(keys) as lease:
                        assert len(lease.reserved) == len(keys) == 60
                        for index in lease.reserved:
                            lease.write([block], first_key=index, key_count=1)
                        assert lease.commit() == 60
                for keys in prompts:
                    assert group.match(keys).block_count == 60
                stats = client.stats()["domain"]
                assert stats["blocks_evicted"] == stats["reserve_no_space"] == 0
        finally:
            daemon.stop()


def test_the_log_says_once_that_the_daemon_is_there_lost_and_back(caplog):
    presence = Presence(logging.getLogger("vllm.terrace"), "/some.sock")
    told = []
    with caplog.at_level(logging.INFO, "vllm.terrace"):
        for boot_id in (0, 7, 7, 0, 0, 7, 0, 8, 8, 9):
            presence.look(types.SimpleNamespace(boot_id=boot_id, is_bypassed=False,
                                                is_reader=False))
            told.append([record.getMessage() for record in caplog.records])
            caplog.clear()
    assert [len(each) for each in told] == [0, 1, 0, 1, 0, 1, 1, 1, 0, 1]
    assert "connected to the daemon at /some.sock" in told[1][0]
    assert "is lost" in told[3][0] and "is back after" in told[5][0]
    assert "started anew" in told[7][0] and "was lost, and is back" in told[9][0]


def test_an_engine_says_that_its_daemon_was_lost(daemon, caplog):
    engine = warmed_engine(daemon, timeout_ms=200)
    with caplog.at_level(logging.INFO, "vllm.terrace"):
        run_prompt(engine, "first")
        daemon.kill()
        for number in range(100):
            run_prompt(engine, f"r{number}")
            if "is lost" in caplog.text:
                break
    assert caplog.text.count("connected to the daemon") == 1
    assert caplog.text.count("is lost") == 1
    engine.close()


def test_vllm_is_told_which_tier_a_hit_came_from():
    with tempfile.TemporaryDirectory() as directory:
        nvme = f'[nvme]\ncapacity_bytes = "64MiB"\nslab_bytes = "8MiB"\npaths = ["{directory}/n"]\n'
        daemon = Daemon(directory, nvme)
        wait_for_segments(daemon, 2)
        for source in (None, "host", "disk"):
            engine = make_engine(daemon, random.Random(7))
            run_prompt(engine)
            assert dict(engine.sources) == ({source: 8 * BLOCKS} if source else {})
            expect_nothing_held(daemon, engine)
            with connect(daemon) as client:
                group = client.open(engine.connector.side.scheduler._asker.group.spec)
                keys = group.keys_of_digests(vllm_engine.Request("x", PROMPT, 1, 8).block_hashes)
                group.wait_persisted(keys, LONG_S)
            if source == "host":
                daemon.kill()
                daemon.start()
                connect(daemon).close()
        daemon.stop()


def test_a_reader_loads_and_stores_nothing(daemon, caplog):
    wait_for_segments(daemon, 2)
    first = make_engine(daemon, random.Random(7))
    wait_connected(first)
    run_prompt(first)
    first.close()
    let_nobody_store(daemon)
    with caplog.at_level(logging.INFO, "vllm.terrace"), connect(daemon) as client:
        before = client.stats()["domain"]["block_count"]
        reader = make_engine(daemon, random.Random(8))
        wait_connected(reader)
        run_prompt(reader)
        assert reader.counts["loaded_tokens"] == 8 * BLOCKS
        drive(reader, random.Random(9), 20)
        assert reader.connector.side.refusal is None
        assert all(worker.connector.side.refusal is None for worker in reader.workers)
        assert client.stats()["domain"]["block_count"] == before
        expect_nothing_held(daemon, reader)
    said = [r.getMessage() for r in caplog.records if "may only read" in r.getMessage()]
    assert len(said) == 1 and "writer_uids" in said[0]
