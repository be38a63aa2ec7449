"""terrace.vllm.looks: an adapter on a file system that hangs is not cached meanwhile, and holds up
neither steps, nor other requests, nor the end of the process."""
import os
import random
import subprocess
import sys
import threading
import time
import types

import pytest

# First: it stands in for vLLM.
from vllm_driver import LONG_S, ONE_SHARE, expect_nothing_held, make_engine
import terrace.vllm.adapters
from conftest import connect
from terrace.errors import Unavailable
from terrace.vllm import files, looks
from terrace.vllm.messages import Store
from terrace.vllm.worker import WorkerHalf, _Storing
from test_vllm_adapters import _place, lora, put, run  # noqa: F401  pylint: disable=unused-import

OTHER = [1] * 40


class Hang:
    """Of the file system of one directory, for as long as it is not over."""

    def __init__(self, monkeypatch, directory):
        self._over, self.threads = threading.Event(), set()
        names_in = files.names_in

        def hanging(path, *more):
            if path == str(directory):
                self.threads.add(threading.current_thread())
                if threading.current_thread() is threading.main_thread():
                    raise OSError("the engine itself has looked")
                self._over.wait(LONG_S)
            return names_in(path, *more)

        monkeypatch.setattr(files, "names_in", hanging)

    def end(self):
        self._over.set()


@pytest.fixture(name="short")
def _short(monkeypatch):
    """Nobody waits long for a look."""
    monkeypatch.setattr("terrace.vllm.worker._LOOK_S_MAX", 0.05)
    return {"timeout_ms": 50, "lookup_wait_ms": 1}


