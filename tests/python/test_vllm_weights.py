"""terrace.vllm where the weights are exchanged under a running engine: new ones never meet what the
old ones computed, wherever it lies, and whoever goes on with the old ones does not notice."""
import os
import random
import threading
import time

import pytest

import terrace.epochs
from vllm_driver import (LONG_S, PROMPT, REQUESTS, connect, drive, expect_no_lease,
                         expect_nothing_held, make_engine, random_request, run_prompt, terrace,
                         vllm_engine, wait_for_segments)


def exchange(engine, weights, chance):
    """Around a sleep or in a pause the cache is reset before, else behind the update."""
    if chance.random() < 0.5:
        engine.reset_prefix_cache()
        engine.update_weights(weights)
    else:
        engine.update_weights(weights)
        engine.reset_prefix_cache()


@pytest.mark.parametrize("tp_size, depth", [(1, 1), (2, 2), (2, 1)])
def test_new_weights_never_meet_old_kv(daemon, tp_size, depth):
    wait_for_segments(daemon, 2)
    chance = random.Random(tp_size + depth)
    one, peer = (make_engine(daemon, chance, tp_size=tp_size, depth=depth) for _ in range(2))
    versions, numbers = [0], [0]

    def on_step():
        if chance.random() < 0.5:  # with the weights that both began with, all the while
            if len(peer.waiting) < 4:
                peer.add(random_request(numbers[0], chance))
                numbers[0] += 1
            peer.step()
        if chance.random() < 0.1 and one.may_reset:
            versions[0] += 1
            exchange(one, b"%d" % versions[0], chance)

    for turn in range(5):  # a busy machine answers fewer lookups in time
        drive(one, chance, REQUESTS, turn * REQUESTS, on_step=on_step)
        while peer.has_work:
            peer.step()
        if min(engine.counts["loaded_tokens"] for engine in (one, peer)) > REQUESTS // 4:
            break
    assert versions[0] > 3 and numbers[0] > 20
    for engine in (one, peer):
        assert engine.counts["loaded_tokens"] > REQUESTS // 4
        assert engine.connector.side.refusal is None
        engine.close()
    expect_no_lease(daemon)


def loaded_by(engine, request_id):
    """Tokens that a prompt of PROMPT gets from the daemon."""
    before = engine.counts["loaded_tokens"]
    engine.cached.clear()
    engine.hash_of = [None] * len(engine.hash_of)
    run_prompt(engine, request_id)
    return engine.counts["loaded_tokens"] - before


@pytest.mark.parametrize("tp_size", [1, 2])
def test_a_sleep_takes_nothing_from_other_instances(daemon, tp_size):
    wait_for_segments(daemon, 2)
    one, peer = (make_engine(daemon, random.Random(7), tp_size=tp_size) for _ in range(2))
    assert loaded_by(one, "a") == 0 and loaded_by(one, "b") == 72
    one.reset_prefix_cache()
    assert loaded_by(one, "c") == 0, "what was there before the sleep"
    assert loaded_by(peer, "a") == 72
    assert loaded_by(one, "d") == 72, "what it has stored since"
    expect_nothing_held(daemon, one)
    expect_nothing_held(daemon, peer)


def test_a_reset_needs_no_daemon(daemon):
    wait_for_segments(daemon, 2)
    one, peer = (make_engine(daemon, random.Random(7), timeout_ms=200) for _ in range(2))
    run_prompt(one)
    daemon.process.send_signal(19)  # stopped
    one.reset_prefix_cache()
    daemon.process.send_signal(18)
    connect(daemon).close()
    assert loaded_by(one, "again") == 0
    assert loaded_by(peer, "only") == 72
    for engine in (one, peer):
        assert engine.connector.side.refusal is None
        engine.close()


def write(path, text):
    draft = path.with_suffix(".new")
    draft.write_text(text)
    os.replace(draft, path)


