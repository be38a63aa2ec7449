"""terrace.lmcache against a stand-in that enforces the contract of L2 adapters, and a real daemon.
"""
import contextlib
import dataclasses
import inspect
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))

import terrace  # noqa: E402  pylint: disable=wrong-import-position
from terrace import parameters  # noqa: E402  pylint: disable=wrong-import-position
from terrace.lmcache import daemon as verbs  # noqa: E402  pylint: disable=C0413
from terrace.lmcache import TerraceL2Adapter, locks, objects  # noqa: E402  pylint: disable=C0413
import lmcache_engine  # noqa: E402  pylint: disable=wrong-import-position
from lmcache_engine import (  # noqa: E402  pylint: disable=wrong-import-position
    BF16, FP16, FULL, WINDOW, Engine, Group, Memory)
from conftest import (  # noqa: E402  pylint: disable=wrong-import-position
    LONG_S, Daemon, connect, kept_out, let_nobody_store)

REQUESTS = int(os.environ.get("TERRACE_ENGINE_REQUESTS", "200"))
PATIENT = {"timeout_ms": 1000 * LONG_S, "load_timeout_ms": 1000 * LONG_S}


def make(daemon, groups=(FULL,), world_size=1, **config):
    config = {"socket": daemon.socket, "revision": "1", **PATIENT, **config}
    return Engine(TerraceL2Adapter(config), groups, world_size)


def test_a_second_instance_loads_what_the_first_one_stored(daemon):
    for number in range(2):
        engine = make(daemon, (FULL, WINDOW), 2)
        assert engine.serve([1, 2, 3, 4, 5]) == (5 if number else 0)
        assert engine.adapter.report_status()["is_healthy"]
        engine.close()


@pytest.mark.parametrize("groups,world_size", [((FULL,), 1), ((FULL, WINDOW), 2)])
def test_random_requests_of_two_instances_keep_the_contract(daemon, groups, world_size):
    chance = random.Random(world_size)
    engines = [make(daemon, groups, world_size) for _ in range(2)]
    for _ in range(REQUESTS // 2):
        head = chance.randrange(8)
        tokens = [head] * chance.randrange(1, 6) + [chance.randrange(4)] * chance.randrange(3)
        chance.choice(engines).serve(tokens, chance.choice(["", "", "tenant"]))
    assert sum(engine.counts["hit_chunks"] for engine in engines) > REQUESTS // 4
    for engine in engines:
        assert engine.counts["lost"] == engine.counts["store_failed"] == 0
        engine.close()


def test_threads_that_ask_at_once_keep_the_contract(daemon):
    engine = make(daemon, threads=4)
    failed = []

    def run(seed):
        chance = random.Random(seed)
        mine = Engine(engine.adapter)
        try:
            for _ in range(REQUESTS // 8):
                # lookups and loads alone: one controller takes all results of stores
                rows = mine.rows([chance.randrange(3)] * chance.randrange(1, 5))
                found = [key for row, hits in zip(rows, mine.lookup(rows))
                         for key, is_hit in zip(row, hits) if is_hit]
                if found:
                    assert all(mine.load(found))
                mine.unlock(found)
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)

    for token in range(3):
        engine.serve([token] * 4)
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "wait", _wait_by_asking)  # an event wakes one of the readers alone
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed, failed
    assert engine.adapter.report_status()["locked_object_count"] == 0
    engine.close()


def _wait_by_asking(_self, _number, take):
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        result = take()
        if result is not None:
            return result
        time.sleep(0.0005)
    raise lmcache_engine.Violation("a task was never told to be over")


