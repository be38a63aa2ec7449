"""LoRA adapters: terrace.vllm against the engine of vllm_engine, whose blocks depend on weights."""
import os
import random
import time
import types

import pytest

from vllm_driver import (LONG_S, PROMPT, REQUESTS, drive, expect_nothing_held, make_engine,
                       random_request)  # first: it stands in for vLLM's modules
import terrace.vllm.adapters
import vllm_engine
from conftest import connect


def put(directory, content):
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text('{"r": 8}')
    (directory / "adapter_model.safetensors").write_text(content)
    return directory


@pytest.fixture(name="place")
def _place(tmp_path, monkeypatch):
    """Where adapters lie that are older than the process, as far as it can tell."""
    monkeypatch.setattr("terrace.vllm.adapters._STARTED_S", time.time() + 3600)
    return tmp_path


def lora(directory, number=1, **more):
    return types.SimpleNamespace(lora_name=directory.name, lora_int_id=number,
                                 lora_path=str(directory), **more)


def note(engine, lora_request):
    """vLLM has been given a request with it before, and its files have been read."""
    engine.connector.side.adapters.note(types.SimpleNamespace(lora_request=lora_request))
    engine.connector.side.adapters.wait_read()


def run(engine, lora_request, tokens=tuple(PROMPT), is_known=True):
    """Tokens that a request with the adapter loads; compares every byte."""
    if is_known:
        note(engine, lora_request)
    before = engine.counts["loaded_tokens"]
    engine.add(vllm_engine.Request(f"r{len(engine.steps)}", tokens, 1, 8, lora_request))
    while engine.has_work:
        engine.step()
    return engine.counts["loaded_tokens"] - before


def run_alone(daemon, lora_request, tokens=tuple(PROMPT)):
    """The same in an instance of its own."""
    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7))
    loaded = run(engine, lora_request, tokens)
    expect_nothing_held(daemon, engine)
    return loaded


def test_instances_with_an_adapter_share_what_was_computed_with_its_weights(daemon, place):
    sql, other = put(place / "sql", "one"), put(place / "other", "one")
    assert run_alone(daemon, lora(sql)) == 0
    assert run_alone(daemon, lora(sql, number=5)) == 72
    assert run_alone(daemon, None) == 0
    assert run_alone(daemon, lora(other)) == 0
    assert run_alone(daemon, lora(sql)) == 72


def test_other_weights_under_the_same_name_and_path_share_nothing(daemon, place):
    sql = put(place / "sql", "one")
    assert run_alone(daemon, lora(sql)) == 0
    put(sql, "two")
    assert run_alone(daemon, lora(sql)) == 0
    (sql / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 3}')
    assert run_alone(daemon, lora(sql)) == 0
    put(sql, "one")
    assert run_alone(daemon, lora(sql)) == 72
    assert run_alone(daemon, lora(sql, is_3d_lora_weight=True)) == 0


def test_the_configuration_of_adapters_is_part_of_what_they_share(place):
    sql = lora(put(place / "sql", "one"))

    def mask(**configuration):
        adapters = terrace.vllm.adapters.Adapters(types.SimpleNamespace(
            lora_config=types.SimpleNamespace(**configuration)))
        adapters.note(types.SimpleNamespace(lora_request=sql))
        adapters.wait_read()
        adapters.close()
        return adapters.mask_of(types.SimpleNamespace(lora_request=sql))

    assert mask(lora_dtype="float16", max_loras=1) == mask(lora_dtype="float16", max_loras=2)
    assert len({mask(lora_dtype="float16"), mask(lora_dtype="float32"),
                mask(lora_dtype="float16", target_modules=["o_proj"])}) == 3


def test_an_adapter_is_missed_until_its_files_have_been_read(daemon, place, monkeypatch):
    sql = lora(put(place / "sql", "one"))
    assert run_alone(daemon, sql) == 0
    unread = []
    monkeypatch.setattr("terrace.vllm.adapters.Adapters._read",
                        lambda self, adapter: unread.append(adapter))
    engine = make_engine(daemon, random.Random(7))
    assert run(engine, sql) == 0 and len(unread) == 1
    assert engine.connector.side.scheduler.counters["lookups"] == 0
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 0
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("change", [
    lambda sql: put(sql, "two"), lambda sql: (sql / "adapter_model.bin").write_text("more"),
    lambda sql: os.rename(put(sql.with_name("new"), "one") / "adapter_model.safetensors",
                          sql / "adapter_model.safetensors"),
    lambda sql: (sql / "adapter_config.json").unlink()])
