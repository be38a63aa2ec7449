"""KV events of the vLLM connector: what routers that know prompts by their tokens alone hear of an
engine that enforces the contract of connectors, on a real daemon."""
import contextlib
import logging
import os
import random
import subprocess
import tempfile
import time
import types

import pytest

import terrace
from vllm_driver import PROMPT, drive, make_engine, random_request, run_prompt, vllm_engine
from terrace.kv_events import Facts, Relay, RelaySettings
from terrace.kv_events.relay import Batch
from terrace.kv_events.wire import events_in, unpack
from conftest import LONG_S, SPACE, Daemon, block_bytes, connect, die_with_parent
from routers import LlmdIndex, Subscriber
from test_kv_events import EventDaemon

BLOCKS = len(PROMPT) // 8


@pytest.fixture(name="rig")
def rig_of():
    with tempfile.TemporaryDirectory() as directory:
        daemon = EventDaemon(directory, 1000)
        connect(daemon).close()
        yield directory, daemon
        daemon.stop()


def said(directory, engine, **more):
    return {"daemon": f"ipc://{directory}/events", "daemon_replay": f"ipc://{directory}/replay",
            "endpoint": f"ipc://{directory}/{engine}-e", "topic": f"kv@{engine}@{{model}}",
            "replay_endpoint": f"ipc://{directory}/{engine}-r", **more}


def router_of(directory, engine):
    return Subscriber(f"ipc://{directory}/{engine}-e", f"ipc://{directory}/{engine}-r", LlmdIndex())


def until(router, tokens, is_right):
    deadline = time.monotonic() + LONG_S
    while not is_right(router.index.tiers_of(tokens, 8)):
        assert time.monotonic() < deadline, router.index.tiers_of(tokens, 8)
        router.turn(20)


def all_there(tiers):
    return all(tier >= {"cpu"} for tier in tiers) and len(tiers) == BLOCKS


def none_there(tiers):
    return not any(tiers)


def test_prompts_and_answers_are_announced_with_their_tokens(rig):
    directory, daemon = rig
    engine = make_engine(daemon, random.Random(7), kv_events=said(directory, "a"))
    router = router_of(directory, "a")
    drive(engine, random.Random(3), 60)
    requests = []
    engine.add(vllm_engine.Request("long", PROMPT, 20, 8))
    requests.append(engine.requests["long"])
    while engine.has_work:
        engine.step()
    tokens = requests[0].tokens
    full = requests[0].num_computed_tokens // 8
    until(router, tokens, lambda tiers: all("cpu" in tier for tier in tiers[:full]))
    with connect(daemon) as client:
        there = client.stats()["domain"]["block_count"]
    deadline = time.monotonic() + LONG_S
    while engine.connector.side.events.relay.counters["announced"] != there:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert router.index.skipped == 0
    announcer = engine.connector.side.events.relay._announcer  # pylint: disable=protected-access
    facts = {name: Facts(*unpack(packed)) for name, packed in announcer.packed()}
    assert all((each.parent_hash is None) == (each.parent_name == 0)
               and (each.parent_name == 0 or facts[each.parent_name].block_hash == each.parent_hash)
               for each in facts.values())
    engine.close()
    router.close()


def test_an_engine_that_finds_blocks_announces_them_too(rig):
    directory, daemon = rig
    first = make_engine(daemon, random.Random(7), kv_events=said(directory, "a"))
    run_prompt(first)
    first.close()
    second = make_engine(daemon, random.Random(7), kv_events=said(directory, "b"))
    router = router_of(directory, "b")
    second.add(vllm_engine.Request("found", PROMPT[:44], 1, 8))  # all of it: nothing is stored
    while second.has_work:
        second.step()
    assert second.counts["loaded_tokens"] == 40
    until(router, PROMPT, lambda tiers: all(tiers[:5]) and none_there(tiers[5:]))
    second.close()
    router.close()


class Announced:
    """Of each block that is announced what the event says of its adapter."""

    def __init__(self):
        self.adapters = []

    def take(self, _topic, payload):
        for event in events_in(payload):
            if event["type"] == "BlockStored":
                self.adapters += [(event["lora_name"], event["lora_id"])] * len(
                    event["block_hashes"])