def test_an_arena_that_is_too_small_costs_hits_only():
    with tempfile.TemporaryDirectory() as directory:
        small = Daemon(directory, memory='dram_bytes = "8MiB"\nsegment_bytes = "2MiB"\n')
        connect(small).close()
        large = Group(((2, 4, 64, 256),), (BF16,))  # 256 KiB
        engine = make(small, (large,), timeout_ms=2000, load_timeout_ms=2000)
        chance = random.Random(3)
        for _ in range(REQUESTS // 4):
            engine.serve([chance.randrange(6)] * chance.randrange(1, 8))
        assert engine.counts["hit_chunks"] > 0
        engine.close()
        small.stop()


def test_daemons_that_die_cost_hits_only(daemon):
    chance = random.Random(5)
    engine = make(daemon, (FULL, WINDOW), timeout_ms=2000, load_timeout_ms=2000)
    for number in range(REQUESTS // 2):
        engine.serve([chance.randrange(4)] * chance.randrange(1, 6))
        if number % 40 == 20:
            daemon.kill()
        elif number % 40 == 30:
            daemon.start()
    assert engine.counts["requests"] == REQUESTS // 2 and engine.adapter.refusal is None
    assert engine.counts["hit_chunks"] > 0
    engine.close()


def test_a_daemon_killed_under_its_locks_costs_hits_only(daemon):
    engine = make(daemon, timeout_ms=2000, load_timeout_ms=2000)
    engine.serve([1, 2, 3])
    rows = engine.rows([1, 2, 3])
    assert engine.lookup(rows) == [[True] * 3]
    daemon.kill()
    assert engine.load(rows[0]) in ([True] * 3, [False] * 3)  # right bytes, or none
    engine.unlock(rows[0])
    daemon.start()
    with connect(daemon):
        pass
    deadline = time.monotonic() + LONG_S
    while not engine.adapter.report_status()["is_healthy"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert engine.serve([1, 2, 3]) == 0 and engine.serve([1, 2, 3]) == 3
    engine.close()


def test_without_a_daemon_nothing_waits(daemon):
    daemon.kill()
    engine = make(daemon, timeout_ms=20)
    began = time.monotonic()
    for _ in range(20):
        assert engine.serve([1, 2, 3]) == 0
    assert time.monotonic() - began < 5
    assert engine.counts["store_failed"] == 20
    status = engine.adapter.report_status()
    assert not status["is_healthy"] and status["objects_dropped"] == 60
    engine.close()


def test_who_may_not_open_the_socket_goes_on_without_it(daemon, caplog):
    with kept_out(daemon):
        engine = make(daemon, timeout_ms=20)
        assert engine.serve([1, 2, 3]) == 0
    assert engine.adapter.refusal is None and "Permission denied" in caplog.text
    _until(lambda: engine.adapter.report_status()["is_healthy"])
    assert engine.serve([1, 2, 3]) == 0
    engine.close()


def test_a_stopped_daemon_is_left_alone(daemon):
    engine = make(daemon, timeout_ms=20, load_timeout_ms=200)
    engine.serve([1, 2, 3])
    daemon.process.send_signal(19)
    began = time.monotonic()
    for _ in range(20):
        engine.serve([1, 2, 3])
    assert time.monotonic() - began < 10
    daemon.process.send_signal(18)
    engine.close()


KEY = dict(chunk_hash=b"c" * 32, model_name="m", kv_rank=1 << 24, object_group_id=0, cache_salt="")


@pytest.mark.parametrize("field,other", [
    ("chunk_hash", b"d" * 32), ("chunk_hash", b"c" * 8), ("model_name", "n"), ("kv_rank", 2 << 24),
    ("object_group_id", 1), ("cache_salt", "tenant")])
def test_every_field_of_a_key_is_part_of_it(daemon, field, other):
    engine = make(daemon, (FULL, FULL))
    one = lmcache_engine.ObjectKey(**KEY)
    assert engine.store([one]).is_successful()
    assert engine.lookup([[one]]) == [[True]]
    engine.unlock([one])
    assert engine.lookup([[dataclasses.replace(one, **{field: other})]]) == [[False]]
    engine.close()


@pytest.mark.parametrize("named", [{"revision": "2"}, {"apart": "fp8 weights"}])
def test_other_weights_share_nothing(daemon, named):
    first, second = make(daemon), make(daemon, **named)
    first.serve([1, 2])
    assert second.serve([1, 2]) == 0
    first.close()
    second.close()


def test_another_lmcache_shares_nothing(daemon, monkeypatch):
    first = make(daemon)
    first.serve([1, 2])
    monkeypatch.setattr(sys.modules["lmcache"], "__version__", "another")
    second = make(daemon)
    assert second.serve([1, 2]) == 0
    first.close()
    second.close()


@pytest.mark.parametrize("other", [Group(((2, 2, 16, 24),), (FP16,)),
                                   Group(((2, 16, 2, 24),), (BF16,)),
                                   Group(((1, 2, 16, 24), (1, 2, 16, 24)), (BF16, BF16))])
def test_another_layout_of_the_same_size_is_another_object(daemon, other):
    first, second = make(daemon), make(daemon, (other,))
    first.serve([1, 2])
    assert second.serve([1, 2]) == 0
    first.close()
    second.close()


def test_a_load_of_another_layout_than_was_locked_brings_nothing(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    rows = engine.rows([1, 2])
    assert engine.lookup(rows) == [[True, True]]
    engine.groups = (Group(FULL.shapes, (FP16,)),)
    assert engine.load(rows[0]) == [False, False]
    engine.unlock(rows[0])
    engine.close()


def test_lookups_that_say_nothing_of_layouts_go_by_what_was_stored(daemon):
    engine = make(daemon)
    engine.said = {}
    engine.serve([1, 2, 3])
    assert engine.serve([1, 2, 3]) == 3
    engine.said = lmcache_engine.MemoryLayoutDesc([], [])  # as `lmcache bench l2` passes
    assert engine.serve([1, 2, 3]) == 3
    engine.close()


def test_objects_of_varying_size_are_refused_by_name(daemon, caplog):
    engine = make(daemon)
    key = engine.rows([1])[0][0]
    short = Memory(FULL.shapes, FULL.dtypes, used_bytes=100)
    assert not engine.store_objects([key], [short]).is_successful()
    assert caplog.text.count("objects of varying size") == 1
    assert engine.lookup([[key]]) == [[False]]
    engine.close()


def test_an_object_that_no_segment_holds_is_refused_by_name(daemon, caplog):
    engine = make(daemon, (Group(((4, 1 << 20),), (BF16,)),))
    for _ in range(3):
        engine.serve([1])
    assert caplog.text.count("are not served") == 1 and engine.adapter.refusal is None
    engine.close()


def test_what_is_locked_stays_until_it_is_unlocked(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    rows = engine.rows([1, 2])
    for _ in range(2):
        assert engine.lookup(rows) == [[True, True]]
    with connect(daemon) as client:
        space = engine.adapter._daemon.space(objects.Kind(engine.model, 0), _layout(FULL))
        group = client.open(terrace.SpaceGroup("x", [space]))
        keys = group.keys_of_digests([objects.digest_of(key) for key in rows[0]])
        assert group.evict(keys).skipped_count == 2
        engine.unlock(rows[0])
        assert all(engine.load(rows[0])), "locked twice"
        assert group.evict(keys).skipped_count == 2
        engine.unlock(rows[0])
        _until(lambda: not any(block.lease_count for block in group.query(keys)))
        assert group.evict(keys).block_count == 2
    assert engine.lookup(rows) == [[False, False]]
    engine.close()


def _layout(group):
    return objects.layout_of(group.shapes, group.dtypes)


def _until(is_met):
    deadline = time.monotonic() + LONG_S
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_lock_that_nobody_takes_back_ends(daemon, monkeypatch):
    monkeypatch.setattr(locks, "_LOCK_S_MAX", 0.0)
    engine = make(daemon)
    engine.serve([1, 2])
    rows = engine.rows([1, 2])
    engine.lookup(rows)
    assert engine.adapter.report_status()["locked_object_count"] == 2
    engine.adapter._daemon._next_sweep = 0.0
    engine.lookup(engine.rows([9]))
    assert engine.adapter.report_status()["locked_object_count"] == 0
    assert engine.load(rows[0]) == [True, True], "without a lock, too"
    engine.unlock(rows[0])
    engine.close()


def test_what_lies_behind_a_hole_is_found(daemon):
    engine = make(daemon)
    (row,) = engine.rows([1, 2, 3, 4, 5, 6])
    assert engine.store([row[0], row[2], row[3], row[5]]).is_successful()
    assert engine.lookup([row]) == [[True, False, True, True, False, True]]
    found = [row[5], row[0], row[3], row[2]]
    assert engine.load(found) == [True] * 4
    engine.unlock(found)
    engine.close()


def test_objects_of_one_prompt_are_one_chain(daemon):
    engine = make(daemon)
    engine.serve([1, 2, 3])
    engine.serve([1, 2, 3, 4, 5, 6])
    (row,) = engine.rows([1, 2, 3, 4, 5, 6])
    with connect(daemon) as client:
        space = engine.adapter._daemon.space(objects.Kind(engine.model, 0), _layout(FULL))
        group = client.open(terrace.SpaceGroup("x", [space]))
        keys = group.keys_of_digests([objects.digest_of(key) for key in row])
        assert group.match(keys).block_count == 6
        assert group.evict(keys[:1], with_descendants=True).block_count == 6
    engine.close()


def test_what_lmcache_deletes_is_gone_on_every_tier(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    (row,) = engine.rows([1, 2])
    _until(lambda: engine.adapter.report_status()["locked_object_count"] == 0)
    engine.adapter.delete(row)
    _until(lambda: any(what == "deleted" for what, *_ in engine.adapter.told))
    what, keys, sizes = engine.adapter.told[-1]
    assert keys == row and sizes == [Memory(FULL.shapes, FULL.dtypes).size] * 2, what
    assert engine.serve([1, 2]) == 0
    engine.close()


def test_what_an_instance_asks_for_its_objects_is_theirs(daemon, caplog):
    engine = make(daemon, terrace_priority=80, terrace_ttl_s=900, terrace_no_store=True,
                  terrace_colour="red", colour="red")
    engine.serve([1, 2])
    with connect(daemon) as client:
        space = engine.adapter._daemon.space(objects.Kind(engine.model, 0), _layout(FULL))
        group = client.open(terrace.SpaceGroup("x", [space]))
        keys = group.keys_of_digests([objects.digest_of(key) for key in engine.rows([1, 2])[0]])
        assert [(b.priority, b.is_no_store) for b in group.query(keys)] == [(80, True)] * 2
    assert "terrace_colour" in caplog.text and "'colour'" in caplog.text
    engine.close()


def test_weights_that_are_exchanged_share_nothing_with_those_before(daemon, tmp_path):
    version = tmp_path / "version"
    version.write_text("one")
    engine = make(daemon, weights_version_file=str(version))
    engine.serve([1, 2])
    assert engine.serve([1, 2]) == 2
    rows = engine.rows([1, 2])
    engine.lookup(rows)
    version.write_text("two")
    assert engine.load(rows[0]) == [False, False], "it was locked under the weights before"
    engine.unlock(rows[0])
    assert engine.serve([1, 2]) == 0
    version.write_text("one")
    assert engine.serve([1, 2]) == 2
    engine.close()


def test_what_fails_is_a_miss(daemon, monkeypatch):
    engine = make(daemon)
    engine.serve([1, 2])
    for name in ("lock", "begin_load", "store"):
        monkeypatch.setattr(verbs.Daemon, name, lambda *_: 1 / 0)
    assert engine.serve([1, 2]) == 0 and engine.counts["store_failed"] == 1
    engine.close()


@pytest.mark.parametrize("name", ["socket", "revision"])
def test_a_configuration_without_it_is_refused(daemon, name):
    engine = make(daemon, **{name: None})
    assert name in engine.adapter.refusal
    assert engine.serve([1]) == 0
    assert not engine.adapter.report_status()["is_healthy"]
    engine.close()


@pytest.mark.parametrize("name, value, allowed", [
    ("timeout_ms", "soon", parameters.TIMEOUT), ("load_timeout_ms", -1, parameters.MILLISECONDS),
    ("chunk_size", 2.5, "a whole number"), ("socket", 5, "a path"), ("revision", True, "a text")])
def test_a_value_that_cannot_be_is_named(daemon, name, value, allowed):
    engine = make(daemon, **{name: value})
    assert engine.adapter.refusal == f"adapter_params: {name} is {value!r}: it is {allowed}"
    assert engine.serve([1]) == 0
    engine.close()


def test_threads_that_cannot_be_are_told(daemon, caplog):
    engine = make(daemon, threads=0)
    assert "threads is 0: it goes from 1 to 64; 2 it is" in caplog.text
    assert engine.serve([1, 2]) == 0 and engine.serve([1, 2]) == 2
    engine.close()


def test_a_closed_adapter_ends_its_threads_and_leases(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    engine.lookup(engine.rows([1, 2]))
    before = threading.active_count()
    engine.adapter.close()
    assert threading.active_count() < before
    for submit in (engine.adapter.submit_store_task, engine.adapter.submit_load_task):
        submit([], [])
    with connect(daemon) as client:
        _until(lambda: client.stats()["domain"]["lease_count"] == 0)


def test_an_adapter_is_closed_twice(daemon):
    engine = make(daemon)
    engine.close()
    engine.close()


def test_what_waits_when_it_closes_and_what_comes_later_is_a_miss(daemon, monkeypatch):
    engine = make(daemon, threads=1)
    engine.serve([1, 2])
    (row,) = engine.rows([1, 2])
    objects_ = [engine.memory_of(key) for key in row]
    begun, go_on = threading.Event(), threading.Event()
    calls = []

    def slow(*_):
        calls.append(1)
        begun.set()
        assert go_on.wait(LONG_S)

    monkeypatch.setattr(verbs.Daemon, "begin_load", slow)
    adapter = engine.adapter
    running, *waiting = [adapter.submit_load_task(row, objects_) for _ in range(3)]
    assert begun.wait(LONG_S)
    closer = threading.Thread(target=adapter.close)
    closer.start()
    for task in waiting:  # while the first one still runs
        bits = _wait_by_asking(None, 0, lambda task=task: adapter.query_load_result(task))
        assert not bits.test(0) and not bits.test(1)
    assert os.eventfd_read(adapter.get_load_event_fd()) >= 1
    assert adapter.query_load_result(running) is None
    go_on.set()
    closer.join()
    assert adapter.query_load_result(running) is not None and len(calls) == 1
    assert not adapter.query_load_result(adapter.submit_load_task(row, objects_)).test(0)
    assert not adapter.query_lookup_and_lock_result(
        adapter.submit_lookup_and_lock_task(row)).test(0)
    task = adapter.submit_store_task(row, objects_)
    assert not adapter.pop_completed_store_tasks()[task].is_successful()


def test_a_client_that_is_closed_under_a_request_is_a_miss(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    engine.adapter._daemon.shelf.client.close()  # as close() does while another thread submits
    assert engine.serve([1, 2]) == 0
    assert not engine.adapter.report_status()["is_healthy"]
    engine.close()


def test_a_forked_child_misses_at_once_and_leaves_the_parents_leases(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    rows = engine.rows([1, 2])
    assert engine.lookup(rows) == [[True, True]]
    event = engine.adapter.get_lookup_and_lock_event_fd()
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(event)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            lmcache_engine.LONG_MS = 2000
            assert engine.lookup(rows) == [[False, False]] and os.eventfd_read(event) == 1
            assert engine.lookup(rows) == [[False, False]]
            assert engine.load(rows[0]) == [False, False]
            assert not engine.store(rows[0]).is_successful()
            engine.unlock(rows[0])
            assert not engine.adapter.report_status()["is_healthy"]
            engine.adapter.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(BlockingIOError):
        os.eventfd_read(event)  # the child's event is the child's
    with connect(daemon) as client:
        assert client.stats()["domain"]["lease_count"] > 0
    assert engine.load(rows[0]) == [True, True]
    engine.unlock(rows[0])
    engine.close()


def test_a_load_that_fails_leaves_no_lease(daemon):
    engine = make(daemon)
    engine.serve([1, 2])
    engine.serve([3, 4])
    rows = engine.rows([1, 2]) + engine.rows([3, 4])
    assert engine.lookup(rows) == [[True, True]] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terrace.ReadLease, "copy_into", _io_error)
        assert engine.load(rows[0] + engine.rows([9])[0] + rows[1]) == [False] * 5
    for row in rows:
        engine.unlock(row)
    with connect(daemon) as client:
        _until(lambda: client.stats()["domain"]["lease_count"] == 0)
    engine.close()


def _io_error(*_, **__):
    raise terrace.IoError("a drive is broken")


@pytest.mark.parametrize("name", ["query", "acquire"])
def test_a_lookup_that_fails_tells_of_what_it_has_locked(daemon, name):
    engine = make(daemon)
    engine.serve([1, 2])
    (first,), (second,) = engine.rows([1, 2, 7, 8]), engine.rows([3, 4], "tenant")
    real = getattr(terrace.Group, name)
    left = [1 if name == "acquire" else 0]

    def fails(*arguments, **named):
        if left[0] == 0:
            _io_error()
        left[0] -= 1
        return real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terrace.Group, name, fails)
        rows = [first, second] if name == "query" else [first[:2], second]
        answer = engine.lookup(rows)
    assert answer[0][:2] == [True, True] and not any(answer[1])
    assert engine.adapter.report_status()["locked_object_count"] == 2
    engine.unlock(first[:2])
    assert engine.adapter.report_status()["locked_object_count"] == 0
    engine.close()


def test_what_was_refused_is_asked_for_again_after_a_while(monkeypatch, caplog):
    with tempfile.TemporaryDirectory() as directory:
        strict = Daemon(directory, f'[[domain]]\nname = "default"\nsocket = "{directory}/t.sock"'
                                   '\nallow_models = ["another"]\n')
        connect(strict).close()
        engine = make(strict)
        engine.serve([1, 2])
        strict.config.write_text(strict.config.read_text().replace("another", "meta/*"))
        strict.process.send_signal(signal.SIGHUP)
        _until(lambda: _is_open(strict, engine))
        assert engine.serve([1, 2]) == engine.serve([1, 2]) == 0, "nobody asks so soon"
        monkeypatch.setattr(verbs, "time", types.SimpleNamespace(
            monotonic=lambda: time.monotonic() + 60, sleep=time.sleep))
        engine.serve([1, 2])
        assert engine.serve([1, 2]) == 2
        assert caplog.text.count("are not served") == 1
        engine.close()
        strict.stop()


def _is_open(daemon, engine):
    with connect(daemon) as client:
        space = engine.adapter._daemon.space(objects.Kind(engine.model, 0), _layout(FULL))
        try:
            client.open(terrace.SpaceGroup("x", [space]))
        except terrace.TerraceError:
            return False
    return True


def test_the_stand_in_asks_for_what_lmcache_asks_for():
    """Of the LMCache that is installed, in another process: here the stand-in has its name."""
    program = ("import lmcache, json; from lmcache.v1.distributed.l2_adapters.base import "
               "L2AdapterInterface as A; print(json.dumps([lmcache.__version__, "
               "sorted(A.__abstractmethods__)]))")
    done = subprocess.run([os.environ.get("TERRACE_ENGINES_PYTHON", sys.executable), "-c", program],
                          capture_output=True, text=True, check=False, timeout=120,
                          env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    if done.returncode != 0:
        pytest.skip("no lmcache here: what it asks for is not compared")
    version, names = json.loads(done.stdout.splitlines()[-1])
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface  # pylint: disable=C0415
    assert names == sorted(L2AdapterInterface.__abstractmethods__), version
    for name in names:
        assert inspect.signature(getattr(L2AdapterInterface, name)), name


def test_what_is_locked_is_loaded_under_its_lease(daemon, monkeypatch):
    engine = make(daemon)
    engine.serve([1, 2, 3])
    (row,) = engine.rows([1, 2, 3])
    engine.lookup([row])
    monkeypatch.setattr(terrace.Group, "acquire", lambda *_, **__: 1 / 0)
    assert engine.load(row) == [True] * 3
    engine.unlock(row)
    engine.close()


def test_of_what_does_not_come_in_time_the_head_is_loaded(daemon, monkeypatch):
    engine = make(daemon, load_timeout_ms=200)
    engine.serve([1, 2, 3])
    (row,) = engine.rows([1, 2, 3])
    engine.lookup([row])

    def late(_lease, _count, _timeout_s):
        raise terrace.Busy("a drive is slow")

    monkeypatch.setattr(terrace.ReadLease, "wait_ready", late)
    monkeypatch.setattr(terrace.ReadLease, "ready_count", property(lambda self: 2))
    assert engine.load(row) == [True, True, False]
    engine.unlock(row)
    engine.close()


def test_what_passes_by_is_not_offered_again(daemon, monkeypatch):
    offered = []
    reserve, answers = terrace.Group.reserve, terrace.WriteLease.__iter__

    def count(group, keys, *rest, **named):
        offered.append(len(keys))
        return reserve(group, keys, *rest, **named)

    def pass_by(lease):
        for number, key in enumerate(answers(lease)):
            yield key if number < 2 else key._replace(status="no space", is_passed_by=True)

    monkeypatch.setattr(terrace.Group, "reserve", count)
    monkeypatch.setattr(terrace.WriteLease, "__iter__", pass_by)
    engine = make(daemon)
    began = time.monotonic()
    engine.serve([1, 2, 3, 4, 5])
    assert offered == [5] and time.monotonic() - began < LONG_S
    monkeypatch.undo()
    assert engine.fetch([1, 2, 3, 4, 5]) >= 2
    engine.close()


def test_a_reader_loads_objects_and_stores_none(daemon, caplog):
    writer = make(daemon)
    assert writer.serve([1, 2, 3]) == 0
    writer.close()
    let_nobody_store(daemon)
    reader = make(daemon)
    with caplog.at_level("INFO"):
        began = time.monotonic()
        assert reader.serve([1, 2, 3, 4, 5]) == 3
        assert reader.serve([7]) == 0
        assert time.monotonic() - began < LONG_S, "it waits for no room"
        assert reader.serve([7]) == 0, "it was not stored"
    assert len([r for r in caplog.records if "may only read" in r.getMessage()]) == 1
    assert reader.adapter.report_status()["is_healthy"]
    reader.close()


def test_what_was_computed_before_the_weights_were_exchanged_is_not_stored_behind_it(
        daemon, tmp_path):
    mine, others = tmp_path / "mine", tmp_path / "others"
    mine.write_text("1")
    others.write_text("2")
    one = make(daemon, weights_version_file=str(mine))
    peer = make(daemon, weights_version_file=str(others))
    keys = one.rows([1, 2])[0]
    one.lookup([keys])  # a miss: they are computed, and are in LMCache's memory by now
    held = [one.memory_of(key) for key in keys]
    (tmp_path / "new").write_text("2")
    os.rename(tmp_path / "new", mine)
    one.store_objects(keys, held)
    assert not any(any(row) for row in peer.lookup([keys])), "of the old weights"
    assert one.adapter.counters["objects_stored"] == 0
    assert one.serve([3, 4]) == 0
    assert peer.serve([3, 4]) == 2, "of today's, whichever instance has computed them"
    one.close()
    peer.close()
