"""Loads of LMCache's whose objects are still on their way: they hold up no other, and end when that
is known, at their deadline, or with the adapter."""
import pathlib
import signal
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))

import terrace  # noqa: E402  pylint: disable=wrong-import-position
from terrace.lmcache import TerraceL2Adapter  # noqa: E402  pylint: disable=C0413
import lmcache_engine  # noqa: E402  pylint: disable=wrong-import-position
from conftest import (  # noqa: E402  pylint: disable=wrong-import-position
    LONG_S, SlowTier, begin_beside_hang, connect, until)


class Loads:
    """Prompts of two chunks each, all of them stored; loads of them."""

    def __init__(self, daemon, prompt_count, **config):
        self.engine = lmcache_engine.Engine(TerraceL2Adapter({
            "socket": daemon.socket, "revision": "1", "timeout_ms": 1000 * LONG_S,
            "load_timeout_ms": 1000 * LONG_S, **config}))
        self.adapter = self.engine.adapter
        self.rows = []
        for number in range(prompt_count):
            self.engine.serve([number, 1])
            self.rows += self.engine.rows([number, 1])

    def begin(self, row):
        """A task; what it is to bring, and where to."""
        memory = [self.engine.memory_of(key) for key in row]
        return self.adapter.submit_load_task(row, memory), row, memory

    def end(self, load):
        """Which objects it brought, with the right bytes. Nothing is written afterwards."""
        task, row, memory = load
        found = []
        until(lambda: found.append(self.adapter.query_load_result(task)) or found[-1] is not None,
              pause_s=0.001)
        loaded = [found[-1].test(i) for i in range(len(row))]
        for key, each, is_loaded in zip(row, memory, loaded):
            if is_loaded:
                assert (each.bytes == lmcache_engine.right_bytes(key, each.size)).all()
            self.engine._poison(each)
        return loaded

    def has_ended(self, load):
        return load[0] in self.adapter._loads._results

    def close(self):
        self.engine.unlock(list(self.engine.locked.elements()))
        self.engine.close()


def no_lease_is_held(daemon):
    with connect(daemon) as client:
        until(lambda: client.stats()["domain"]["lease_count"] == 0)


@pytest.mark.parametrize("is_locked", [True, False])
def test_what_a_slow_tier_brings_holds_up_nothing_that_is_there(daemon, monkeypatch, is_locked):
    loads = Loads(daemon, 11)
    *slow, there = loads.rows
    tier = SlowTier(monkeypatch)
    if is_locked:
        assert [loads.engine.lookup([row]) for row in slow] == [[[True, True]]] * 10
    coming = [loads.begin(row) for row in slow]
    until(lambda: len(tier.leases) == 10)
    tier.is_slow = False
    assert loads.end(loads.begin(there)) == [True, True]
    assert not any(loads.has_ended(load) for load in coming)
    tier.bring()
    assert [loads.end(load) for load in coming] == [[True, True]] * 10
    loads.close()
    no_lease_is_held(daemon)


def test_at_its_deadline_each_brings_what_has_come(daemon, monkeypatch):
    loads = Loads(daemon, 1, load_timeout_ms=200)
    tier = SlowTier(monkeypatch)
    tier.head = 1
    began = time.monotonic()
    late = [loads.begin(loads.rows[0]) for _ in range(100)]
    assert [loads.end(load) for load in late] == [[True, False]] * 100
    assert time.monotonic() - began < 5, "two threads would wait that long one after another"
    loads.close()
    no_lease_is_held(daemon)


def test_one_lock_serves_loads_that_wait_and_loads_that_need_not(daemon, monkeypatch):
    loads = Loads(daemon, 1)
    (row,) = loads.rows
    tier = SlowTier(monkeypatch)
    tier.head = 1
    loads.engine.lookup([row])
    whole = [loads.begin(row) for _ in range(4)]
    assert loads.end(loads.begin(row[:1])) == [True]
    loads.engine.unlock(row)
    assert not any(loads.has_ended(load) for load in whole), "its lease stays for them"
    tier.bring()
    assert [loads.end(load) for load in whole] == [[True, True]] * 4
    assert len(tier.leases) == 1
    loads.close()
    no_lease_is_held(daemon)


@pytest.mark.parametrize("is_under_way", [True, False])
def test_beside_a_daemon_that_hangs_each_ends_by_its_deadline(daemon, monkeypatch, is_under_way):
    loads = Loads(daemon, 1, load_timeout_ms=300)
    tier = SlowTier(monkeypatch)
    began = time.monotonic()
    late = begin_beside_hang(daemon, tier, lambda: loads.begin(loads.rows[0]), is_under_way)
    assert [loads.end(load) for load in late] == [[False, False]] * 100
    assert time.monotonic() - began < 5, "one answer of the daemon's may take longer"
    daemon.process.send_signal(signal.SIGCONT)
    loads.close()
    no_lease_is_held(daemon)


def test_an_adapter_that_closes_waits_for_no_object(daemon, monkeypatch):
    loads = Loads(daemon, 5)
    tier = SlowTier(monkeypatch)
    tier.head = 1
    slow = [loads.begin(row) for row in loads.rows]
    until(lambda: len(loads.adapter._room._awaited) == 5)
    began = time.monotonic()
    loads.close()
    assert time.monotonic() - began < LONG_S / 2, "they had that long to come"
    assert [loads.end(load) for load in slow] == [[True, False]] * 5
    no_lease_is_held(daemon)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_without_threads_it_serves_nothing_and_raises_nothing(daemon, monkeypatch, count):
    start = threading.Thread.start

    def limited(thread):
        nonlocal count
        if thread.name.startswith("terrace-"):
            if count == 0:
                raise RuntimeError("can't start new thread")
            count -= 1
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    loads = Loads(daemon, 1)
    assert "can't start new thread" in loads.adapter.refusal
    (row,) = loads.rows
    assert loads.engine.lookup([row]) == [[False, False]]
    assert loads.end(loads.begin(row)) == [False, False]
    assert not loads.engine.store(row).is_successful()
    loads.close()


def test_a_load_whose_lease_is_lost_ends_at_once(daemon, monkeypatch):
    loads = Loads(daemon, 2)
    SlowTier(monkeypatch)
    slow = [loads.begin(row) for row in loads.rows]
    until(lambda: len(loads.adapter._room._awaited) == 2)
    daemon.kill()
    assert [loads.end(load) for load in slow] == [[False, False]] * 2
    assert loads.adapter.refusal is None
    loads.close()
