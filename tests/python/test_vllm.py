"""terrace.vllm against an engine that enforces the contract of connectors, and a real daemon.

TERRACE_ENGINE_REQUESTS: how many random requests a setting gets (200)."""
import random
import signal
import sys
import threading
import time
import types

import pytest
import torch

from vllm_driver import (LONG_S, ONE_SHARE, PROMPT, REQUESTS, GroupOf, connect, drive,
                         drive_while_daemons_die, expect_nothing_held, make_engine,
                         preempt_next_step, run_prompt, terrace, vllm_engine, wait_for_segments,
                         warmed_engine)


# PROMISE: T48 a stand-in of vLLM
@pytest.mark.parametrize("tp_size, depth", [(1, 1), (2, 2), (4, 1), (1, 3)])
def test_random_requests_keep_the_contract(daemon, tp_size, depth):
    chance = random.Random(tp_size)
    engine = make_engine(daemon, chance, tp_size=tp_size, depth=depth)
    drive(engine, chance, REQUESTS)
    assert engine.counts["finished"] > REQUESTS // 2
    assert engine.counts["preempted"] > REQUESTS // 100
    assert engine.counts["loaded_tokens"] > REQUESTS
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 20
    assert engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("tp_size, windows, block_count, depth", [
    (1, (0, 20), 56, 1), (2, (0, 9, 33), 64, 2), (4, (20, 0), 48, 1), (1, (0, 2), 40, 2)])
def test_random_requests_of_hybrid_models_keep_the_contract(daemon, tp_size, windows, block_count,
                                                            depth):
    chance = random.Random(tp_size)
    engine = make_engine(daemon, chance, tp_size=tp_size, windows=windows, block_count=block_count,
                         depth=depth)
    drive(engine, chance, REQUESTS)
    assert engine.counts["finished"] > REQUESTS // 2
    assert engine.counts["preempted"] > 0 and engine.counts["loaded_tokens"] > REQUESTS // 4
    assert engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("tp_size, windows, block_count, depth, chunk_tokens", [
    (1, (0, "state"), 48, 1, 24), (2, (0, "state", 20), 64, 2, 24), (1, ("state", 0), 40, 1, 20),
    (1, (0, "state"), 48, 3, 64), (2, (0, "state"), 48, 1, 5)])
