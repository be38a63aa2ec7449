"""terrace.vllm where vLLM sleeps: the memory of its KV caches goes away and comes back with other
bytes. Nothing of that is ever stored, and nothing is copied into it meanwhile."""
import random
import threading

import pytest
import torch

import sim_gpu
from vllm_driver import (LONG_S, PROMPT, REQUESTS, connect, drive, expect_nothing_held, make_engine,
                         random_request, run_prompt, terrace, vllm_engine, wait_for_segments)
from vllm_engine_worker import Violation

ON_THREADS = {"copy_threads": 2}


@pytest.fixture(name="gpu")
def simulated_gpu(monkeypatch):
    """Arguments of an engine on a new device of this seed."""
    monkeypatch.setattr(terrace.vllm.worker_role, "CudaEngine", sim_gpu.Engine)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: (9, 0))

    def fresh(seed, **options):
        sim_gpu.configure(seed, **{"store_slowness": 30, **options})
        return {"memory": sim_gpu.Memory, "plugin_path": sim_gpu.plugin_path()}

    return fresh


def sleep(engine, chance):
    """As `LLM.sleep` does, or as whoever discards the KV cache alone."""
    if chance.random() < 0.5:
        engine.reset_prefix_cache()
    else:
        engine.reset_own_cache()
    engine.sleep()
    for _ in range(chance.randrange(4)):
        engine.step()  # there may be work of the connector's
    engine.wake_up()


def drive_with_sleeps(chance, one, peer, count, sleeps_min=0):
    """The peer loads what the sleeper has stored: every byte is compared. When it may sleep depends
    on how long loads take: further requests come until it has slept often enough."""
    sleeps, numbers = [0], [0]

    def on_step():
        if chance.random() < 0.5:
            if len(peer.waiting) < 4:
                peer.add(random_request(numbers[0], chance))
                numbers[0] += 1
            peer.step()
        if chance.random() < 0.1 and one.may_reset:
            sleeps[0] += 1
            sleep(one, chance)

    drive(one, chance, count, on_step=on_step)
    for first in range(count, 10 * count, count):
        if sleeps[0] >= sleeps_min:
            break
        drive(one, chance, count, first, on_step=on_step)
    drive(peer, chance, 0)
    assert sleeps[0] >= sleeps_min


@pytest.fixture(name="version")
def version_file(tmp_path):
    """Says all along that the weights are the same: what was stored before a sleep is shared."""
    path = tmp_path / "version"
    path.write_text("1")
    return {"weights_version_file": str(path)}


@pytest.mark.parametrize("how, tp_size, depth", [
    ("step", 1, 1), ("step", 2, 2), ("threads", 1, 2), ("gpu", 1, 2), ("gpu", 2, 3)])
def test_random_requests_with_sleeps_keep_the_contract(daemon, gpu, version, how, tp_size, depth):
    wait_for_segments(daemon, 2)
    chance = random.Random(tp_size + depth)
    options = {"step": dict, "threads": lambda: ON_THREADS, "gpu": lambda: gpu(depth)}[how]()
    one, peer = (make_engine(daemon, chance, tp_size=tp_size, depth=depth, **version, **options)
                 for _ in range(2))
    drive_with_sleeps(chance, one, peer, REQUESTS, sleeps_min=3)
    assert min(engine.counts["loaded_tokens"] for engine in (one, peer)) > REQUESTS // 8
    for engine in (one, peer):
        assert engine.connector.side.refusal is None
        assert all(worker.connector.side.refusal is None for worker in engine.workers)
        expect_nothing_held(daemon, engine)


def test_what_was_stored_before_a_sleep_is_found_after_it(daemon, gpu, version):
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), **version, **gpu(7))
    run_prompt(engine)
    sleep(engine, random.Random(1))
    run_prompt(engine, "again")
    assert engine.counts["loaded_tokens"] == 72
    expect_nothing_held(daemon, engine)


def test_a_store_under_way_is_committed_before_the_memory_goes(daemon, gpu, version, monkeypatch):
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), **version, **gpu(7))
    engine.add(vllm_engine.Request("only", PROMPT, 30, 8))
    half = engine.workers[0].connector.side
    monkeypatch.setattr(terrace.Copy, "poll", lambda self: False)
    while half.worker is None or half.worker.stores_under_way == 0:
        assert engine.has_work, "nothing was stored"
        engine.step()
    engine.reset_own_cache()
    engine.sleep()
    assert half.worker.stores_under_way == 0
    monkeypatch.undo()
    engine.wake_up()
    while engine.has_work:
        engine.step()
    with connect(daemon) as client:
        assert client.stats()["domain"]["block_count"] > 0
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("is_off", [False, True])
def test_the_memory_goes_when_nothing_copies_from_it_whoever_gave_the_stores_up(
        daemon, gpu, version, monkeypatch, is_off):
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), **version, **gpu(7))
    engine.add(vllm_engine.Request("only", PROMPT, 30, 8))
    half = engine.workers[0].connector.side
    monkeypatch.setattr(terrace.Copy, "poll", lambda self: False)
    while half.worker is None or half.worker.stores_under_way == 0:
        engine.step()
    copies = [copy for each in half.worker._storing.values() for copy in each.copies]
    begun, go, ended = threading.Event(), threading.Event(), []
    close = terrace.Copy.close

    def close_late(copy):
        begun.set()
        assert go.wait(LONG_S)
        close(copy)
        ended.append(copy)

    monkeypatch.setattr(terrace.Copy, "close", close_late)
    if is_off:
        half.refuse("some hook failed")  # which gives them up
    else:
        half.worker.give_up_stores()
    assert begun.wait(LONG_S)
    taken = threading.Thread(target=engine.workers[0].connector.unregister_kv_caches)
    taken.start()
    taken.join(0.2)
    assert taken.is_alive() and not ended
    go.set()
    taken.join(LONG_S)
    assert not taken.is_alive() and set(map(id, copies)) <= set(map(id, ended))
    monkeypatch.undo()
    engine.close()


