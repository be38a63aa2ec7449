"""terrace.vllm_tier against a manager that enforces the contract of tiers, and a real daemon."""
import dataclasses
import os
import pathlib
import random
import signal
import sys
import threading
import time
import types

import numpy
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))

# vLLM's module that seeds block hashes; its name is theirs.
sys.modules["vllm.v1.core"] = types.ModuleType("vllm.v1.core")
sys.modules["vllm.v1.core"].kv_cache_utils = types.SimpleNamespace(
    DEFAULT_NONE_HASH_SEED="vllm-none-hash")

import terrace  # noqa: E402  pylint: disable=wrong-import-position
import terrace.vllm_tier as vllm_tier  # noqa: E402  pylint: disable=wrong-import-position
from terrace import parameters  # noqa: E402  pylint: disable=wrong-import-position
from terrace.vllm import tier_chunks  # noqa: E402  pylint: disable=wrong-import-position
import vllm_tiering  # noqa: E402  pylint: disable=wrong-import-position
from conftest import (  # noqa: E402  pylint: disable=wrong-import-position
    LONG_S, SlowTier, begin_beside_hang, connect, kept_out, let_nobody_store, until)
from vllm.v1.kv_offload.base import ReqContext  # noqa: E402  pylint: disable=C0413
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402  pylint: disable=C0413

ROW_BYTES = 8192
REQUESTS = int(os.environ.get("TERRACE_ENGINE_REQUESTS", "200")) // 4


@dataclasses.dataclass
class Parallel:
    rank: int = 0
    tp_size: int = 2
    data_parallel_index: int = 0
    is_parallelism_agnostic: bool = False


def make_spec(groups=(0,), **named):
    return types.SimpleNamespace(config=types.SimpleNamespace(
        groups=[types.SimpleNamespace(group_id=g, tokens_per_block=vllm_tiering.CHUNK_TOKENS,
                                      layer_names=(f"layer.{g}",)) for g in groups],
        model=types.SimpleNamespace(name="stand-in", dtype="float16"),
        cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=Parallel(**named)))


def make_driver(daemon, rows=12, groups=(0,), **config):
    config = {"socket": daemon.socket, "revision": "1", "timeout_ms": 1000 * LONG_S,
              "load_timeout_ms": 1000 * LONG_S, **config}
    manager = vllm_tiering.StandIn(
        lambda view: vllm_tier.TerraceTier(make_spec(groups), view, "TerraceTier", **config),
        rows, ROW_BYTES, TransferJob)
    return vllm_tiering.Driver(manager, manager.memory, groups)


def close(driver):
    manager = driver.manager
    manager.reset_cache()
    assert not manager.jobs and not manager.filling
    assert all(count == 0 for count in manager.users.values())
    tier = manager.tier
    assert not tier._verdicts._known and not tier._contexts and not tier._chains
    manager.shutdown()


def test_a_reset_of_vllms_tiers_begins_another_epoch(daemon):
    one, peer = make_driver(daemon), make_driver(daemon)
    one.add([1] * 4)
    one.run()
    one.manager.reset_cache()
    one.add([2] * 4)
    one.run()
    peer.add([1] * 4)
    peer.run()
    loaded = peer.manager.tier.counters["loaded_chunks"]
    assert loaded > 0, "nobody erased it"
    peer.add([2] * 4)
    peer.run()
    assert peer.manager.tier.counters["loaded_chunks"] == loaded, "of weights that peer has not"
    close(one)
    close(peer)


@pytest.mark.parametrize("groups", [(0,), (0, 3)])
def test_random_requests_keep_the_contract(daemon, groups):
    chance = random.Random(len(groups))
    driver = make_driver(daemon, rows=24, groups=groups)
    for _ in range(REQUESTS):
        head = chance.randrange(6)
        driver.add([head] * chance.randrange(1, 6) + [chance.randrange(3)] * chance.randrange(3))
        while len(driver.waiting) > chance.randrange(3):
            driver.step()
    driver.run()
    assert driver.counts["finished"] == REQUESTS and driver.manager.tier.refusal is None
    assert driver.manager.tier.counters["loaded_chunks"] > REQUESTS // 10
    close(driver)


def test_a_second_instance_loads_what_the_first_one_stored(daemon):
    for number in range(2):
        driver = make_driver(daemon)
        driver.add([1, 2, 3, 4, 5])
        driver.run()
        assert driver.counts["loaded"] == (5 if number else 0)
        close(driver)