def run_until_loaded(engine, lora_request, tokens):
    """A busy machine answers fewer questions in time."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        loaded = run(engine, lora_request, tokens, is_known=False)
        engine.cached.clear()
        engine.hash_of = [None] * len(engine.hash_of)
        if loaded:
            return loaded
    return 0


def test_a_dead_file_system_holds_up_its_adapters_requests_alone(daemon, place, monkeypatch, short):
    connect(daemon).close()
    sql, other = lora(put(place / "sql", "one")), lora(put(place / "other", "two"), number=2)
    engine = make_engine(daemon, random.Random(7))
    assert run(engine, sql) == 0 and run(engine, other, OTHER) == 0 and run(engine, None) == 0
    expect_nothing_held(daemon, engine)

    engine = make_engine(daemon, random.Random(7), **short)
    for adapter in (sql, other):
        run_until_loaded(engine, adapter, [2] * 40)
    apart = iter(range(2, 100))  # as if each lay on a device of its own
    monkeypatch.setattr(looks.AdapterFiles, "of", classmethod(
        lambda cls, path, seen: cls(path, looks._stamp(seen), next(apart))))
    engine.close()
    engine = make_engine(daemon, random.Random(7), **short)
    for adapter in (sql, other):  # its files are read
        engine.connector.side.adapters.note(types.SimpleNamespace(lora_request=adapter))
    engine.connector.side.adapters.wait_read()
    hang = Hang(monkeypatch, place / "sql")
    counters = engine.connector.side.scheduler.counters
    stored_bytes = sum(w.connector.side.worker.counters["stored_bytes"] for w in engine.workers)
    ask = engine.ask

    def ask_again(*of_request):
        answer = ask(*of_request)
        assert answer[0] is None or [ask(*of_request) for _ in range(3)] == [answer] * 3
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(engine, "ask", ask_again)
        for head in (3, 4):
            assert run(engine, sql, [head] * 40, is_known=False) == 0
    assert hang.threads and threading.main_thread() not in hang.threads
    assert sum(w.connector.side.worker.counters["stored_bytes"]
               for w in engine.workers) == stored_bytes
    assert run_until_loaded(engine, None, tuple(range(100, 180))) > 0
    assert run_until_loaded(engine, other, OTHER) > 0
    lookups = counters["lookups"]
    assert run(engine, sql, is_known=False) == 0 and counters["lookups"] == lookups
    hang.end()
    assert run_until_loaded(engine, sql, tuple(range(100, 180))) > 0
    assert engine.connector.side.refusal is None
    expect_nothing_held(daemon, engine)


def test_a_request_that_waits_for_a_look_is_served_by_one_that_began_after_it(place):
    adapters = terrace.vllm.adapters.Adapters(types.SimpleNamespace(lora_config=None))
    request = types.SimpleNamespace(lora_request=lora(put(place / "sql", "one")))
    adapters.note(request)
    adapters.wait_read()
    asked = []
    adapters._looks = types.SimpleNamespace(
        look=lambda seen: asked.append(looks.Look(seen)) or asked[-1], close=lambda: None)
    first = adapters.look(request, None, 0)
    assert first is asked[0]
    adapters.turn_ended()
    later = adapters.look(request, None, 0)
    assert later is asked[1], "a look of an earlier turn serves nobody who comes later"
    first.run()
    assert adapters.look(request, first, 0) is None and adapters.mask_of(request)
    assert adapters.look(request, later, 0) is later
    put(place / "sql", "two")
    later.run()
    assert adapters.look(request, later, 0) is None and adapters.mask_of(request) is None
    adapters.close()


def test_a_turn_waits_once_for_an_adapter_and_knows_nothing_of_it_before_it_has_looked(
        place, monkeypatch):
    adapters = terrace.vllm.adapters.Adapters(types.SimpleNamespace(lora_config=None))
    request = types.SimpleNamespace(lora_request=lora(put(place / "sql", "one")))
    adapters.note(request)
    adapters._readers.join()
    assert adapters.mask_of(request) is None
    waits = []
    monkeypatch.setattr(looks.Look, "wait", lambda _, wait_s: waits.append(wait_s))
    adapters._looks = types.SimpleNamespace(look=looks.Look, close=lambda: None)
    for turn in (1, 2, 3):
        for _ in range(5):
            assert adapters.look(request, None, 0.5) is not None
        assert waits == [0.5] * turn
        adapters.turn_ended()
    assert adapters.mask_of(request)
    adapters.close()


def test_of_the_same_files_one_look_is_under_way_and_one_waits():
    hang, seen_by = threading.Event(), []

    class Seen(looks.AdapterFiles):
        @property
        def is_unchanged(self):
            seen_by.append(threading.current_thread())
            return hang.wait(LONG_S)

    seen, looked = Seen("/x", "stamp", 1), looks.Looks()
    first = looked.look(seen)
    while not first.has_begun:
        first.wait(0.001)
    second = looked.look(seen)
    assert second is not first
    assert all(looked.look(seen) is second for _ in range(100))
    assert first.is_overdue(0) and not first.is_overdue(LONG_S)
    hang.set()
    second.wait(LONG_S)
    assert first.is_unchanged and second.is_unchanged and len(seen_by) == 2
    assert not second.is_overdue(0)
    looked.close()


def test_what_hangs_in_one_place_holds_up_no_other():
    lines, hang, done = looks.Lines("test"), threading.Event(), threading.Semaphore(0)
    lines.put("dead", lambda: hang.wait(LONG_S))
    lines.put("dead", done.release)
    for number in range(looks._LINES_MAX - 1):
        lines.put(number, done.release)
        assert done.acquire(timeout=LONG_S)
    assert len(lines._lines) == looks._LINES_MAX
    lines.put("one too many", done.release)
    assert done.acquire(timeout=LONG_S) and len(lines._lines) == looks._LINES_MAX
    assert not done.acquire(blocking=False)
    hang.set()
    assert done.acquire(timeout=LONG_S)
    lines.join()
    lines.close()


def test_an_adapter_is_read_whatever_hangs_on_another_file_system(place, monkeypatch):
    monkeypatch.setattr(terrace.vllm.adapters, "mount_of", lambda path: path)  # one for each
    known = terrace.vllm.adapters.Adapters(types.SimpleNamespace(lora_config=None))
    dead, other = (types.SimpleNamespace(lora_request=lora(put(place / name, name), number=number))
                   for number, name in ((1, "dead"), (2, "other")))
    hang = Hang(monkeypatch, place / "dead")
    for request in (dead, other):
        known.note(request)
    deadline = time.monotonic() + LONG_S
    while known.mask_of(other) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        known.turn_ended()
    assert known.mask_of(dead) is None
    hang.end()
    known.wait_read()
    assert known.mask_of(dead)
    known.close()


class Lease:
    """What becomes of a store."""

    def __init__(self):
        self.ends = []

    def commit(self, _):
        self.ends.append("commit")

    def abort(self):
        self.ends.append("abort")


def test_a_store_waits_for_the_look_at_its_adapter_and_not_for_ever(monkeypatch):
    half = WorkerHalf(None, lambda: None, shares=ONE_SHARE)

    def ends_of(look, answer):
        half._storing[1] = _Storing(lease := Lease(), [], byte_count=1, look=look)
        half.poll_stores()
        assert half.stores_under_way == 1 and not lease.ends
        answer()
        half.poll_stores()
        half._closer.submit(lambda: None).result(LONG_S)
        half._committer.submit(lambda: None).result(LONG_S)
        assert half.stores_under_way == 0 and list(half.take_reports()) == [1]
        return lease.ends

    monkeypatch.setattr("terrace.vllm.worker._LOOK_S_MAX", LONG_S)
    for is_unchanged, ends in ((True, ["commit", "abort"]), (False, ["abort"])):
        look = looks.Look(types.SimpleNamespace(is_unchanged=is_unchanged))
        assert ends_of(look, look.run) == ends
    look = looks.Look(types.SimpleNamespace(is_unchanged=True))
    assert ends_of(look, lambda: monkeypatch.setattr("terrace.vllm.worker._LOOK_S_MAX", -1)) == [
        "abort"]
    half.close()


def test_no_store_begins_where_looks_have_not_been_answered_for_long(monkeypatch):
    def join_write(*_):
        raise AssertionError("it has begun")

    half = WorkerHalf(types.SimpleNamespace(join_write=join_write), lambda: None, shares=ONE_SHARE)
    seen = looks.AdapterFiles("/x", "stamp", 1)
    half._looks = types.SimpleNamespace(look=looks.Look, close=lambda: None)
    monkeypatch.setattr("terrace.vllm.worker._LOOK_S_MAX", -1)
    with pytest.raises(Unavailable):
        half._store(Store(1, (0, 1), [[0]], adapter=seen))
    half.close()


END = """
import threading, types
from vllm_driver import terrace
from terrace.vllm import adapters, looks
known = adapters.Adapters(types.SimpleNamespace(lora_config=None))
known.note(types.SimpleNamespace(lora_request=types.SimpleNamespace(
    lora_name="sql", lora_int_id=1, lora_path={path!r})))
