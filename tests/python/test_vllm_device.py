"""terrace.vllm where copies are queued beside the engine's kernels: on the simulated GPU, whose
streams run late and interleaved, and on the host's threads. The engine and its rules are those of
test_vllm.py; what attention reads is known when the kernels have run.

TERRACE_ENGINE_REQUESTS: how many random requests a setting gets (200; of fewer nothing is expected
that is rare)."""
import random
import threading

import pytest
import torch

import terrace
import sim_gpu
from conftest import connect
from vllm_driver import (LONG_S, ONE_SHARE, PROMPT, RARE_HAPPENS, REQUESTS, drive,
                         drive_while_daemons_die, expect_no_lease, expect_nothing_held, make_engine,
                         run_prompt, vllm_engine)
from vllm_engine_worker import Page, Violation

ON_THREADS = {"copy_threads": 2}
SEEDS_MAX = 100


@pytest.fixture(name="gpu")
def simulated_gpu(monkeypatch):
    """Arguments of an engine on a new device of this seed."""
    monkeypatch.setattr(terrace.vllm.worker_role, "CudaEngine", sim_gpu.Engine)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (9, 0))

    def fresh(seed, **options):
        sim_gpu.configure(seed, **options)
        return {"memory": sim_gpu.Memory, "plugin_path": sim_gpu.plugin_path()}

    return fresh


def expect_much_happened(engine, count):
    assert engine.counts["finished"] > count // 2
    assert engine.counts["loaded_tokens"] > count // 4
    assert engine.counts["preempted"] > 0 or not RARE_HAPPENS
    assert engine.connector.side.scheduler.counters["stored_blocks"] > count // 10
    assert engine.connector.side.refusal is None
    assert all(worker.connector.side.refusal is None for worker in engine.workers)


@pytest.mark.parametrize("tp_size, windows, block_count, depth, store_slowness", [
    (1, (0,), 40, 1, 1), (2, (0,), 40, 2, 30), (1, (0,), 24, 3, 30), (1, (0, 20), 56, 2, 30),
    (1, (0, vllm_engine.STATE), 56, 2, 30)])
def test_random_requests_on_a_gpu_keep_the_contract(daemon, gpu, tp_size, windows, block_count,
                                                    depth, store_slowness):
    chance = random.Random(depth)
    engine = make_engine(daemon, chance, tp_size=tp_size, windows=windows, block_count=block_count,
                         depth=depth, **gpu(tp_size, store_slowness=store_slowness,
                                            registration_failures_per_million=300_000))
    drive(engine, chance, REQUESTS)
    expect_much_happened(engine, REQUESTS)
    expect_nothing_held(daemon, engine)
    assert sim_gpu.stray_count() == 0


@pytest.mark.parametrize("tp_size", [1, 2])
def test_layers_of_several_sizes_on_a_gpu_keep_the_contract(daemon, gpu, tp_size):
    """A paged cache of each size."""
    chance = random.Random(tp_size)
    engine = make_engine(daemon, chance, tp_size=tp_size, depth=2, is_latent=True, layers=3,
                         page_shape=[Page((8, 40)), Page((8, 12))],
                         **gpu(tp_size, store_slowness=30))
    drive(engine, chance, REQUESTS)
    expect_much_happened(engine, REQUESTS)
    expect_nothing_held(daemon, engine)
    assert sim_gpu.stray_count() == 0


@pytest.mark.parametrize("zeroes", ["v1", "v2"])
@pytest.mark.parametrize("windows, block_count", [((0, vllm_engine.STATE), 40), ((0,), 24)])
def test_blocks_that_vllm_zeroes_keep_the_contract(daemon, gpu, zeroes, windows, block_count):
    """KVBlockZeroer: models with states, and caches of mixed precision."""
    for seed in range(2):
        chance = random.Random(seed)
        engine = make_engine(daemon, chance, windows=windows, block_count=block_count, depth=2,
                             zeroes=zeroes, **gpu(seed, store_slowness=30))
        drive(engine, chance, 100)
        expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("windows, block_count", [((0,), 40), ((0, 20), 56)])
def test_random_requests_on_threads_keep_the_contract(daemon, windows, block_count):
    chance = random.Random(1)
    engine = make_engine(daemon, chance, windows=windows, block_count=block_count, **ON_THREADS)
    drive(engine, chance, REQUESTS)
    expect_much_happened(engine, REQUESTS)
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("tp_size, windows, block_count", [
    (1, (0,), 40), (2, (0,), 40), (1, (0, 20), 56)])