def test_stores_of_one_request_are_one_chain(daemon):
    driver = make_driver(daemon)
    driver.add([1, 2, 3])
    driver.run()
    driver.add([1, 2, 3, 4, 5, 6])  # loads three of its own rows, and stores three behind them
    driver.run()
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("x", [_space(driver)]))
        keys = group.keys_of_digests([key[:32] for key in _chain([1, 2, 3, 4, 5, 6])])
        assert group.match(keys).block_count == 6
        assert group.evict(keys[:1], with_descendants=True).block_count == 6
    close(driver)


def test_what_a_request_asks_for_its_chunks_is_theirs(daemon, caplog):
    driver = make_driver(daemon)
    driver.add([1, 2, 3], kv_transfer_params={"terrace_priority": 80, "terrace_no_store": 1,
                                              "terrace_ttl_s": "soon", "terrace_session": "s"})
    driver.run()
    driver.add([7, 8])
    driver.run()
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("x", [_space(driver)]))
        keys = group.keys_of_digests([key[:32] for chain in ([1, 2, 3], [7, 8])
                                      for key in _chain(chain)])
        assert [(block.priority, block.is_no_store) for block in group.query(keys)] == (
            [(80, True)] * 3 + [(35, False)] * 2)
    assert caplog.text.count("terrace_ttl_s is 'soon'") == 1
    close(driver)


def _space(driver):
    return driver.manager.tier._chunks._spaces[0]


def _chain(tokens):
    chain = []
    for token in tokens:
        chain.append(vllm_tiering.key_of(chain[-1] if chain else b"", token, 0))
    return chain


def test_what_is_lost_after_a_promise_is_computed(daemon, monkeypatch):
    first = make_driver(daemon)
    first.add([1, 2, 3, 4])
    first.run()
    close(first)
    acquire = tier_chunks.Chunks.acquire
    monkeypatch.setattr(tier_chunks.Chunks, "acquire", lambda self, run, deadline: acquire(
        self, run._replace(hashes=run.hashes[:2]), deadline))
    driver = make_driver(daemon)
    driver.add([1, 2, 3, 4])
    driver.run()
    assert driver.counts["loaded"] == 2 and driver.counts["computed"] == 2
    assert driver.manager.tier.counters["lost_chunks"] == 2
    close(driver)


def test_daemons_that_die_cost_hits_only(daemon):
    chance = random.Random(5)
    driver = make_driver(daemon, timeout_ms=2000, load_timeout_ms=2000)
    for number in range(REQUESTS):
        driver.add([chance.randrange(4)] * chance.randrange(1, 6))
        driver.step()
        if number % 40 == 20:
            daemon.kill()
        elif number % 40 == 30:
            daemon.start()
    driver.run()
    assert driver.counts["finished"] == REQUESTS and driver.manager.tier.refusal is None
    close(driver)


def test_without_a_daemon_nothing_waits(daemon):
    daemon.kill()
    driver = make_driver(daemon, timeout_ms=20)
    driver.add([1, 2, 3])
    driver.step()
    assert driver.counts["finished"] == 1 and driver.counts["computed"] == 3
    driver.run()
    close(driver)


def test_who_may_not_open_the_socket_goes_on_without_it(daemon, caplog):
    with kept_out(daemon):
        driver = make_driver(daemon, timeout_ms=20)
        driver.add([1, 2, 3])
        driver.run()
    assert driver.counts["finished"] == 1 and driver.manager.tier.refusal is None
    assert "Permission denied" in caplog.text
    close(driver)


def test_what_fails_turns_the_tier_off_not_the_engine(daemon, monkeypatch):
    monkeypatch.setattr(tier_chunks.Chunks, "present", lambda self, run: 1 / 0)
    driver = make_driver(daemon)
    for _ in range(3):
        driver.add([1, 2, 3])
        driver.run()
    assert "ZeroDivisionError" in driver.manager.tier.refusal
    assert driver.counts["finished"] == 3
    close(driver)


@pytest.mark.parametrize("name", ["socket", "revision"])
def test_a_configuration_without_it_is_refused(daemon, name):
    driver = make_driver(daemon, **{name: None})
    assert name in driver.manager.tier.refusal
    driver.add([1])
    driver.run()
    close(driver)