def test_random_requests_of_models_with_states_keep_the_contract(daemon, tp_size, windows,
                                                                 block_count, depth, chunk_tokens):
    chance = random.Random(tp_size + depth)
    engine = make_engine(daemon, chance, tp_size=tp_size, windows=windows, block_count=block_count,
                         depth=depth, chunk_tokens=chunk_tokens)
    drive(engine, chance, REQUESTS // 2)
    assert engine.counts["finished"] > REQUESTS // 4
    assert engine.counts["preempted"] > 0 and engine.counts["loaded_tokens"] > REQUESTS // 8
    assert engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("tp_size, stages, windows", [
    (1, [[2], [1]], (0,)), (2, [[1], [1], [2]], (0,)),
    (1, [[2, 0], [1, 2]], (0, 20)), (2, [[2, 1], [0, 0], [0, 2]], (0, 20))])
def test_random_requests_through_pipelines_keep_the_contract(daemon, tp_size, stages, windows):
    chance = random.Random(len(stages))
    engine = make_engine(daemon, chance, tp_size=tp_size, stages=stages, windows=windows,
                         depth=len(stages), block_count=20 + 18 * len(windows))
    drive(engine, chance, REQUESTS)
    assert engine.counts["finished"] > REQUESTS // 2
    assert engine.counts["preempted"] > 0 and engine.counts["loaded_tokens"] > REQUESTS // 4
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 20
    assert engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("tp_size, shards, is_latent, depth", [
    (2, 2, True, 1), (4, 2, True, 2), (4, 2, False, 1), (2, 1, True, 1)])
def test_random_requests_of_ranks_that_share_out_tokens_keep_the_contract(daemon, tp_size, shards,
                                                                         is_latent, depth):
    chance = random.Random(tp_size)
    engine = make_engine(daemon, chance, tp_size=tp_size, shards=shards, is_latent=is_latent,
                         depth=depth, block_count=34)
    drive(engine, chance, REQUESTS // 2)
    assert engine.counts["finished"] > REQUESTS // 4
    assert engine.counts["preempted"] > 0 and engine.counts["loaded_tokens"] > REQUESTS // 4
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 20
    assert engine.connector.side.refusal is None
    assert engine.connector.side.layout.block_tokens == 8
    assert len(list(engine.connector.side.layout.shares())) == (shards if is_latent else tp_size)
    expect_nothing_held(daemon, engine)


def test_instances_that_share_out_tokens_otherwise_share_nothing(daemon):
    def loaded(interleave=1, **options):
        def make(config, role, kv_cache_config):
            config.parallel_config.cp_kv_cache_interleave_size = interleave
            return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

        connect(daemon).close()
        engine = vllm_engine.Engine(make, random.Random(7), socket=daemon.socket, tp_size=4,
                                    is_latent=True, timeout_ms=1000 * LONG_S,
                                    lookup_wait_ms=1000 * LONG_S, **options)
        run_prompt(engine)
        expect_nothing_held(daemon, engine)
        return engine.counts["loaded_tokens"]

    assert [loaded(shards=2), loaded(shards=2), loaded(shards=2, interleave=4), loaded(shards=4),
            loaded(), loaded(interleave=4), loaded(shards=4)] == [0, 72, 0, 0, 0, 72, 72]


def test_a_window_beside_ranks_that_share_out_tokens_is_refused(daemon):
    engine = make_engine(daemon, random.Random(7), tp_size=2, shards=2, windows=(0, 20))
    assert "decode_context_parallel_size is 2" in engine.connector.side.refusal
    engine.close()


def test_a_block_of_a_group_that_is_not_shared_out_is_one_ranks():
    spec = types.SimpleNamespace(block_size=16)
    assert terrace.vllm.kinds.block_tokens_of(spec, 4) == 64
    spec.dcp_sharded = False
    assert terrace.vllm.kinds.block_tokens_of(spec, 4) == 16


def test_hashes_finer_than_was_told_turn_it_off(daemon):
    engine = make_engine(daemon, random.Random(7))
    fine = vllm_engine.Request("only", PROMPT, 1, 4)
    fine.block_tokens = 8
    engine.connector.on_new_request(fine)
    assert "20 block hashes of a prompt of 80 tokens" in engine.connector.side.refusal
    engine.close()


@pytest.mark.parametrize("stages", [[[2]], [[1], [1]]])
def test_a_second_instance_loads_what_the_first_one_stored(daemon, stages):
    tokens = list(range(100, 180))
    connect(daemon).close()
    for number in range(2):
        chance = random.Random(7)
        engine = make_engine(daemon, chance, stages=stages, depth=len(stages))
        engine.add(vllm_engine.Request("only", tokens, 1, 8))
        while engine.has_work:
            engine.step()
        assert engine.counts["loaded_tokens"] == (72 if number else 0)
        expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("windows, stages", [((0,), [[2]]), ((0, 20), [[2, 2]]),
                                             ((0,), [[1], [1]])])
# PROMISE: T24 a stand-in of vLLM whose daemons die
def test_daemons_that_die_cost_hits_only(daemon, windows, stages):
    chance = random.Random(9)
    engine = make_engine(daemon, chance, tp_size=2, timeout_ms=2000, load_timeout_ms=3000,
                         lookup_wait_ms=2, windows=windows, stages=stages, depth=len(stages))
    drive_while_daemons_die(daemon, engine, chance)
    expect_nothing_held(daemon, engine)


def test_without_a_daemon_the_engine_serves(daemon, monkeypatch):
    daemon.kill()
    monkeypatch.setattr(terrace.vllm.role, "START_WAIT_S", 0.01)
    chance = random.Random(3)
    engine = make_engine(daemon, chance)
    drive(engine, chance, 20)
    assert engine.counts["finished"] + engine.counts["aborted"] > 10
    assert engine.counts["loaded_tokens"] == 0 and engine.connector.side.refusal is None
    engine.close()


@pytest.mark.parametrize("name", ["SinkFullAttentionSpec", "prefill_context_parallel_size"])
def test_what_cannot_be_served_is_refused_once_and_out_of_the_way(daemon, caplog, name):
    chance = random.Random(3)

    def changed(config, role, kv_cache_config):
        if name.endswith("_size"):
            setattr(config.parallel_config, name, 2)
        else:
            kind = type(name, (types.SimpleNamespace,), {})
            for group in kv_cache_config.kv_cache_groups:
                group.kv_cache_spec = kind(**vars(group.kv_cache_spec))
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    engine = vllm_engine.Engine(changed, chance, socket=daemon.socket)
    drive(engine, chance, 10)
    assert name in engine.connector.side.refusal
    assert engine.counts["finished"] > 5 and not engine.requests  # it serves on
    assert [r.message for r in caplog.records].count(caplog.records[0].message) <= 2
    engine.close()


def test_pipelines_are_refused_where_a_connector_is_told_of_one_stage(daemon, monkeypatch):
    base = sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"]
    monkeypatch.delattr(base.KVConnectorBase_V1, "set_xfer_handshake_metadata_pp_aware")
    engine = make_engine(daemon, random.Random(3), stages=[[1], [1]])
    drive(engine, random.Random(3), 10)
    assert "pipeline_parallel_size is 2" in engine.connector.side.refusal
    assert engine.counts["finished"] > 5
    engine.close()


def test_a_stage_or_a_rank_that_is_off_turns_the_scheduler_off(daemon):
    engine = make_engine(daemon, random.Random(3), tp_size=2, stages=[[1], [1]])
    handshakes = {divmod(w.rank, 2): w.connector.get_handshake_metadata() for w in engine.workers}
    handshakes[1, 1].layout.refusal = "out of order"
    other = make_engine(daemon, random.Random(3), tp_size=2, stages=[[1], [1]])
    other.connector.set_xfer_handshake_metadata_pp_aware(handshakes)
    assert other.connector.side.refusal == "out of order"
    handshakes[1, 1].layout.refusal = None
    handshakes[1, 1].layout.groups[0][0].fields["layout"] = "of another CPU"
    third = make_engine(daemon, random.Random(3), tp_size=2, stages=[[1], [1]])
    third.connector.set_xfer_handshake_metadata_pp_aware(handshakes)
    assert "rank 1 of pipeline stage 1" in third.connector.side.refusal
    for each in (engine, other, third):
        each.close()


def test_a_hook_that_fails_turns_the_connector_off_not_the_engine(daemon, monkeypatch):
    chance = random.Random(3)
    engine = make_engine(daemon, chance)
    monkeypatch.setattr("terrace.vllm.scheduler.SchedulerHalf.step",
                        lambda self, output: 1 / 0)
    drive(engine, chance, 10)
    assert "ZeroDivisionError" in engine.connector.side.refusal
    engine.close()


def test_a_hit_on_a_block_of_the_same_step_is_not_stored_before_it_is_computed(daemon, monkeypatch):
    collect = terrace.requests.Asker.collect

    def collect_all(asker):  # a daemon that is quicker than the scheduler
        collect(asker)
        while asker.pending_count:
            asker.wait(next(iter(asker._pending)), 1)

    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7))
    monkeypatch.setattr("terrace.requests.Asker.collect", collect_all)
    for name in ("one", "two"):  # the second one hits what the first one is about to compute
        engine.add(vllm_engine.Request(name, PROMPT, 1, 8))
    while engine.has_work:
        engine.step()
    monkeypatch.undo()
    expect_nothing_held(daemon, engine)
    second = make_engine(daemon, random.Random(7))
    run_prompt(second)  # compares every byte
    assert second.counts["loaded_tokens"] == 72
    expect_nothing_held(daemon, second)


