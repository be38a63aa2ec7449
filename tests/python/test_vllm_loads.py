"""Loads of a vLLM worker whose blocks are still on their way: they hold up no other, and end when
that is known, at their deadline, or with the worker."""
import threading
import time

import pytest

# First: it stands in for vLLM.
from vllm_driver import LENT, LONG_S, ONE_SHARE, GroupOf
import terrace
from conftest import block_bytes, connect, until
from terrace.vllm.copies import InStep
from terrace.vllm.messages import Load
from terrace.vllm.worker import WorkerHalf


class Coming:
    """A lease of blocks that come when the test says so."""

    is_valid = True

    def __init__(self, block_count=1):
        self.block_count, self.ready_count, self.is_lost, self.releases = block_count, 0, False, 0
        self.waits = 0

    def wait_ready(self, count, timeout_s):
        self.waits += 1
        if self.ready_count >= count:
            return
        if self.is_lost:
            raise terrace.NotFound("no more blocks will come")
        time.sleep(timeout_s)
        raise terrace.Busy("not yet")

    def release(self, end_reason="unknown"):
        self.releases += 1


@pytest.fixture
def worker(monkeypatch):
    """(half, begin a load of a lease under a name, the names whose copies were made)"""
    copied = []
    monkeypatch.setattr(InStep, "load", lambda self, lease, member, block_ids, timeout_s:
                        copied.append(len(block_ids)))
    monkeypatch.setattr(WorkerHalf, "_bytes_of", lambda self, counts: 0)
    leases = {}
    half = WorkerHalf(GroupOf(lambda token: leases[token.low]), lambda: InStep({}),
                      shares=ONE_SHARE, load_timeout_s=float(LONG_S))

    def begin(name, lease, wait_s=None):
        number = len(leases)
        leases[number] = lease
        first = number * 100
        half.load([Load(name, (1, number), [list(range(first, first + lease.block_count))],
                        wait_s)])

    yield half, begin, copied
    half.close()


def ended(half, names):
    """Whether all of them have been reported, failed or not."""
    seen, failed = set(), set()

    def look():
        loaded, lost = half.take_loaded()
        seen.update(loaded)
        failed.update(lost)
        return names <= seen

    until(look)
    assert seen == names
    return failed


def test_what_a_slow_tier_brings_holds_up_nothing_that_is_there(worker):
    half, begin, copied = worker
    slow = [Coming() for _ in range(10)]
    for number, lease in enumerate(slow):
        begin(f"slow{number}", lease)
    begin("there", LENT)
    assert ended(half, {"there"}) == set() and copied == [1]
    for lease in slow:
        lease.ready_count = 1
    assert ended(half, {f"slow{n}" for n in range(10)}) == set()
    assert len(copied) == 11 and all(lease.releases == 1 for lease in slow)


def test_a_load_that_is_lost_ends_at_once_whoever_waits_beside_it(worker):
    half, begin, copied = worker
    slow = [Coming(4) for _ in range(30)]
    for number, lease in enumerate(slow):
        begin(f"slow{number}", lease)
    lost = slow[17]
    lost.ready_count, lost.is_lost = 2, True
    assert ended(half, {"slow17"}) == {"slow17"}
    assert copied == [2] and half.take_bad_blocks() == {1702, 1703}
    invalid = slow[4]
    invalid.is_valid, invalid.is_lost = False, True
    assert ended(half, {"slow4"}) == {"slow4"}
    assert half.take_bad_blocks() == {400, 401, 402, 403}


def test_at_its_deadline_what_has_come_is_loaded(worker):
    half, begin, copied = worker
    lease, other = Coming(4), Coming()
    lease.ready_count = 3
    begin("late", lease, wait_s=0.05)
    begin("other", other)
    assert ended(half, {"late"}) == {"late"}
    assert copied == [3] and half.take_bad_blocks() == {3} and other.releases == 0


def test_a_worker_that_closes_waits_for_no_block(worker):
    half, begin, copied = worker
    slow = [Coming() for _ in range(5)]
    for number, lease in enumerate(slow):
        begin(f"slow{number}", lease)
    until(lambda: len(half._waiting._awaited) == 5)
    began = time.monotonic()
    half.close()
    assert time.monotonic() - began < LONG_S / 2, "they had that long to come"
    assert half.take_loaded()[0] == {f"slow{n}" for n in range(5)}
    assert copied == [] and all(lease.releases == 1 for lease in slow)


def test_a_daemon_that_hangs_costs_a_load_its_deadline_and_not_all_joins(monkeypatch):
    joins = []

    def join(token):
        joins.append(token)
        time.sleep(0.05)
        raise terrace.Busy("no answer")

    half = WorkerHalf(GroupOf(join), lambda: InStep({}), shares=ONE_SHARE, load_timeout_s=0.2)
    half.load([Load(f"r{n}", (1, n), [[n]]) for n in range(200)])
    assert ended(half, {f"r{n}" for n in range(200)}) == {f"r{n}" for n in range(200)}
    assert 2 <= len(joins) < 100
    more = [Load(f"s{n}", (1, n), [[n]]) for n in range(200)]
    monkeypatch.setattr(half, "load_timeout_s", float(LONG_S))
    half.load(more)
    half.close()
    assert ended(half, {load.request_id for load in more}) and len(joins) < 150


def test_nobody_looks_while_nothing_is_on_its_way(worker):
    half, begin, _ = worker
    lease = Coming()
    begin("slow", lease)
    until(lambda: lease.waits > 3)
    lease.ready_count = 1
    ended(half, {"slow"})
    waits = lease.waits
    time.sleep(0.05)
    assert lease.waits == waits and not half._waiting._is_watched


def test_blocks_that_another_engine_is_writing_are_loaded_when_they_are_there(daemon, group):
    keys = group.hash([7] * 16)
    stored = group.hash([8] * 16)
    with group.reserve(stored) as lease:
        lease.write([block_bytes(2)])
        assert lease.commit() == 1
    pages = [bytearray(group.spec.members[0].block_bytes) for _ in range(2)]

    class Copies(InStep):
        def load(self, lease, member, block_ids, timeout_s):
            lease.copy_into([pages[block_ids[0]]], block_count=1)

    with connect(daemon) as first, connect(daemon) as second:
        scheduler, worker = (each.open(group.spec) for each in (first, second))
        half = WorkerHalf(worker, lambda: Copies({}), shares=ONE_SHARE, load_timeout_s=LONG_S)
        with group.reserve(keys) as writing:
            writing.write([block_bytes(1)])
            following = scheduler.acquire(keys, flags=terrace.ACQUIRE_FOLLOW)
            there = scheduler.acquire(stored)
            assert (following.block_count, following.ready_count) == (1, 0)
            half.load([Load("following", following.token, [[0]]),
                       Load("there", there.token, [[1]])])
            assert ended(half, {"there"}) == set() and pages[1] == block_bytes(2)
            assert threading.Timer(0.05, writing.commit).start() is None
            assert ended(half, {"following"}) == set()
        assert pages[0] == block_bytes(1) and half.take_bad_blocks() == set()
        half.close()
        following.release()
        there.release()