def run_with_adapter(engine, number, place):
    lora = types.SimpleNamespace(lora_name="sql", lora_int_id=number, lora_path=str(place))
    engine.connector.side.adapters.note(types.SimpleNamespace(lora_request=lora))
    engine.connector.side.adapters.wait_read()
    engine.add(vllm_engine.Request(f"of {number}", PROMPT, 1, 8, lora))
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("is_restart", [False, True])
def test_an_adapter_is_announced_under_the_engines_own_number(rig, tmp_path, monkeypatch,
                                                              is_restart):
    """Another engine, or an earlier start, has numbered it otherwise."""
    monkeypatch.setattr("terrace.vllm.adapters._STARTED_S", time.time() + 3600)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_text("one")
    directory, daemon = rig
    first = make_engine(daemon, random.Random(7),
                        kv_events=said(directory, "a", book=f"{directory}/book"))
    run_with_adapter(first, 1, tmp_path)
    first.close()
    name = "a" if is_restart else "b"
    second = make_engine(daemon, random.Random(7),
                         kv_events=said(directory, name, book=f"{directory}/book"))
    relay = second.connector.side.events.relay
    deadline = time.monotonic() + LONG_S
    while relay._announcer.known_count < BLOCKS:  # pylint: disable=protected-access
        assert time.monotonic() < deadline, "it reads what the first has written"
        time.sleep(0.02)
    router = Subscriber(f"ipc://{directory}/{name}-e", f"ipc://{directory}/{name}-r", Announced())
    run_with_adapter(second, 5, tmp_path)
    while len(router.index.adapters) < BLOCKS:
        assert time.monotonic() < deadline
        router.turn(20)
    assert set(router.index.adapters) == {("sql", 5)}
    second.close()
    router.close()


def test_of_other_weights_nothing_is_announced(rig):
    directory, daemon = rig
    engine = make_engine(daemon, random.Random(7), kv_events=said(directory, "a"))
    router = router_of(directory, "a")
    run_prompt(engine)
    until(router, PROMPT, all_there)
    engine.reset_prefix_cache()
    until(router, PROMPT, none_there)
    run_prompt(engine, "again")
    until(router, PROMPT, all_there)
    engine.close()
    again = make_engine(daemon, random.Random(7), kv_events=said(directory, "a"))
    router.turn(200)
    run_prompt(again, "and again")  # which finds what the first has stored
    until(router, PROMPT, all_there)
    again.close()
    router.close()


def test_vllms_own_stream_has_them_where_no_endpoint_is_named(rig):
    directory, daemon = rig
    of_relay = said(directory, "a")
    del of_relay["endpoint"], of_relay["replay_endpoint"]
    engine = make_engine(daemon, random.Random(7), publishes=True, kv_events=of_relay)
    run_prompt(engine)
    deadline = time.monotonic() + LONG_S
    while sum(len(e.block_hashes) for e in engine.events
              if type(e).__name__ == "BlockStored" and e.medium == "CPU") < BLOCKS:
        assert time.monotonic() < deadline
        engine.step()
        time.sleep(0.01)
    kinds = [type(event).__name__ for event in engine.events]
    assert kinds[0] == "AllBlocksCleared" and set(kinds[1:]) == {"BlockStored"}
    first = engine.events[1]
    assert first.parent_block_hash is None and first.token_ids[:8] == PROMPT[:8]
    assert first.group_idx == 0 and first.kv_cache_spec_kind == "full_attention"
    request = vllm_engine.Request("x", PROMPT, 1, 8)
    assert first.block_hashes[0] == int.from_bytes(request.block_hashes[0][-8:], "big")
    engine.close()


@pytest.mark.parametrize("wrong, words", [
    ({"topick": "x"}, "topick"), ({"daemon": None}, "kv_events.daemon"),
    ({"endpoint": None}, "--kv-events-config"),
    ({"endpoint": "tcp://*"}, "endpoint is 'tcp://*': it is ipc:///path or tcp://address:port"),
    ({"blocks_max": "many"}, "blocks_max is 'many'"), ({"media": []}, "media is []"),
    ({"media": {"CPU": 7}}, "media is"), ({"topic": 5}, "topic is 5"),
    ({"daemon": "tcp://*:5557"}, "daemon is 'tcp://*:5557'")])