def test_a_request_whose_loads_always_fail_is_computed(daemon, monkeypatch):
    engine = warmed_engine(daemon)
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy", lambda self, loading: 0)
    run_prompt(engine)
    assert engine.counts["lost_loads"] == 1 and engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


def test_a_hybrid_request_that_lost_a_block_is_computed_from_its_start(daemon, monkeypatch):
    engine = warmed_engine(daemon, windows=(0, 20))
    copy = terrace.vllm.worker.WorkerHalf._copy
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy",
                        lambda self, loading: copy(self, loading) - 1)
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 72 and engine.counts["lost_loads"] == 1
    assert engine.connector.side.scheduler.counters["failed_loads"] == 1
    expect_nothing_held(daemon, engine)


def test_a_hybrid_hit_loads_no_more_of_a_window_than_is_kept(daemon, monkeypatch):
    loads = []
    copy = terrace.vllm.worker.WorkerHalf._copy
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy", lambda self, loading: (
        loads.append(loading.load), copy(self, loading))[1])
    engine = warmed_engine(daemon, windows=(0, 20))
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 72
    full, window = loads[0].block_ids
    assert len(full) == 9 and -1 not in full
    assert window[:6] == [-1] * 6 and -1 not in window[6:]  # 19 tokens are 3 blocks
    expect_nothing_held(daemon, engine)