def test_random_requests_keep_the_contract_where_hits_lie_in_the_device(hbm_daemon, tp_size,
                                                                        windows, block_count):
    """The host's memory as a device's: the scheduler has no device, the workers have one."""
    chance = random.Random(3)
    engine = make_engine(hbm_daemon, chance, tp_size=tp_size, windows=windows,
                         block_count=block_count, hbm=True, **ON_THREADS)
    drive(engine, chance, REQUESTS)
    expect_much_happened(engine, REQUESTS)
    with connect(hbm_daemon) as client:
        hbm = client.stats()["hbm"]
    assert hbm["blocks_served"] > REQUESTS // 4 or not RARE_HAPPENS, hbm
    assert hbm["orders_wrong"] == 0 and hbm["clients"] == tp_size, hbm
    expect_nothing_held(hbm_daemon, engine)


def test_copies_that_fail_cost_hits_only(daemon, gpu):
    """The first failure is the last copy of its direction, as of a CUDA context."""
    failed = 0
    for seed in range(6):
        chance = random.Random(seed)
        engine = make_engine(daemon, chance, **gpu(seed, copy_failures_per_million=3_000))
        drive(engine, chance, 60)
        assert engine.counts["finished"] > 30 and engine.connector.side.refusal is None
        failed += engine.connector.side.scheduler.counters["failed_loads"]
        expect_nothing_held(daemon, engine)
    assert failed > 0


def test_daemons_that_die_cost_hits_only(daemon, gpu):
    chance = random.Random(9)
    engine = make_engine(daemon, chance, tp_size=2, depth=2, timeout_ms=2000, load_timeout_ms=3000,
                         lookup_wait_ms=2, **gpu(9, store_slowness=30))
    drive_while_daemons_die(daemon, engine, chance)
    expect_nothing_held(daemon, engine)


def engine_with_a_store_under_way(daemon, gpu, monkeypatch):
    """With its worker's connector. No copy is seen to end until monkeypatch.undo()."""
    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7), **gpu(7))
    engine.add(vllm_engine.Request("only", PROMPT, 30, 8))
    worker = engine.workers[0].connector
    monkeypatch.setattr(terrace.Copy, "poll", lambda self: False)
    while worker.side.worker is None or worker.side.worker.stores_under_way == 0:
        assert engine.has_work, "nothing was stored"
        engine.step()
    return engine, worker


def test_what_no_scheduler_looks_after_is_not_committed(daemon, gpu, monkeypatch):
    """Of a scheduler that is turned off nobody hears which blocks are used again."""
    engine, worker = engine_with_a_store_under_way(daemon, gpu, monkeypatch)
    engine.connector.side.refuse("as if something had failed")
    monkeypatch.undo()
    while engine.has_work:
        engine.step()
    engine.close()
    assert worker.side.worker.stores_under_way == 0
    expect_no_lease(daemon)
    with connect(daemon) as client:
        assert client.stats()["domain"]["block_count"] == 0


def test_a_gpu_without_its_plugin_is_refused_by_name(daemon, gpu, tmp_path):
    options = {**gpu(1), "plugin_path": str(tmp_path / "libterrace_cuda.so")}
    engine = make_engine(daemon, random.Random(7), **options)
    run_prompt(engine)
    assert f"no device plugin at {tmp_path}" in engine.connector.side.refusal
    assert engine.connector.side.refusal == engine.workers[0].connector.side.refusal
    assert engine.counts["finished"] == 1
    engine.close()


def test_instances_share_whatever_copies(daemon, gpu):
    """The same layout's name by hand: a GPU's and a CPU's are told apart."""
    for number in range(3):
        engine = make_engine(daemon, random.Random(7), **gpu(number))
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == (72 if number else 0)
        expect_nothing_held(daemon, engine)
    engine = make_engine(daemon, random.Random(7))
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 0
    expect_nothing_held(daemon, engine)
    engine = make_engine(daemon, random.Random(7), **ON_THREADS)
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 72  # stored by the step itself
    expect_nothing_held(daemon, engine)


def without_fences(monkeypatch):
    monkeypatch.setattr(terrace.vllm.fences.Fences, "take_fences", lambda self: [])


def without_marks(monkeypatch):
    monkeypatch.setattr(sim_gpu.Engine, "mark", lambda self: lambda: None)


def without_ends_of_loads(monkeypatch):
    monkeypatch.setattr(terrace.Copy, "wait", lambda self, timeout_s: None)
    monkeypatch.setattr(terrace.Copy, "close", lambda self: None)


