"""terrace.vllm against an engine that enforces the contract of connectors, and a real daemon.

TERRACE_ENGINE_REQUESTS: how many random requests a setting gets (400)."""
import os
import pathlib
import random
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))

# vLLM's module that seeds block hashes; its name is theirs.
sys.modules["vllm.v1"] = types.ModuleType("vllm.v1")
sys.modules["vllm.v1.core"] = types.ModuleType("vllm.v1.core")
sys.modules["vllm.v1.core"].kv_cache_utils = types.SimpleNamespace(
    DEFAULT_NONE_HASH_SEED="vllm-none-hash")

import terrace.vllm  # noqa: E402  pylint: disable=wrong-import-position
import vllm_engine  # noqa: E402  pylint: disable=wrong-import-position
from conftest import LONG_S, connect  # noqa: E402  pylint: disable=wrong-import-position

REQUESTS = int(os.environ.get("TERRACE_ENGINE_REQUESTS", "400"))


def make_engine(daemon, chance, **options):
    options = {"timeout_ms": 1000 * LONG_S, "lookup_wait_ms": 1000 * LONG_S, **options}
    return vllm_engine.Engine(terrace.vllm.TerraceConnector, chance, socket=daemon.socket,
                              **options)


def random_request(number, chance, block_tokens=8):
    """Prompts share heads of several lengths."""
    head = chance.randrange(6)
    tokens = [head] * (block_tokens * chance.randrange(1, 6))
    tokens += [chance.randrange(4)] * chance.randrange(0, 30) + [1]
    return vllm_engine.Request(f"r{number}", tokens, chance.randrange(1, 20), block_tokens)


def drive(engine, chance, request_count, first=0, on_step=lambda: None):
    number, steps = first, 0
    while number < first + request_count or engine.has_work:
        while number < first + request_count and len(engine.waiting) < 4:
            engine.add(random_request(number, chance))
            number += 1
        if engine.requests and chance.random() < 0.02:
            victim = chance.choice(list(engine.requests.values()))
            if victim.state != vllm_engine.FINISHED:
                engine.abort(victim)
        on_step()
        engine.step()
        steps += 1
        assert steps < 1000 * (request_count + 10), f"no progress: {engine.counts}"


def expect_nothing_held(daemon, engine):
    assert engine.connector.scheduler.held_count == 0
    assert sorted(engine.free) == list(range(1, len(engine.users)))
    engine.close()
    with connect(daemon) as client:
        for _ in range(1000):
            domain = client.stats()["domain"]
            if domain["lease_count"] == 0 and domain["reserved_count"] == 0:
                return
        pytest.fail(f"leases are held: {domain}")


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_random_requests_keep_the_contract(daemon, tp_size):
    chance = random.Random(tp_size)
    engine = make_engine(daemon, chance, tp_size=tp_size)
    drive(engine, chance, REQUESTS)
    assert engine.counts["finished"] > REQUESTS // 2
    assert engine.counts["preempted"] > REQUESTS // 100
    assert engine.counts["loaded_tokens"] > REQUESTS
    assert engine.connector.scheduler.counters["stored_blocks"] > 20
    assert engine.connector.refusal is None
    expect_nothing_held(daemon, engine)


def test_a_second_instance_loads_what_the_first_one_stored(daemon):
    tokens = list(range(100, 180))
    for number in range(2):
        chance = random.Random(7)
        engine = make_engine(daemon, chance)
        engine.add(vllm_engine.Request("only", tokens, 1, 8))
        while engine.has_work:
            engine.step()
        assert engine.counts["loaded_tokens"] == (72 if number else 0)
        expect_nothing_held(daemon, engine)


def test_daemons_that_die_cost_hits_only(daemon):
    chance = random.Random(9)
    engine = make_engine(daemon, chance, tp_size=2, timeout_ms=2000, load_timeout_ms=3000,
                         lookup_wait_ms=2)
    steps = [0]

    def on_step():
        steps[0] += 1
        if steps[0] % 150 == 0:
            daemon.kill()
        elif steps[0] % 150 == 20:
            if daemon.process.poll() is not None:
                daemon.start()

    drive(engine, chance, REQUESTS, on_step=on_step)
    assert steps[0] > 300 and engine.connector.refusal is None
    if daemon.process.poll() is not None:
        daemon.start()
    connect(daemon).close()
    expect_nothing_held(daemon, engine)


def test_without_a_daemon_the_engine_serves(daemon, monkeypatch):
    daemon.kill()
    monkeypatch.setattr(terrace.vllm, "_START_WAIT_S", 0.01)
    chance = random.Random(3)
    engine = make_engine(daemon, chance)
    drive(engine, chance, 20)
    assert engine.counts["finished"] + engine.counts["aborted"] > 10
    assert engine.counts["loaded_tokens"] == 0 and engine.connector.refusal is None
    engine.close()


def test_what_cannot_be_served_is_refused_once_and_out_of_the_way(daemon, caplog):
    chance = random.Random(3)

    def two_groups(config, role, kv_cache_config):
        kv_cache_config.kv_cache_groups = kv_cache_config.kv_cache_groups[:1] * 2
        return terrace.vllm.TerraceConnector(config, role, kv_cache_config)

    engine = vllm_engine.Engine(two_groups, chance, socket=daemon.socket)
    drive(engine, chance, 10)
    assert "KV cache groups" in engine.connector.refusal
    assert [r.message for r in caplog.records].count(caplog.records[0].message) <= 2
    engine.close()


def test_a_hook_that_fails_turns_the_connector_off_not_the_engine(daemon, monkeypatch):
    chance = random.Random(3)
    engine = make_engine(daemon, chance)
    monkeypatch.setattr("terrace.vllm_scheduler.SchedulerHalf.step",
                        lambda self, output: 1 / 0)
    drive(engine, chance, 10)
    assert "ZeroDivisionError" in engine.connector.refusal
    engine.close()
