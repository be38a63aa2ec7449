"""What kv_connector_extra_config may say, and when a daemon that was away is asked again."""
import random
import signal
import time
import types

import pytest

from vllm_driver import expect_nothing_held, make_engine, run_prompt, terrace
from conftest import LONG_S, SPACE, connect, kept_out
from terrace.requests import Asker, Pause

Settings = terrace.vllm.settings.Settings


def test_parameters_are_read():
    settings = Settings.of({"socket": "/s", "timeout_ms": 20, "hbm": True, "revision": 7,
                            "pinned_gib": 0.5, "tool_call_tokens": [3, "4"], "codec": "",
                            "head_units": None})
    assert settings == Settings(socket="/s", timeout_s=0.02, reads_hbm=True, revision="7",
                                pinned_bytes_max=1 << 29, tool_call_tokens=frozenset((3, 4)))
    assert Settings.of({"socket": "/s", "pinned_gib": None, "timeout_ms": None, "revision": None,
                        "tool_call_tokens": None, "lookup_wait_ms": 0.5}) == Settings("/s")
    assert Settings.of({}).socket is None


@pytest.mark.parametrize("value, is_on", [(True, True), (False, False), (1, True), (0, False),
                                          (None, False)])
def test_a_flag_is_what_it_says(value, is_on):
    assert Settings.of({"socket": "/s", "hbm": value}).reads_hbm is is_on


def test_what_is_no_dictionary_is_named():
    with pytest.raises(ValueError, match="kv_connector_extra_config is 'socket=/s'"):
        Settings.of("socket=/s")


def test_a_name_that_is_none_is_told_with_the_nearest(caplog):
    assert Settings.of({"socket": "/s", "revison": "7"}) == Settings("/s")
    assert "'revison'" in caplog.text and "did you mean 'revision'" in caplog.text


@pytest.mark.parametrize("name, value", [
    ("timeout_ms", "soon"), ("timeout_ms", -1), ("lookup_wait_ms", "nan"), ("copy_threads", "x"),
    ("copy_threads", -1), ("copy_threads", 1.5), ("pinned_gib", "inf"), ("tool_call_tokens", 5),
    ("tool_call_tokens", "345"), ("hbm", "false"), ("hbm", "true"), ("hbm", 2),
    ("timeout_ms", 0), ("timeout_ms", 1e13), ("load_timeout_ms", 1e13), ("copy_threads", 65),
    ("pinned_gib", 1 << 34), ("timeout_ms", True), ("revision", True), ("socket", 5),
    ("weights_version_file", 0)])
def test_a_value_that_cannot_be_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        Settings.of({"socket": "/s", name: value})


def test_who_may_not_open_the_socket_goes_on_without_it(daemon, caplog):
    connect(daemon).close()
    with kept_out(daemon):
        engine = make_engine(daemon, random.Random(7))
        run_prompt(engine)
    assert engine.counts["finished"] == 1 and engine.connector.side.refusal is None
    assert "Permission denied" in caplog.text
    engine.close()


def test_an_engine_with_a_value_that_cannot_be_serves_without_the_cache(daemon, caplog):
    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7), pinned_gib="all of it")
    run_prompt(engine)
    assert "pinned_gib is 'all of it': it is GiB" in engine.connector.side.refusal
    assert "pinned_gib is 'all of it'" in caplog.text and engine.counts["finished"] == 1
    engine.close()


@pytest.mark.parametrize("said, word", [({"kv_role": "kv_consumer"}, "kv_role is 'kv_consumer'"),
                                        ({"kv_role": "kv_producer"}, "kv_role is 'kv_producer'"),
                                        ({"kv_load_failure_policy": "fail"}, "is 'fail'"),
                                        ({"kv_role": "kv_both"}, None), ({}, None)])
def test_what_vllm_says_of_roles_is_warned_of_and_stores_and_loads_all_the_same(
        daemon, caplog, monkeypatch, said, word):
    connect(daemon).close()
    connect_one = terrace.vllm.role.Role.connect

    def connect_as_said(side):
        vars(side._config.kv_transfer_config).update(said)  # one for all sides of an engine
        connect_one(side)

    monkeypatch.setattr(terrace.vllm.role.Role, "connect", connect_as_said)
    for loaded in (0, 72):
        engine = make_engine(daemon, random.Random(7))
        run_prompt(engine)
        assert engine.counts["loaded_tokens"] == loaded
        expect_nothing_held(daemon, engine)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (0 if word is None else 4), "of each side, of two instances"
    assert all(word in warning and "set it to" in warning for warning in warnings)


def test_a_daemon_that_is_back_is_asked_at_once():
    client = types.SimpleNamespace(boot_id=5)
    pause = Pause(client)
    for _ in range(20):
        pause.note(False)
    assert pause.is_on
    client.boot_id = 0  # not connected
    assert not pause.is_on
    client.boot_id = 5
    assert pause.is_on  # asking changes nothing
    client.boot_id = 0
    for _ in range(20):
        pause.note(False)
    assert pause.is_on
    client.boot_id = 6
    assert not pause.is_on
    pause.note(False)
    pause.note(False)
    assert not pause.is_on
    pause.note(False)
    assert pause.is_on
    time.sleep(0.6)
    assert not pause.is_on
    pause.note(False)
    client.boot_id = 7
    pause.note(True)  # another one's answer
    client.boot_id = 6
    assert not pause.is_on


def test_requests_of_one_silence_are_one_failure_and_an_answer_ends_the_pause(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pause = Pause(types.SimpleNamespace(boot_id=5))
    for _ in range(50):  # late by the same hiccup
        pause.note(False)
    now[0] += 0.6
    assert not pause.is_on
    pause.note(False)
    assert pause.is_on
    pause.note(True)
    assert not pause.is_on


def test_a_pause_outlives_its_client(monkeypatch):
    class Client:
        boot_id = 5

    def closed(_):
        raise terrace.Gone("the client is closed")

    pause = Pause(Client())
    for _ in range(20):
        pause.note(False)
    monkeypatch.setattr(Client, "boot_id", property(closed))
    pause.note(False)
    assert pause.is_on


def test_what_a_client_refuses_itself_is_no_silence_of_the_daemon(daemon):
    with connect(daemon, pending_requests_max=2) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        keys = group.hash(list(range(32)))
        asker = Asker(group, LONG_S)
        daemon.process.send_signal(signal.SIGSTOP)
        sent = [asker.acquire(keys) for _ in range(2)]
        refused = [asker.acquire(keys) for _ in range(5)]
        assert all(pending.is_done for pending in refused) and asker.pending_count == 2
        assert not asker.is_paused
        daemon.process.send_signal(signal.SIGCONT)
        assert all(asker.wait(pending, LONG_S) for pending in sent)


def test_a_scheduler_may_have_a_lookup_of_every_request_on_its_way(daemon):
    engine = make_engine(daemon, random.Random(7))
    assert engine.connector.side.client.pending_requests_max == 1024
    engine.close()