def test_an_adapter_that_changes_is_not_cached_any_more(daemon, place, change, caplog):
    sql = put(place / "sql", "one")
    assert run_alone(daemon, lora(sql)) == 0
    engine = make_engine(daemon, random.Random(7))
    assert run(engine, lora(sql)) == 72
    change(sql)
    for worker in engine.workers:
        worker.adapters.clear()
    for head in (1, 2):
        assert run(engine, lora(sql), [head] * 40) == 0
        put(sql, "one")  # what was loaded meanwhile nobody knows
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 0
    assert sum("restart the engine" in r.message for r in caplog.records) == 1
    expect_nothing_held(daemon, engine)


def test_one_look_at_an_adapter_serves_all_requests_of_a_turn_and_none_of_the_next(
        place, monkeypatch):
    adapters = terrace.vllm.adapters.Adapters(types.SimpleNamespace(lora_config=None))
    request = types.SimpleNamespace(lora_request=lora(put(place / "sql", "one")))
    looks = []
    looked_at = terrace.vllm.files.looked_at
    adapters.note(request)
    adapters.wait_read()
    monkeypatch.setattr(terrace.vllm.files, "looked_at",
                        lambda *of: looks.append(of) or looked_at(*of))
    for turn in range(3):
        for _ in range(20):
            adapters.note(request)  # a new one: it will be looked at before it is asked for
            assert adapters.look(request, None, LONG_S) is None
        assert len(looks) == turn + 1 and adapters.mask_of(request)
        adapters.turn_ended()
    put(place / "sql", "two")
    adapters.look(request, None, LONG_S)
    assert adapters.mask_of(request) is None
    adapters.close()


def test_weights_that_changed_before_the_worker_loaded_them_are_not_stored(daemon, place,
                                                                           monkeypatch):
    sql = put(place / "sql", "one")
    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7))
    build = engine.connector.build_connector_meta

    def changing(output):
        monkeypatch.setattr(engine.connector, "build_connector_meta", build)
        put(sql, "two")
        return build(output)

    monkeypatch.setattr(engine.connector, "build_connector_meta", changing)
    assert run(engine, lora(sql)) == 0
    assert engine.connector.side.scheduler.counters["stored_blocks"] > 0  # the scheduler had hoped
    expect_nothing_held(daemon, engine)
    put(sql, "one")
    assert run_alone(daemon, lora(sql)) == 0


def test_files_younger_than_the_process_are_not_trusted(daemon, place, monkeypatch, caplog):
    monkeypatch.setattr("terrace.vllm.adapters._STARTED_S", time.time())
    assert run_alone(daemon, lora(put(place / "sql", "one"))) == 0
    assert "adapter_model.safetensors is younger than this process" in caplog.text
    assert run_alone(daemon, lora(place / "sql")) == 0


def test_a_link_on_the_way_that_is_younger_than_the_process_is_not_trusted(daemon, place,
                                                                           monkeypatch, caplog):
    put(place / "v1", "one")
    (place / "v1" / "more").symlink_to("../v1/adapter_config.json")
    link = place / "current"
    link.symlink_to("v1")
    limit_s = max(about[-1] for about in terrace.vllm.files.looked_at(
        str(link), terrace.vllm.files.names_in(str(link), 256))) / 1e9
    monkeypatch.setattr("terrace.vllm.adapters._STARTED_S",
                        limit_s + 1e-4 + terrace.vllm.files.CLOCKS_APART_S)
    assert run_alone(daemon, lora(link)) == 0
    assert run_alone(daemon, lora(link)) == 72
    while os.lstat(link).st_ctime <= limit_s + 1e-3:  # the file system's clock has steps
        link.unlink()
        link.symlink_to("v1")
    assert run_alone(daemon, lora(link)) == 0
    assert "current is younger than this process" in caplog.text


@pytest.mark.parametrize("second", [
    lambda one, two: lora(two), lambda one, two: lora(one, load_inplace=True),
    lambda one, two: lora(one, number=2)])