@pytest.mark.parametrize("broken, store_slowness", [
    (without_fences, 100), (without_marks, 30), (without_ends_of_loads, 1), (0, 1), (1, 100)])
def test_whatever_orders_copies_and_kernels_is_missed_where_it_is_left_out(
        daemon, gpu, monkeypatch, broken, store_slowness):
    """A number is a StreamEdge that the device leaves out: 0 behind the kernels that wrote, 1
    before the next ones that write."""
    options = {"dropped_edge": broken} if isinstance(broken, int) else {}
    if not options:
        broken(monkeypatch)
    for seed in range(SEEDS_MAX):
        chance = random.Random(seed)
        engine = make_engine(daemon, chance, depth=3, block_count=24,
                             **gpu(seed, steps_per_call_max=1, store_slowness=store_slowness,
                                   **options))
        try:
            drive(engine, chance, 100)
        except Violation as violation:
            print(f"found by seed {seed}")
            assert "wrong bytes" in str(violation)
            return
        finally:
            engine.close()
    pytest.fail(f"{SEEDS_MAX} seeds found nothing")


def test_no_room_for_the_copies_at_first_is_no_lasting_refusal(daemon, gpu, monkeypatch):
    engine = make_engine(daemon, random.Random(7), **gpu(7))
    monkeypatch.setattr("terrace.vllm.worker._MAKE_PAUSE_S", 0.0)
    right, calls = terrace.PagedCache.opaque, []

    def opaque(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise terrace.errors.NoSpace("describing a paged cache: no space: cudaMalloc")
        return right(*arguments)

    monkeypatch.setattr(terrace.PagedCache, "opaque", opaque)
    run_prompt(engine)
    engine.add(vllm_engine.Request("second", PROMPT[:40] + [5] * 60, 30, 8))
    while engine.has_work:
        engine.step()
    assert engine.workers[0].connector.side.refusal is None
    assert engine.workers[0].connector.side.worker.counters["stored_bytes"] > 0
    expect_nothing_held(daemon, engine)


class SlowLease:
    """Of a daemon that hangs: a commit takes all the time it is given."""

    def __init__(self, clock, waits):
        self.clock, self.waits = clock, waits

    def commit(self, timeout_s):
        self.waits.append(timeout_s)
        self.clock[0] += timeout_s
        raise terrace.Busy("hung")

    def abort(self):
        pass


def test_commits_to_a_daemon_that_hangs_end_together(monkeypatch):
    clock, waits = [100.0], []
    monkeypatch.setattr("terrace.vllm.worker.time.monotonic", lambda: clock[0])
    half = terrace.vllm.worker.WorkerHalf(None, lambda: None, shares=ONE_SHARE,
                                          load_timeout_s=10.0)
    half._committer.submit(lambda: None).result(LONG_S)
    hold = threading.Event()
    half._committer.submit(hold.wait)
    try:
        for number in range(20):
            half._storing[number] = terrace.vllm.worker._Storing(
                SlowLease(clock, waits), [], byte_count=1, look=None)
        half.poll_stores()
    finally:
        hold.set()  # or the committer's thread outlives a failure here, and with it the process
    half.close()
    assert sum(waits) <= 10.0 and len(half.take_reports()) == 20


def test_a_worker_that_is_turned_off_holds_no_lease(daemon, gpu, monkeypatch):
    engine, worker = engine_with_a_store_under_way(daemon, gpu, monkeypatch)
    worker.side.refuse("as if a hook had failed")
    monkeypatch.undo()
    while engine.has_work:
        engine.step()
    assert worker.side.worker.stores_under_way == 0
    expect_no_lease(daemon)
    engine.close()


def test_a_worker_that_is_turned_off_costs_one_hit_not_all(daemon, gpu):
    engine = make_engine(daemon, random.Random(7), **gpu(7))
    run_prompt(engine)
    engine.close()
    engine = make_engine(daemon, random.Random(7), **gpu(8))
    engine.workers[0].connector.side.refuse("as if a hook had failed")
    for number in range(5):
        engine.cached.clear()  # as if evicted
        engine.hash_of = [None] * len(engine.hash_of)
        engine.add(vllm_engine.Request(f"again{number}", PROMPT, 1, 8))
        while engine.has_work:
            engine.step()
    engine.close()
    assert engine.counts["lost_loads"] <= 1
    assert engine.connector.side.refusal == "a worker is: as if a hook had failed"