def test_engines_that_are_told_the_same_version_share(daemon, tmp_path):
    wait_for_segments(daemon, 2)
    path = tmp_path / "version"
    write(path, "1\n")

    def engine_of(weights):
        engine = make_engine(daemon, random.Random(7), weights_version_file=str(path))
        engine.update_weights(weights)
        return engine

    one, peer = engine_of(b"1"), engine_of(b"1")
    assert loaded_by(one, "a") == 0 and loaded_by(peer, "a") == 72
    one.reset_prefix_cache()  # a sleep
    assert loaded_by(one, "b") == 72, "the weights are the same, as their version says"
    # The update comes behind the reset; the file is what tells.
    for engine in (one, peer):
        engine.reset_prefix_cache()
    write(path, "2")
    for engine in (one, peer):
        engine.update_weights(b"2")
    assert loaded_by(one, "c") == 0 and loaded_by(peer, "b") == 72
    late = engine_of(b"2")
    assert loaded_by(late, "a") == 72, "it began with that version"
    write(path, "1")
    one.update_weights(b"1")
    one.reset_prefix_cache()
    assert loaded_by(one, "d") == 72, "and back"
    for engine in (one, peer, late):
        expect_nothing_held(daemon, engine)


def test_without_a_version_where_there_should_be_one_nothing_is_shared(daemon, tmp_path, caplog):
    wait_for_segments(daemon, 2)
    path = tmp_path / "version"
    one, peer = (make_engine(daemon, random.Random(7), weights_version_file=str(path))
                 for _ in range(2))
    assert loaded_by(one, "a") == 0 and loaded_by(peer, "a") == 0
    assert loaded_by(one, "b") == 72, "its own"
    assert caplog.text.count("cannot be read from " + str(path)) == 2
    write(path, "x" * 300)
    assert loaded_by(one, "c") == 72
    write(path, "good")
    assert loaded_by(one, "d") == 0 and loaded_by(peer, "b") == 72
    for engine in (one, peer):
        assert engine.connector.side.refusal is None
        expect_nothing_held(daemon, engine)


def test_what_was_promised_before_a_reset_is_not_loaded_after_it(daemon):
    wait_for_segments(daemon, 2)
    run_prompt(make_engine(daemon, random.Random(7)))
    engine = make_engine(daemon, random.Random(7))
    request = vllm_engine.Request("only", PROMPT, 1, 8)
    assert engine.connector.get_num_new_matched_tokens(request, 0) == (72, True)
    engine.connector.reset_cache()
    assert engine.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    engine.connector.request_finished(request, [])
    engine.close()


def test_a_file_that_changes_without_looking_changed_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "version"
    path.write_text("1")
    weights = terrace.epochs.Weights(str(path), terrace.vllm.role.logger)
    about = os.stat(path)
    assert weights.name == "version 1"
    path.write_text("2")  # of the same size, in the same place
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert weights.look() and weights.name == "version 2"
    now_ns = time.time_ns()
    monkeypatch.setattr(terrace.epochs.time, "time_ns", lambda: now_ns + 10**11)
    assert not weights.look()
    assert weights._seen is not None and not weights.look(), "it has not changed for long"
    path.write_text("3")  # as an archive is unpacked whose files have one time
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert weights.look() and weights.name == "version 3"


def test_a_file_system_that_hangs_holds_up_no_step(daemon, tmp_path, monkeypatch):
    path = tmp_path / "version"
    path.write_text("1")
    engine = make_engine(daemon, random.Random(7), weights_version_file=str(path))
    over, hung, stat = threading.Event(), [], os.stat

    def hanging(name, *more, **named):
        if str(name) == str(path):
            if threading.current_thread() is threading.main_thread():
                raise AssertionError("the engine itself has looked")
            hung.append(name)
            over.wait(LONG_S)
        return stat(name, *more, **named)

    monkeypatch.setattr(os, "stat", hanging)
    began = time.monotonic()
    run_prompt(engine)
    assert len(hung) == 1 and time.monotonic() - began < LONG_S / 2
    weights = engine.connector.side._weights
    assert engine.connector.side.refusal is None and weights.name.startswith("random ")
    over.set()
    deadline = time.monotonic() + LONG_S
    while weights.name != "version 1":
        assert time.monotonic() < deadline
        weights.look()
    expect_nothing_held(daemon, engine)


def test_the_mask_of_an_epoch_is_what_the_protocol_says():
    digest, mask = bytes(range(32)), terrace.epochs.mask_of("version 7")
    assert terrace.epochs.masked([digest], mask)[0].hex() == \
        "130243791ad2650167d03e5117f2e41a11b4d4b8f5744cb38934f2946a5b8dbb"
    assert terrace.epochs.masked([digest], terrace.epochs.mask_of("")) == [digest]
    assert terrace.epochs.both(b"", mask) == mask == terrace.epochs.both(mask, b"")
    one, other = b"a" * 32, terrace.epochs.both(b"a" * 32, mask)
    assert len({mask, one, other, terrace.epochs.both(mask, one)}) == 4
