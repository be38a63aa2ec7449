"""What tests of the vLLM connector share: modules that stand in for vLLM's, engines on a daemon,
random requests. Imported before vllm_engine and terrace.vllm.

TERRACE_ENGINE_REQUESTS: how many random requests a setting gets (200)."""
import os
import pathlib
import random
import sys
import time
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))

# vLLM's module that seeds block hashes; its name is theirs.
sys.modules["vllm.v1.core"] = types.ModuleType("vllm.v1.core")
sys.modules["vllm.v1.core"].kv_cache_utils = types.SimpleNamespace(
    DEFAULT_NONE_HASH_SEED="vllm-none-hash")
sys.modules["vllm.v1.core.sched"] = types.ModuleType("vllm.v1.core.sched")
sys.modules["vllm.v1.core.sched"].output = types.SimpleNamespace(KVConnectorBlockState=object)

import terrace.requests  # noqa: E402  pylint: disable=wrong-import-position
import terrace.vllm  # noqa: E402  pylint: disable=wrong-import-position
import vllm_engine  # noqa: E402  pylint: disable=wrong-import-position
from conftest import LONG_S, connect, until  # noqa: E402  pylint: disable=wrong-import-position

REQUESTS = int(os.environ.get("TERRACE_ENGINE_REQUESTS", "200"))
RARE_HAPPENS = REQUESTS >= 200  # preemptions, daemons' deaths, hits in a device: not in a short run


def make_engine(daemon, chance, **options):
    options = {"timeout_ms": 1000 * LONG_S, "lookup_wait_ms": 1000 * LONG_S, **options}
    return vllm_engine.Engine(terrace.vllm.TerraceConnector, chance, socket=daemon.socket,
                              **options)


def wait_connected(engine):
    """Beside other connectors nothing waits for the daemon before the first step."""
    deadline = time.monotonic() + LONG_S
    for connector in (engine.connector, *(worker.connector for worker in engine.workers)):
        while not connector.side.client.is_connected:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def random_request(number, chance, block_tokens=8):
    """Prompts share heads of several lengths."""
    head = chance.randrange(6)
    tokens = [head] * (block_tokens * chance.randrange(1, 6))
    tokens += [chance.randrange(4)] * chance.randrange(0, 30) + [1]
    return vllm_engine.Request(f"r{number}", tokens, chance.randrange(1, 20), block_tokens)


def drive(engine, chance, request_count, first=0, on_step=lambda: None, make=random_request):
    number, steps = first, 0
    while number < first + request_count or engine.has_work:
        while number < first + request_count and len(engine.waiting) < 4:
            engine.add(make(number, chance))
            number += 1
        if engine.requests and chance.random() < 0.02:
            victim = chance.choice(list(engine.requests.values()))
            if victim.state != vllm_engine.FINISHED:
                engine.abort(victim)
        on_step()
        engine.step()
        steps += 1
        assert steps < 1000 * (request_count + 10), f"no progress: {engine.counts}"


def drive_while_daemons_die(daemon, engine, chance):
    """Of every 150 steps 20 are without a daemon. There is one at the end."""
    steps = [0]

    def on_step():
        steps[0] += 1
        if steps[0] % 150 == 0:
            daemon.kill()
        elif steps[0] % 150 == 20 and daemon.process.poll() is not None:
            daemon.start()

    drive(engine, chance, REQUESTS, on_step=on_step)
    assert steps[0] > 300 or not RARE_HAPPENS
    assert engine.connector.side.refusal is None
    if daemon.process.poll() is not None:
        daemon.start()
    connect(daemon).close()


def expect_nothing_held(daemon, engine):
    assert engine.connector.side.scheduler.held_count == 0
    assert sorted(engine.free) == list(range(1, len(engine.users)))
    engine.close()
    expect_no_lease(daemon)


def expect_no_lease(daemon):
    with connect(daemon) as client:
        for _ in range(1000):
            domain = client.stats()["domain"]
            if domain["lease_count"] == 0 and domain["reserved_count"] == 0:
                return
        pytest.fail(f"leases are held: {domain}")


PROMPT = list(range(100, 180))
ONE_SHARE = [terrace.vllm.messages.Share(group=0, member=0, is_ours=True)]

# A lease whose blocks are all there.
LENT = types.SimpleNamespace(block_count=1, ready_count=1, is_valid=True,
                             wait_ready=lambda count, timeout_s: None, release=lambda: None)


class GroupOf:
    """Of no daemon: lends what `lend` says for a token."""

    def __init__(self, lend=lambda token: LENT):
        self._lend = lend

    def join_read(self, token, member_mask, flags=0):
        return self._lend(token)


def run_prompt(engine, request_id="only", steps_max=20_000):
    engine.add(vllm_engine.Request(request_id, PROMPT, 1, 8))
    for _ in range(steps_max):
        if not engine.has_work:
            return
        engine.step()
    pytest.fail(f"{request_id} does not end: {engine.counts}")


def wait_for_segments(daemon, count):
    """Members with a window have segments of their own, and a daemon starts with one."""
    with connect(daemon) as client:
        until(lambda: client.stats()["domain"]["segments_populated"] >= count)


def warmed_engine(daemon, **options):
    """A second instance, after a first one has stored PROMPT."""
    wait_for_segments(daemon, 2)
    first = make_engine(daemon, random.Random(7), **options)
    run_prompt(first)
    expect_nothing_held(daemon, first)
    return make_engine(daemon, random.Random(7), **options)


def preempt_next_step(engine, request):
    """Somebody takes its blocks while the step is scheduled."""
    schedule = engine.schedule_running

    def preempt_first(output):
        engine.schedule_running = schedule
        schedule(output)
        engine.preempt(request, output)

    engine.schedule_running = preempt_first