def test_hashes_that_nobody_shares_are_refused(daemon, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    driver = make_driver(daemon)
    context = types.SimpleNamespace(req_id="r")
    driver.manager.tier.lookup(b"x" * 16 + bytes(4), context)
    assert "sha256" in driver.manager.tier.refusal
    close(driver)


def test_a_space_is_everything_that_decides_the_bytes():
    def layout(revision="1", row_bytes=8192, **named):
        return tier_chunks.spaces_of(make_spec((0, 2), **named).config, revision, row_bytes)

    assert layout() == layout(rank=1, data_parallel_index=3)
    assert layout(is_parallelism_agnostic=True) == layout(is_parallelism_agnostic=True, tp_size=4)
    different = [layout(), layout(revision="2"), layout(row_bytes=4096), layout(tp_size=4)]
    assert len({str(spaces) for spaces in different}) == 4
    assert sorted(layout()) == [0, 2] and layout()[0] != layout()[2]


@pytest.mark.parametrize("is_late", [False, True])
def test_without_threads_it_serves_nothing_and_raises_nothing(daemon, monkeypatch, is_late):
    start, over = threading.Thread.start, threading.Event()

    def limited(thread):
        if over.is_set() and thread.name.startswith("terrace-"):
            raise RuntimeError("can't start new thread")
        return start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    if not is_late:
        over.set()
    driver = make_driver(daemon)
    over.set()
    driver.add([1, 2, 3])
    driver.run()
    refusal = driver.manager.tier.refusal
    assert refusal is None if is_late else "can't start new thread" in refusal
    assert (driver.manager.tier.counters["stored_jobs"] > 0) == is_late
    close(driver)


def test_runs_are_successive_chunks_of_one_group():
    keys = [bytes([i]) * 32 + group.to_bytes(4, "big") for i, group in
            [(0, 0), (2, 0), (1, 0), (5, 0), (0, 1)]]
    ends = {key: (key[0] + 1) * 16 for key in keys}
    runs = tier_chunks.runs_of(keys, ends.get, {0: 16, 1: 16})
    assert [(r.group_index, r.position, r.indexes) for r in runs] == [
        (0, 0, [0, 2, 1]), (0, 5, [3]), (1, 0, [4])]
    flat = tier_chunks.runs_of(keys, lambda key: None, {0: 16, 1: 16})
    assert [(r.group_index, r.position, r.indexes) for r in flat] == [
        (0, -1, [0, 1, 2, 3]), (1, -1, [4])]


def test_a_reader_loads_and_stores_nothing(daemon):
    first = make_driver(daemon)
    first.add([1, 2, 3])
    first.run()
    close(first)
    let_nobody_store(daemon)
    with connect(daemon) as client:
        before = client.stats()["domain"]["block_count"]
        reader = make_driver(daemon)
        reader.add([1, 2, 3, 4, 5])
        reader.run()
        assert reader.counts["loaded"] == 3 and reader.manager.tier.refusal is None
        assert client.stats()["domain"]["block_count"] == before
        close(reader)


@pytest.mark.parametrize("name, value, allowed", [
    ("timeout_ms", "soon", parameters.TIMEOUT), ("load_timeout_ms", -1, parameters.MILLISECONDS),
    ("socket", 5, "a path"), ("revision", True, "a text")])
def test_a_value_that_cannot_be_is_named(daemon, name, value, allowed):
    driver = make_driver(daemon, **{name: value})
    assert driver.manager.tier.refusal == (
        f"the tier's configuration: {name} is {value!r}: it is {allowed}")
    driver.add([1] * 4)
    driver.run()
    close(driver)


def test_a_name_that_is_none_is_told(daemon, caplog):
    driver = make_driver(daemon, sokcet="/s", module_path="terrace.vllm_tier")
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == 1 and "'sokcet'" in texts[0] and "did you mean 'socket'" in texts[0]
    assert driver.manager.tier.refusal is None
    close(driver)


def end_step(manager):
    manager.on_schedule_end(types.SimpleNamespace(new_req_ids=set(), preempted_req_ids=set()))


def test_what_was_computed_before_the_weights_were_exchanged_is_not_stored_behind_it(
        daemon, tmp_path):
    mine, others = tmp_path / "mine", tmp_path / "others"
    mine.write_text("1")
    others.write_text("2")
    one = make_driver(daemon, weights_version_file=str(mine))
    peer = make_driver(daemon, weights_version_file=str(others))
    manager = one.manager
    one.add([1, 2, 3])
    context, chains = one.waiting.pop()
    filled = manager.prepare_store(chains[0], context)  # its rows are on their way to memory
    for row in filled.store_spec.chunk_ids:
        one.memory[row] = 0x11  # what the old weights compute
    (tmp_path / "new").write_text("2")
    os.rename(tmp_path / "new", mine)
    end_step(manager)
    manager.complete_store(filled.keys_to_store, context, True)
    manager.on_request_finished(context)
    while manager.has_pending_work():
        end_step(manager)
    manager.reset_cache()  # vLLM's, behind the exchange
    peer.add([1, 2, 3])
    peer.run()  # says when bytes are wrong
    assert peer.counts["loaded"] == 0
    one.add([4, 5, 6])
    one.run()
    assert manager.tier.counters["stored_jobs"] > 0, "what today's weights compute is stored"
    for driver in (one, peer):
        close(driver)


class Loads:
    """Prompts of two chunks each, all of them stored, and another instance that loads them."""

    def __init__(self, daemon, prompt_count, **config):
        first = make_driver(daemon, rows=4 * prompt_count)
        self.chains = [_chain([number, 1]) for number in range(prompt_count)]
        for number in range(prompt_count):
            first.add([number, 1])
        first.run()
        close(first)
        self.driver = make_driver(daemon, rows=256, **config)
        self.tier = self.driver.manager.tier
        self.jobs, self.results = {}, {}

    def begin(self, chain):
        number = len(self.jobs)
        rows = [2 * number, 2 * number + 1]
        self.jobs[number] = (chain, rows)
        self.tier.submit_load(TransferJob(number, tuple(chain), numpy.array(rows), True,
                                          ReqContext(req_id=f"r{number}")))
        return number

    def look(self):
        for result in self.tier.get_finished_jobs():
            assert result.job_id not in self.results
            self.results[result.job_id] = result
        return self.results

    def end(self, number):
        """How many chunks it brought, with the right bytes."""
        until(lambda: number in self.look(), pause_s=0.001)
        chain, rows = self.jobs[number]
        result = self.results[number]
        good = chain if result.success else result.successful_keys or ()
        for key, row in zip(chain, rows):
            if key in good:
                found = self.driver.memory[row]
                assert (found == vllm_tiering.right_bytes(key, len(found))).all()
        return len(good)


def no_lease_is_held(daemon):
    with connect(daemon) as client:
        until(lambda: client.stats()["domain"]["lease_count"] == 0)


def test_what_a_slow_tier_brings_holds_up_nothing_that_is_there(daemon, monkeypatch):
    loads = Loads(daemon, 11)
    *slow, there = loads.chains
    tier = SlowTier(monkeypatch)
    coming = [loads.begin(chain) for chain in slow]
    until(lambda: len(tier.leases) == 10)
    tier.is_slow = False
    assert loads.end(loads.begin(there)) == 2
    assert len(loads.results) == 1
    tier.bring()
    assert [loads.end(number) for number in coming] == [2] * 10
    no_lease_is_held(daemon)
    loads.driver.manager.shutdown()


def test_at_its_deadline_each_load_brings_what_has_come(daemon, monkeypatch):
    loads = Loads(daemon, 1, load_timeout_ms=200)
    tier = SlowTier(monkeypatch)
    tier.head = 1
    began = time.monotonic()
    late = [loads.begin(loads.chains[0]) for _ in range(100)]
    loads.tier.drain_jobs()
    assert len(loads.look()) == 100, "it waits for those that wait aside, too"
    assert [loads.end(number) for number in late] == [1] * 100
    assert time.monotonic() - began < 5, "two threads would wait that long one after another"
    no_lease_is_held(daemon)
    loads.driver.manager.shutdown()


@pytest.mark.parametrize("is_under_way", [True, False])
def test_beside_a_daemon_that_hangs_each_load_ends_by_its_deadline(daemon, monkeypatch,
                                                                   is_under_way):
    loads = Loads(daemon, 1, load_timeout_ms=300)
    tier = SlowTier(monkeypatch)
    began = time.monotonic()
    late = begin_beside_hang(daemon, tier, lambda: loads.begin(loads.chains[0]), is_under_way)
    assert [loads.end(number) for number in late] == [0] * 100
    assert time.monotonic() - began < 5, "one answer of the daemon's may take longer"
    daemon.process.send_signal(signal.SIGCONT)
    loads.driver.manager.shutdown()
    no_lease_is_held(daemon)


def test_a_tier_that_shuts_down_waits_for_no_chunk(daemon, monkeypatch):
    loads = Loads(daemon, 5)
    tier = SlowTier(monkeypatch)
    tier.head = 1
    slow = [loads.begin(chain) for chain in loads.chains]
    until(lambda: len(loads.tier._waiting._awaited) == 5)
    began = time.monotonic()
    loads.driver.manager.shutdown()
    assert time.monotonic() - began < LONG_S / 2, "they had that long to come"
    assert [loads.end(number) for number in slow] == [1] * 5
    no_lease_is_held(daemon)


def test_a_load_whose_lease_is_lost_ends_at_once(daemon, monkeypatch):
    loads = Loads(daemon, 2)
    SlowTier(monkeypatch)
    slow = [loads.begin(chain) for chain in loads.chains]
    until(lambda: len(loads.tier._waiting._awaited) == 2)
    daemon.kill()
    assert [loads.end(number) for number in slow] == [0, 0]
    assert loads.tier.refusal is None
    loads.driver.manager.shutdown()