def test_what_is_wrong_is_said_and_the_engine_served(rig, caplog, wrong, words):
    directory, daemon = rig
    engine = make_engine(daemon, random.Random(7), kv_events={**said(directory, "a"), **wrong})
    run_prompt(engine)
    assert any(words in record.getMessage() for record in caplog.records)
    assert engine.connector.side.refusal is None and engine.connector.side.events is None
    engine.close()


def test_extra_keys_are_those_of_vllms_own_events(rig, monkeypatch):
    directory, daemon = rig
    import vllm.v1.core as core  # pylint: disable=import-outside-toplevel

    monkeypatch.setattr(core, "kv_cache_utils", types.SimpleNamespace(
        DEFAULT_NONE_HASH_SEED="x",
        generate_block_hash_extra_keys=lambda request, first, last, place: (
            ((("cache_salt", "s"),) if first == 0 else None), place),
        to_event_extra_keys=lambda all_keys: [
            None if keys is None else tuple(key[1] for key in keys) for keys in all_keys]))
    of_relay = said(directory, "a")
    del of_relay["endpoint"], of_relay["replay_endpoint"]
    engine = make_engine(daemon, random.Random(7), publishes=True, kv_events=of_relay)
    salted = vllm_engine.Request("only", PROMPT, 1, 8)
    salted.cache_salt = "s"
    engine.add(salted)
    while engine.has_work:
        engine.step()
    deadline = time.monotonic() + LONG_S
    while not any(getattr(event, "extra_keys", None) for event in engine.events):
        assert time.monotonic() < deadline
        engine.step()
        time.sleep(0.01)
    keyed = next(event for event in engine.events if getattr(event, "extra_keys", None))
    assert [list(keys or ()) for keys in keyed.extra_keys] == [["s"]] + [[]] * (
        len(keyed.block_hashes) - 1)
    engine.close()


IMAGES = [(3, 20), (20, 22), (22, 23), (41, 90), (95, 99)]  # first token, and behind the last


def keys_of_block(request, first, last, place):
    """The rule of vLLM's own: images that reach into the block, by where they begin in it."""
    keys = [("cache_salt", request.cache_salt)] if first == 0 else []
    while place < len(IMAGES) and IMAGES[place][0] < last:
        if IMAGES[place][1] > first:
            keys.append(("mm", place, IMAGES[place][0] - first))
        if IMAGES[place][1] > last:
            break
        place += 1
    return tuple(keys) or None, place


def test_extra_keys_of_a_block_are_made_once_however_long_the_prompt(monkeypatch):
    import vllm.v1.core as core  # pylint: disable=import-outside-toplevel

    starts, told = [], []

    def make(request, first, last, place):
        starts.append(first)
        return keys_of_block(request, first, last, place)

    monkeypatch.setattr(core, "kv_cache_utils", types.SimpleNamespace(
        generate_block_hash_extra_keys=make))
    relay = types.SimpleNamespace(use=lambda weights: None, knows=lambda name: name in (7, 8),
                                  learn=lambda batch: told.append(batch.extra_keys))
    group = types.SimpleNamespace(spec="x", keys_of_digests=lambda digests: [bytes(16)])
    events = terrace.vllm.events.KvEvents(relay, group, 8, [])
    request = types.SimpleNamespace(cache_salt="s", all_token_ids=list(range(120)))
    names, hashes = list(range(1, 16)), [bytes(8)] * 15
    for first, last in ((0, 1), (1, 4), (4, 5), (5, 6), (6, 8), (8, 15)):  # 7 and 8 are known
        before = max(0, first - 1)
        events.learn(request, b"", first, names[before:last], hashes[before:last])
    whole, place = [], 0
    for first in range(0, 120, 8):
        keys, place = keys_of_block(request, first, first + 8, place)
        whole.append(keys)
    assert [keys for batch in told for keys in batch] == whole[:6] + whole[8:]
    assert starts == [8 * i for i in range(15) if i not in (6, 7)]