def test_a_hit_ends_where_there_is_a_state_and_loads_that_alone(daemon, monkeypatch):
    loads = []
    copy = terrace.vllm.worker.WorkerHalf._copy
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy", lambda self, loading: (
        loads.append(loading.load), copy(self, loading))[1])
    engine = warmed_engine(daemon, windows=(0, "state"), chunk_tokens=80)  # one state: after 72
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 72
    full, state = loads[0].block_ids
    assert len(full) == 9 and -1 not in full
    assert state[:8] == [-1] * 8 and state[8] > 0
    shorter = vllm_engine.Request("shorter", PROMPT[:40] + [1], 1, 8)
    assert engine.connector.get_num_new_matched_tokens(shorter, 0) == (0, False)
    engine.connector.request_finished(shorter, [])
    expect_nothing_held(daemon, engine)


def test_a_state_that_was_not_handed_over_is_not_stored(daemon):
    wait_for_segments(daemon, 2)
    engine = make_engine(daemon, random.Random(7), windows=(0, "state"))
    hand = engine.cache_full_blocks

    def cache_full_blocks(*arguments):
        hand(*arguments)
        engine.handed.clear()

    engine.cache_full_blocks = cache_full_blocks
    run_prompt(engine)
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 0
    expect_nothing_held(daemon, engine)
    engine = make_engine(daemon, random.Random(7), windows=(0, "state"))
    run_prompt(engine)
    assert engine.counts["loaded_tokens"] == 0
    expect_nothing_held(daemon, engine)


def test_states_of_another_kind_are_not_shared(daemon):
    def loaded(**of_spec):
        def make(config, role, kv_cache_config):
            vars(kv_cache_config.kv_cache_groups[1].kv_cache_spec).update(of_spec)
            return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

        wait_for_segments(daemon, 2)
        engine = vllm_engine.Engine(make, random.Random(7), socket=daemon.socket,
                                    windows=(0, "state"), timeout_ms=1000 * LONG_S,
                                    lookup_wait_ms=1000 * LONG_S)
        run_prompt(engine)
        expect_nothing_held(daemon, engine)
        return engine.counts["loaded_tokens"]

    assert [loaded(), loaded(), loaded(mamba_type="GDN"),
            loaded(mamba_type="GDN")] == [0, 72, 0, 72]


@pytest.mark.parametrize("change, word", [
    (lambda spec, *_: setattr(spec, "mamba_cache_mode", "none"), "--enable-prefix-caching"),
    (lambda spec, *_: setattr(spec, "num_speculative_blocks", 2), "speculative"),
    (lambda spec, groups, _: setattr(groups, "hash_block_size", 4), "prefix_match_unit is 4"),
    (lambda spec, _, config: setattr(config.cache_config, "use_replayssm", True), "use_replayssm"),
    (lambda spec, _, config: setattr(config.parallel_config, "decode_context_parallel_size", 2),
     "decode_context_parallel_size is 2")])