def test_a_load_that_comes_while_the_memory_is_away_fails_and_harms_nothing(daemon, version):
    """vLLM waits for loads before it sleeps; a worker does not rely on it."""
    wait_for_segments(daemon, 2)
    first = make_engine(daemon, random.Random(7), **version)
    run_prompt(first)
    engine = make_engine(daemon, random.Random(7), **version)
    engine.add(vllm_engine.Request("only", PROMPT, 1, 8))
    worker = engine.workers[0].connector
    worker.unregister_kv_caches()
    for _ in range(1000):
        engine.step()
        if engine.counts["lost_loads"] or not engine.has_work:
            break
    engine.workers[0].expect_untouched(0)
    worker.restore_kv_caches()
    while engine.has_work:
        engine.step()
    counters = engine.connector.side.scheduler.counters
    assert counters["hit_tokens"] == 0 and counters["lost_tokens"] == 72
    assert engine.counts["finished"] == 1
    expect_nothing_held(daemon, first)
    expect_nothing_held(daemon, engine)


def without_counts(monkeypatch):
    monkeypatch.setattr(terrace.vllm.scheduler_role.SchedulerRole, "_take_sleeps",
                        lambda self, count: setattr(self, "_sleep_count", count or
                                                    self._sleep_count))


def without_drops(monkeypatch):
    class Blind(terrace.vllm.kv_memory.KvMemory):
        sleep_count = property(lambda self: 0, lambda self, count: None)

    monkeypatch.setattr(terrace.vllm.worker_role, "KvMemory", Blind)


def without_ends(monkeypatch):
    monkeypatch.setattr(terrace.vllm.worker.WorkerHalf, "end_copies", lambda self: None)


@pytest.mark.parametrize("broken", [without_counts, without_drops, without_ends])
def test_whatever_keeps_lost_bytes_from_being_stored_is_missed_where_it_is_left_out(
        daemon, gpu, version, monkeypatch, broken):
    broken(monkeypatch)
    wait_for_segments(daemon, 2)
    for seed in range(40):
        chance = random.Random(seed)
        with_gpu = (gpu(seed, store_slowness=1000, steps_per_call_max=1)
                    if broken is without_ends else {})
        one, peer = (make_engine(daemon, chance, depth=2, lookup_wait_ms=0,
                                 **version, **with_gpu) for _ in range(2))
        try:
            drive_with_sleeps(chance, one, peer, 60)
        except Violation as violation:
            print(f"found by seed {seed}")
            assert "wrong bytes" in str(violation) or "taken away" in str(violation)
            return
        finally:
            one.close()
            peer.close()
    pytest.fail("40 seeds found nothing")


def test_what_a_reset_has_run_anew_is_stored_when_it_is_computed(daemon, version):
    """vLLM preempts all that runs, and may admit it again in the very next step: into blocks that
    hold nothing yet, of more tokens than the request had computed before."""
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), **version)
    request = vllm_engine.Request("only", PROMPT[:6], 200, 8)
    engine.add(request)
    while request.num_computed_tokens < 150:
        engine.step()
    engine.reset_own_cache()
    while engine.has_work:
        engine.step()
    expect_nothing_held(daemon, engine)
    peer = make_engine(daemon, random.Random(8), **version)
    peer.add(vllm_engine.Request("again", request.tokens[:-1], 1, 8))
    while peer.has_work:
        peer.step()  # compares each byte
    expect_nothing_held(daemon, peer)


def test_a_session_whose_prompt_grows_is_left_alone(daemon, version):
    """vLLM puts the next tokens of such a request where one was that a block's hash has named."""
    engine = make_engine(daemon, random.Random(7), **version)
    request = vllm_engine.Request("only", PROMPT, 30, 8)
    request.resumable = True
    engine.add(request)
    while engine.has_work:
        engine.step()
    with connect(daemon) as client:
        assert client.stats()["domain"]["block_count"] == 0
    expect_nothing_held(daemon, engine)