def test_random_requests_with_daemons_that_die_end_with_a_view_that_is_right(rig):
    directory, daemon = rig
    engine = make_engine(daemon, random.Random(5), kv_events=said(directory, "a"))
    router = router_of(directory, "a")
    chance = random.Random(5)
    made = []

    def make(number, chance):
        made.append(random_request(number, chance))
        return made[-1]

    for first in range(0, 120, 40):
        drive(engine, chance, 40, first=first, make=make)
        daemon.kill()
        daemon.start()
        connect(daemon).close()
    deadline = time.monotonic() + LONG_S
    first, is_back = 120, False
    while not is_back:  # requests until the connector has found the last daemon
        assert time.monotonic() < deadline
        drive(engine, chance, 40, first=first, make=make)
        first += 40
        questions = engine.connector.side.scheduler._questions  # pylint: disable=protected-access
        with contextlib.suppress(terrace.Gone):
            longest = max(made, key=lambda request: len(request.block_hashes))
            questions.group.keys_of_digests(longest.block_hashes[:1])
            is_back = True
    deadline = time.monotonic() + LONG_S
    media = {"dram": "cpu", "nvme": "storage"}
    while True:
        router.turn(20)
        wrong = []
        for request in made:
            count = len(request.block_hashes)
            keys = questions.group.keys_of_digests(request.block_hashes)
            there = [{media[tier] for tier in block.tiers} if block.state == "sealed" else set()
                     for block in questions.group.query(keys)] if count else []
            # Of a request that outlived a daemon the next one may have blocks without a parent.
            whole = next((i for i, tiers in enumerate(there) if not tiers), count)
            seen = router.index.tiers_of(request.tokens, 8)[:count]
            if seen[:whole] != there[:whole] or any(s - t for s, t in zip(seen, there)):
                wrong.append((request.request_id, seen, there))
        if not wrong:
            break
        assert time.monotonic() < deadline, wrong
    engine.close()
    router.close()


def announced(relay, view):
    """Hashes that were announced and not taken back, by what has come since."""
    for event in relay.take():
        if event["type"] == "AllBlocksCleared":
            view.clear()
        elif event["type"] == "BlockStored":
            view.update(event["block_hashes"])
        else:
            view.difference_update(event["block_hashes"])
    return view


class TwoDomains(Daemon):
    """Of one daemon, which tells of both."""

    def __init__(self, directory):
        super().__init__(directory, f"""
[kv_events]
endpoint = "ipc://{directory}/events"
replay_endpoint = "ipc://{directory}/replay"
[[domain]]
name = "a"
kv_events = "on"
socket = "{directory}/a.sock"
[[domain]]
name = "b"
kv_events = "on"
socket = "{directory}/b.sock"
""")

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([os.environ["TERRACED"], "--config", self.config],
                                            stdout=log, stderr=log, preexec_fn=die_with_parent)

    def engine(self, name):
        """Its client, its group and its events, which it publishes itself."""
        directory = self.config.parent
        client = connect(types.SimpleNamespace(socket=f"{directory}/{name}.sock", log=self.log))
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        relay = Relay(RelaySettings.of({
            "daemon": f"ipc://{directory}/events", "daemon_replay": f"ipc://{directory}/replay",
            "topic": f"kv@{name}@m", "book": f"{directory}/books"}), "m", logging.getLogger("test"))
        return client, group, terrace.vllm.events.KvEvents(relay, group, 16, [])


def test_an_engine_does_not_announce_what_another_domain_of_its_daemon_has():
    digests, tokens = [bytes([number]) * 32 for number in range(3)], list(range(48))
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        daemon = TwoDomains(directory)
        stack.callback(daemon.stop)
        engines = [daemon.engine(name) for name in "ab"]
        views = [set(), set()]
        hashes = set(range(1, 4))

        def put(engine):
            _, group, events = engine
            names = events.names(digests)
            events.relay.learn(Batch(names, sorted(hashes), (0, None), tokens, 16))
            with group.reserve(group.keys_of_digests(digests), event_hashes=names) as lease:
                lease.write([block_bytes(number) for number in range(3)])
                lease.commit()

        def until_announced(expected):
            deadline = time.monotonic() + LONG_S
            while [announced(engine[2].relay, view)
                   for engine, view in zip(engines, views)] != expected:
                assert time.monotonic() < deadline, views
                time.sleep(0.02)

        put(engines[1])
        engines[0][2].relay.learn(Batch(engines[0][2].names(digests), sorted(hashes), (0, None),
                                        tokens, 16))
        until_announced([set(), hashes])
        put(engines[0])
        until_announced([hashes, hashes])
        engines[1][1].evict(engines[1][1].keys_of_digests(digests))
        until_announced([hashes, set()])
        for client, _, events in engines:
            events.close()
            client.close()