def test_states_that_are_not_certain_are_refused(daemon, change, word):
    def changed(config, role, kv_cache_config):
        change(kv_cache_config.kv_cache_groups[1].kv_cache_spec, kv_cache_config, config)
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    engine = vllm_engine.Engine(changed, random.Random(3), socket=daemon.socket,
                                windows=(0, "state"))
    assert word in engine.connector.side.refusal
    engine.close()


def test_a_vllm_that_hands_over_no_states_gets_no_hits_of_them(monkeypatch):
    monkeypatch.setattr("terrace.vllm.kinds._output", types.SimpleNamespace())
    spec = vllm_engine.MambaSpec(mamba_cache_mode="align", block_size=8)
    config = types.SimpleNamespace(kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=spec)])
    assert "0.32 does" in terrace.vllm.kinds.refusal_of_states(config, None)


def test_a_window_that_passed_is_stored_as_absent(daemon):
    engine = warmed_engine(daemon, windows=(0, 20), chunk_tokens=80)  # it has one window: the last
    run_prompt(engine)
    shorter = vllm_engine.Request("shorter", PROMPT[:40] + [1], 1, 8)
    assert engine.connector.get_num_new_matched_tokens(shorter, 0) == (0, False)
    engine.connector.request_finished(shorter, [])
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("hook", ["_follow", "allocated"])
def test_a_hook_that_fails_loses_no_request_that_was_promised_a_load(daemon, monkeypatch, hook):
    engine = warmed_engine(daemon)
    monkeypatch.setattr(f"terrace.vllm.scheduler.SchedulerHalf.{hook}",
                        lambda *arguments: 1 / 0)
    run_prompt(engine)
    assert "ZeroDivisionError" in engine.connector.side.refusal
    assert engine.counts["finished"] == 1 and engine.counts["loaded_tokens"] == 72
    engine.close()


@pytest.mark.parametrize("change, word", [
    (lambda groups: setattr(groups[1].kv_cache_spec, "block_size", 16), "one size")])
def test_groups_that_do_not_go_together_are_refused(daemon, change, word):
    def changed(config, role, kv_cache_config):
        change(kv_cache_config.kv_cache_groups)
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    engine = vllm_engine.Engine(changed, random.Random(3), socket=daemon.socket, windows=(0, 20))
    assert word in engine.connector.side.refusal
    engine.close()


def test_a_vllm_that_cannot_be_told_of_failed_loads_gets_no_hybrid_hits(daemon, monkeypatch):
    base = sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"]
    monkeypatch.delattr(base.KVConnectorBase_V1, "get_transfer_results")
    config = types.SimpleNamespace(kv_cache_groups=[
        types.SimpleNamespace(kv_cache_spec=vllm_engine.FullAttentionSpec(block_size=8))] * 2)
    assert "disable-hybrid" in terrace.vllm.kinds.refusal_of(config)


def test_a_reset_forgets_what_a_waiting_request_was_promised(daemon):
    engine = warmed_engine(daemon)
    request = vllm_engine.Request("only", PROMPT, 1, 8)
    assert engine.connector.get_num_new_matched_tokens(request, 0) == (72, True)
    assert engine.connector.reset_cache()
    assert engine.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.connector.request_finished(request, [])
    expect_nothing_held(daemon, engine)