def test_an_id_and_a_name_mean_one_adapter_or_none(daemon, place, second):
    one, two = put(place / "one", "one"), put(place / "two", "two")
    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7))
    assert run(engine, lora(one)) == 0
    stored_count = engine.connector.side.scheduler.counters["stored_blocks"]
    assert stored_count > 0
    # vLLM computes the second one with what it has under the id, and keeps it under its name.
    run(engine, second(one, two), [1] * 40)
    run(engine, second(one, two), [1] * 80)
    assert run(engine, lora(one), [2] * 40) == 0
    if second(one, two).lora_name == "two":
        assert run(engine, lora(two, number=2), [3] * 40) == 0
    assert engine.connector.side.scheduler.counters["stored_blocks"] == stored_count
    expect_nothing_held(daemon, engine)
    assert run_alone(daemon, lora(two, number=2), [1] * 80) == 0


def test_what_an_id_means_is_learnt_without_a_daemon_too(daemon, place, monkeypatch):
    one, two = put(place / "one", "one"), put(place / "two", "two")
    daemon.kill()
    monkeypatch.setattr("terrace.vllm.role.START_WAIT_S", 0.01)
    engine = make_engine(daemon, random.Random(7), timeout_ms=20, lookup_wait_ms=1)
    run(engine, lora(one), is_known=False)
    daemon.start()
    connect(daemon).close()
    engine.connector.side.client.wait_connected(LONG_S)
    engine.connector.side.next_open = 0.0
    assert run(engine, lora(two), [1] * 80) == 0
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 0
    expect_nothing_held(daemon, engine)


@pytest.mark.parametrize("more, word", [
    ({"load_inplace": True}, "load_inplace"), ({"lora_path": "sql"}, "absolute path"),
    ({"tensorizer_config_dict": {"uri": "x"}}, "tensorizer_config_dict")])
def test_adapters_whose_weights_are_not_certain_are_refused_once(daemon, place, caplog, more, word):
    sql = lora(put(place / "sql", "one"))
    vars(sql).update(more)
    os.chdir(place)
    engine = make_engine(daemon, random.Random(7))
    for _ in range(2):
        assert run(engine, sql) == 0
    assert [word in record.message for record in caplog.records].count(True) == 1
    assert engine.connector.side.scheduler.counters["stored_blocks"] == 0
    expect_nothing_held(daemon, engine)


def test_adapters_that_may_be_exchanged_at_run_time_are_not_cached(daemon, place, monkeypatch,
                                                                   caplog):
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    assert run_alone(daemon, lora(put(place / "sql", "one"))) == 0
    assert "--lora-modules" in caplog.text
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0")
    assert [run_alone(daemon, lora(place / "sql")) for _ in range(2)] == [0, 72]


@pytest.mark.parametrize("limit", ["_ADAPTERS_MAX", "_FILES_MAX", "_BYTES_MAX"])
def test_beyond_what_is_looked_at_nothing_is_cached(daemon, place, monkeypatch, limit):
    sql = lora(put(place / "sql", "one"))
    monkeypatch.setattr(f"terrace.vllm.adapters.{limit}", 0)
    assert [run_alone(daemon, sql) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("tp_size, depth, windows", [(1, 1, (0,)), (2, 2, (0,)), (1, 1, (0, 20))])
def test_random_requests_with_adapters_keep_the_contract(daemon, place, tp_size, depth, windows):
    """Instances one after the other, of different weights under the same names."""
    chance = random.Random(tp_size)
    for contents in (("one", "two", "three"), ("two", "one", "three")):
        adapters = [None] + [lora(put(place / f"a{n}", content), n)
                             for n, content in enumerate(contents, 1)]

        def request(number, chance, adapters=adapters):
            made = random_request(number, chance)
            return vllm_engine.Request(made.request_id, made.tokens, made.output_count, 8,
                                       chance.choice(adapters))

        connect(daemon).close()
        engine = make_engine(daemon, chance, tp_size=tp_size, depth=depth, windows=windows,
                             block_count=20 + 20 * len(windows))
        drive(engine, chance, REQUESTS // 4, make=request)
        assert engine.counts["finished"] > REQUESTS // 8
        assert engine.counts["loaded_tokens"] > REQUESTS // 8
        assert engine.connector.side.refusal is None
        expect_nothing_held(daemon, engine)