class Seen(looks.AdapterFiles):
    is_unchanged = property(lambda self: threading.Event().wait())
look = looks.Looks().look(Seen("/x", "stamp", 1))
while not look.has_begun:
    look.wait(0.001)
known.close()
print("ends")
"""


def test_a_process_ends_whatever_hangs(tmp_path):
    """A pipe that nobody writes to hangs whoever opens it to read."""
    put(tmp_path / "sql", "one")
    os.mkfifo(tmp_path / "sql" / "adapter_model.bin")
    os.utime(tmp_path / "sql")
    done = subprocess.run([sys.executable, "-c", END.format(path=str(tmp_path / "sql"))],
                          cwd=os.path.dirname(__file__), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=LONG_S, check=False)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_where_a_path_is_mounted_is_found_by_its_name(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text("".join(f"36 35 98:0 / {mount} rw - nfs server:/x rw\n" for mount in (
        "/", "/models", "/models/a\\040b", "/mod", "/models\\134x")))
    monkeypatch.setattr(looks, "_MOUNTS", str(mounts))
    for path, mount in (("/modelsx", "/"), ("/models", "/models"), ("/models/a/b", "/models"),
                        ("/models/a b/c", "/models/a b"), ("/models\\x/y", "/models\\x")):
        assert looks.mount_of(path) == mount
    monkeypatch.setattr(looks, "_MOUNTS", str(tmp_path / "none"))
    assert looks.mount_of("/models") == "/"


def test_there_are_no_keys_of_a_prompt_whose_adapter_is_not_known(daemon, place):
    connect(daemon).close()
    engine = make_engine(daemon, random.Random(7))
    sql = put(place / "sql", "one")
    assert run(engine, lora(sql)) == 0
    half = engine.connector.side.scheduler
    put(sql, "two")
    assert run(engine, lora(sql), OTHER) == 0  # it is refused from here on
    request = types.SimpleNamespace(lora_request=lora(sql), block_hashes=[bytes(32)] * 4,
                                    num_tokens=40)
    with pytest.raises(Unavailable):
        half._questions.keys(request, terrace.vllm.questions.PromptKeys(), 0, 2)
    expect_nothing_held(daemon, engine)