def test_keys_are_made_anew_for_another_prompt_and_another_daemon(daemon):
    engine = make_engine(daemon, random.Random(7))
    half = engine.connector.side.scheduler
    request = vllm_engine.Request("only", PROMPT, 1, 8)
    half.begin(request)
    made = half._tracked["only"].keys
    group = half._questions.group

    def keys(first, last):
        return half._questions.keys(request, made, first, last).hex()

    def fresh(first, last):
        return group.keys_of_digests(request.block_hashes[first:last]).hex()

    assert keys(0, 4) == fresh(0, 4)
    assert keys(3, 10) == fresh(3, 10)
    request.block_hashes = vllm_engine.Request("other", PROMPT[1:] + [1], 1, 8).block_hashes
    assert keys(0, 10) == fresh(0, 10)
    daemon.kill()
    daemon.start()  # perhaps with another secret
    connect(daemon).close()
    group.client.wait_connected(LONG_S)
    made_before = made.keys
    assert keys(0, 10) == fresh(0, 10) and made.keys is not made_before
    engine.connector.request_finished(request, [])
    engine.close()


def test_what_was_computed_before_a_reset_is_not_stored_after_it(daemon):
    engine = make_engine(daemon, random.Random(7), block_count=60)
    request = vllm_engine.Request("only", PROMPT, 40, 8)
    engine.add(request)
    while request.num_tokens < 100:
        engine.step()
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 10
    assert engine.connector.reset_cache() is True
    engine.add(vllm_engine.Request("later", [9] * 24, 1, 8))
    while engine.has_work:
        engine.step()
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 13  # the later one's
    expect_nothing_held(daemon, engine)
    with connect(daemon) as client:
        assert client.stats()["domain"]["block_count"] == 13, "others may use those of before"


class SilentGroup:
    """Of a daemon that does not answer."""

    client = types.SimpleNamespace(is_reader=False)

    def __init__(self):
        self.calls = 0

    def join_write(self, token, member_mask):
        self.calls += 1
        raise terrace.Busy("stopped")


def test_a_step_waits_for_one_store_of_a_silent_daemon_not_for_all():
    group = SilentGroup()
    half = terrace.vllm.worker.WorkerHalf(group, lambda: None, shares=ONE_SHARE)
    half.store(terrace.vllm.messages.Step(stores=[
        terrace.vllm.messages.Store(n, (1, n), [[n]]) for n in range(20)]))
    assert group.calls == 1 and len(half.take_reports()) == 20
    half.close()


def test_loads_that_wait_for_a_thread_have_the_same_deadline(monkeypatch):
    waits = []
    clock = [100.0]
    monkeypatch.setattr("terrace.vllm.worker.time.monotonic", lambda: clock[0])

    def copy(half, loading):
        waits.append(max(0.0, loading.deadline - clock[0]))
        clock[0] += 4.0
        return 0

    monkeypatch.setattr("terrace.vllm.worker._LOAD_THREADS", 1)
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy", copy)
    half = terrace.vllm.worker.WorkerHalf(GroupOf(), lambda: terrace.vllm.copies.InStep({}),
                                          shares=ONE_SHARE, load_timeout_s=10.0)
    half.load([terrace.vllm.messages.Load(f"r{n}", (1, n), [[n]]) for n in range(4)])
    half._loaders.submit(lambda: None).result(LONG_S)
    assert waits == [10.0, 6.0, 2.0], "the last one's deadline had passed by then"
    assert half.take_loaded() == ({"r0", "r1", "r2", "r3"},) * 2
    half.close()


@pytest.mark.parametrize("is_idle", [True, False])
def test_only_a_step_that_computes_nothing_waits_for_a_load(monkeypatch, is_idle):
    may_end = threading.Event()
    monkeypatch.setattr("terrace.vllm.worker.IDLE_WAIT_S", LONG_S)
    monkeypatch.setattr("terrace.vllm.worker.WorkerHalf._copy",
                        lambda half, loading: may_end.wait(LONG_S) and 1)
    role = terrace.vllm.worker_role.WorkerRole.__new__(terrace.vllm.worker_role.WorkerRole)
    role.refusal, role._lost_loads, role._bad_blocks, role._kv_cache_config = None, [], set(), None
    role.worker = half = terrace.vllm.worker.WorkerHalf(
        GroupOf(), lambda: terrace.vllm.copies.InStep({}), shares=ONE_SHARE)
    half.load([terrace.vllm.messages.Load("only", (1, 1), [[1]])])
    if is_idle:
        threading.Timer(0.01, may_end.set).start()
        assert role.take_finished(is_idle=True) == {"only"}
        assert role.take_finished(is_idle=True) == set(), "nobody waits where nothing is loaded"
    else:
        assert role.take_finished(is_idle=False) == set()
        may_end.set()
    half.close()


