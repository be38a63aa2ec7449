"""What SGLang's extra configuration may say to terrace.sglang, and how long its calls wait."""
import contextlib
import os
import resource
import time

import pytest

from test_sglang import (  # first: it stands in for SGLang's modules
    config_of, hashes, indices_of, make, make_hybrid, make_ranks, store, transfer,
    wait_populated)
import terrace.sglang
from terrace import parameters
from conftest import LONG_S, connect, kept_out

GROUP = terrace.group.Group


def listen_to(monkeypatch, pause_s=0.0):
    """Of each verb that is asked its timeout, in order; each takes so long."""
    told = []
    for name in ("match", "query", "acquire", "reserve"):
        def ask(self, keys, *arguments, _call=getattr(GROUP, name), **named):
            timeout_s = arguments[0] if arguments else named.get("timeout_s")
            told.append(timeout_s)
            time.sleep(pause_s)
            return _call(self, keys, *arguments, **named)

        monkeypatch.setattr(GROUP, name, ask)
    return told


def test_who_may_not_open_the_socket_goes_on_without_it(daemon, client, caplog):
    wait_populated(client)
    with kept_out(daemon):
        backend, keys = make(daemon), hashes(2)
        assert backend.batch_exists(keys) == 0
        assert backend.batch_set_v1(keys, indices_of([0, 1])) == [False, False]
    assert backend.refusal is None and "Permission denied" in caplog.text
    deadline = time.monotonic() + LONG_S
    while not all(backend.batch_set_v1(keys, indices_of([0, 1]))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    backend.close()


@contextlib.contextmanager
def without_descriptors(left_count):
    """This process may open so many more meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 512), limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(left_count):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("left_count", range(0, 9))
def test_a_client_that_gets_no_descriptors_is_made_once_there_are_some(daemon, client, caplog,
                                                                       monkeypatch, left_count):
    """Whichever is the first that is refused: one of its own, or one that the daemon hands over."""
    monkeypatch.setattr(terrace.sglang.hicache, "_MAKE_PAUSE_S", 0.05, raising=False)
    wait_populated(client)
    with without_descriptors(left_count):
        backend, keys = make(daemon), hashes(2)
        assert backend.batch_exists(keys) == 0
    assert backend.refusal is None
    deadline = time.monotonic() + LONG_S
    while not all(backend.batch_set_v1(keys, indices_of([0, 1]))):
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.05)
    backend.close()


@pytest.mark.parametrize("verb", ["exists", "get", "set"])
def test_a_daemon_that_hangs_is_left_alone_until_it_answers_again(daemon, client, monkeypatch,
                                                                  verb):
    wait_populated(client)
    backend, keys = make(daemon, timeout_ms=100), hashes(2)
    deadline = time.monotonic() + LONG_S
    while not all(backend.batch_set_v1(keys, indices_of([0, 1]))):
        assert time.monotonic() < deadline
    calls = {"exists": lambda: backend.batch_exists(keys),
             "get": lambda: backend.batch_get_v1(keys, indices_of([2, 3])),
             "set": lambda: backend.batch_set_v1(hashes(2, b"x"), indices_of([0, 1]))}
    told = listen_to(monkeypatch)
    daemon.process.send_signal(19)
    try:
        for _ in range(40):
            assert calls[verb]() in (0, [False, False])
        assert 3 <= len(told) <= 8, "three in a row, and one behind each pause"
    finally:
        daemon.process.send_signal(18)
    connect(daemon).close()
    deadline = time.monotonic() + LONG_S
    while backend.batch_exists(keys) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert backend.refusal is None
    backend.close()


def test_all_shards_of_a_page_are_asked_within_one_timeout(daemon, client, monkeypatch):
    wait_populated(client)
    (backend,), keys, pages = make_ranks(daemon, 1), hashes(3), indices_of([1, 2, 3])
    assert backend._pools["kv"].shard_count == 2
    assert all(backend.batch_set_v1(keys, pages))
    told = listen_to(monkeypatch, 0.05)
    for call in (lambda: backend.batch_exists(keys) == 3,
                 lambda: all(backend.batch_get_v1(keys, pages)),
                 lambda: all(backend.batch_set_v1(hashes(3, b"x"), pages))):
        told.clear()
        assert call()
        first, second = told
        assert 0 < second <= first - 0.05 < LONG_S
    backend.close()


def test_all_pools_are_asked_within_one_timeout(daemon, client, monkeypatch):
    wait_populated(client)
    backend, keys = make_hybrid(daemon), hashes(2)
    told = listen_to(monkeypatch, 0.05)
    of_pools = [transfer(name, [0, 1], keys) for name in ("swa", "dsa")]
    for call in (lambda: backend.batch_set_v2(of_pools), lambda: backend.batch_get_v2(of_pools),
                 lambda: backend.batch_exists_v2(keys, of_pools)):
        told.clear()
        call()
        assert len(told) >= 2 and all(left is not None for left in told)
        assert all(0 < later <= before - 0.05 for before, later in zip(told, told[1:]))
    backend.close()


def test_a_slow_daemon_is_asked_for_no_more_once_the_time_is_over(daemon, client, monkeypatch):
    wait_populated(client)
    (backend,), keys, pages = make_ranks(daemon, 1), hashes(3), indices_of([1, 2, 3])
    assert all(backend.batch_set_v1(keys, pages))
    monkeypatch.setattr(backend, "_patience", lambda: terrace.sglang.patience.Patience(1.0))
    told = listen_to(monkeypatch, 1.0)
    for number in range(5):
        assert backend.batch_exists(keys) == 0
        assert len(told) == number + 1, "it has answered, and is not left alone"
    assert backend.batch_get_v1(keys, pages) == [False] * 3
    assert backend.batch_set_v1(hashes(3, b"x"), pages) == [False] * 3
    assert len(told) == 7 and backend.refusal is None
    backend.close()


def test_copying_takes_no_patience():
    patience = terrace.sglang.patience.Patience(LONG_S)
    before = patience.left_s
    with patience.copying():
        time.sleep(0.2)
    assert before - 0.15 < patience.left_s <= before
    assert terrace.sglang.patience.Patience(0.0).left_s == 0


@pytest.mark.parametrize("name, value, allowed", [
    ("flush_keeps", "false", "true or false"), ("flush_keeps", "true", "true or false"),
    ("one_namespace", "false", "true or false"), ("one_namespace", 2, "true or false"),
    ("timeout_ms", "fast", parameters.TIMEOUT), ("timeout_ms", -1, parameters.TIMEOUT),
    ("timeout_ms", True, parameters.TIMEOUT), ("timeout_ms", float("nan"), parameters.TIMEOUT),
    ("socket", 5, "a path"), ("revision", ["1"], "a text")])
def test_a_value_that_cannot_be_is_named_and_everything_misses(daemon, caplog, name, value,
                                                               allowed):
    backend = make(daemon, **{name: value})
    said = f"the extra configuration: {name} is {value!r}: it is {allowed}"
    assert said in backend.refusal and said in caplog.text
    assert backend.batch_exists(hashes(2)) == 0
    assert backend.batch_get_v1(hashes(2), indices_of([0, 1])) == [False, False]
    assert backend.batch_set_v1(hashes(2), indices_of([0, 1])) == [False, False]
    backend.mem_pool_host.clear()
    backend.clear()
    backend.close()


@pytest.mark.parametrize("extra", ["socket", 5, ["socket"]])
def test_a_configuration_that_is_none_is_refused(daemon, extra):
    config = config_of(daemon)
    config.extra_config = extra
    backend = terrace.sglang.TerraceHiCache(config, {})
    assert f"the extra configuration is {extra!r}" in backend.refusal
    assert backend.batch_exists(hashes(2)) == 0
    backend.close()


def test_without_sglangs_interface_it_is_refused(daemon):
    for off in (0, None):
        backend = make(daemon, interface_v1=off)
        assert 'add "interface_v1": 1' in backend.refusal
        assert backend.batch_exists(hashes(2)) == 0, "a hit that nobody can load"
        backend.close()


@pytest.mark.parametrize("flushes_keep", [False, 0, None])
def test_a_flag_that_is_false_is_off(daemon, client, monkeypatch, flushes_keep):
    wait_populated(client)
    backend = make(daemon, flush_keeps=flushes_keep)
    store(backend, hashes(2), 1)
    backend.mem_pool_host.clear()
    assert backend.batch_exists(hashes(2)) == 0
    backend.close()
    monkeypatch.delattr("sglang.srt.mem_cache.utils.storage_namespace_seed")
    assert "one_namespace" in make(daemon, one_namespace=flushes_keep).refusal


def test_names_that_are_none_are_told_and_sglangs_own_are_not(daemon, caplog):
    of_sglang = {"backend_name": "terrace", "module_path": "terrace.sglang", "interface_v1": 1,
                 "class_name": "TerraceHiCache", "tp_lcm_size": 4, "prefetch_threshold": 256,
                 "prefetch_timeout_base": 1, "prefetch_timeout_per_ki_token": 0.25,
                 "hicache_storage_pass_prefix_keys": True, "terrace_priority": 5}
    backend = make(daemon, sokcet="/s", **of_sglang)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == 1 and "'sokcet'" in texts[0] and "did you mean 'socket'" in texts[0]
    assert backend.refusal is None
    backend.close()