def test_a_block_that_is_none_of_the_cache_is_refused():
    pages = terrace.pages.Pages({"layer": torch.zeros((4, 2, 8))}, ["layer"], 4)
    assert pages.addresses([3, 0]) is not None
    for wrong in (1.9, -1, 4, 1 << 64):
        with pytest.raises(terrace.Invalid, match=f"block (is )?{wrong}"):
            pages.addresses([0, wrong])


def test_what_vllm_does_not_publish_yet_is_not_stored(daemon):
    engine = make_engine(daemon, random.Random(7))
    request = vllm_engine.Request("only", PROMPT, 1, 8)
    request.num_publishable_block_hashes = 4
    engine.add(request)
    while engine.has_work:
        engine.step()
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 4
    expect_nothing_held(daemon, engine)


def test_an_answer_is_stored_in_few_pieces_and_whole(daemon):
    engine = make_engine(daemon, random.Random(7), block_count=60)
    request = vllm_engine.Request("only", list(range(90)), 320, 8)
    engine.add(request)
    while engine.has_work:
        engine.step()
    half = engine.connector.side.scheduler
    assert half.counters["stored_blocks"] == (90 + 320 - 1) // 8 == 51
    prompt_stores = 4  # a chunk of 24 tokens each
    # and the last block of the prompt, 256 tokens, the rest
    assert half._stores._number <= prompt_stores + 3
    expect_nothing_held(daemon, engine)


def test_what_a_preempted_request_had_answered_is_loaded_again(daemon):
    engine = make_engine(daemon, random.Random(7), block_count=60)
    request = vllm_engine.Request("only", list(range(90)), 60, 8)
    engine.add(request)
    while request.num_tokens < 140:
        engine.step()
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 11
    preempt_next_step(engine, request)
    engine.step()
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 139 // 8 == 17
    engine.cached.clear()  # vLLM's own are gone
    engine.hash_of = [None] * len(engine.hash_of)
    while engine.has_work:
        engine.step()
    assert engine.counts["loaded_tokens"] == 17 * 8
    expect_nothing_held(daemon, engine)


class Counter:
    """As of prometheus_client."""

    def __init__(self, name, documentation, labelnames):
        assert documentation and labelnames == ["engine"]
        self.name, self.values = name, {}

    def labels(self, *values):
        self.values[values] = 0
        return types.SimpleNamespace(inc=lambda amount: self.values.__setitem__(
            values, self.values[values] + amount))


def test_statistics_are_what_happened(daemon):
    connect(daemon).close()
    for number in range(2):
        engine = make_engine(daemon, random.Random(7), tp_size=2)
        run_prompt(engine)
        expect_nothing_held(daemon, engine)
        block_bytes = 2 * 2 * 8 * 16 * 2  # layers of a rank, each a page of 2 x 8 x 16 numbers
        expected = {"lookups": 1, "hit_tokens": 72, "loads": 2, "loaded_bytes": 2 * 9 * block_bytes}
        if number == 0:
            expected = {"lookups": 1, "stored_blocks": 10, "stored_bytes": 2 * 10 * block_bytes}
        found = dict(engine.stats.data)
        assert (found.pop("load_seconds", 0) > 0) == (number == 1)
        assert {name: found.get(name) for name in expected} == expected
    made = []
    metrics = engine.connector.build_prom_metrics(
        None, {"counter": lambda **named: made.append(Counter(**named)) or made[-1]}, ["engine"],
        {0: ["0"], 1: ["1"]})
    metrics.observe(engine.stats.to_dict(), engine_idx=1)
    values = {counter.name: counter.values for counter in made}
    assert values["vllm:terrace_hit_tokens"] == {("0",): 0, ("1",): 72}
    assert set(engine.stats.reduce()) == set(engine.stats.data)
