"""The blocking face against a real daemon."""
import array
import contextlib
import gc
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

import numpy
import pytest

import terrace
from conftest import (LONG_S, SPACE, Daemon, block_bytes, connect, let_nobody_store, run_terrace,
                      store,
                      wait_until_free)


ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("is_c_first", [True, False])
def test_the_examples_in_c_and_in_python_load_what_the_other_stores(daemon, is_c_first):
    examples = [[f"{os.environ['TERRACE_BUILD']}/client/terrace-prefix-example"],
                [sys.executable, ROOT / "client/python/examples/prefix.py"]]
    said = [subprocess.run([*example, daemon.socket], capture_output=True, text=True, check=True)
            .stdout for example in (examples if is_c_first else reversed(examples))]
    assert said == ["stored 4 blocks\n", "loaded 4 blocks, all bytes right\n"]


def test_what_one_client_stores_another_loads(daemon, group):
    keys = store(group, list(range(100)))  # 6 full blocks
    assert len(keys) == 6
    with connect(daemon) as other:
        theirs = other.open(terrace.SpaceGroup("tiny", [SPACE]))
        assert theirs.match(keys) == (6, 96, False)
        with theirs.acquire(keys) as lease:
            assert (lease.block_count, lease.token_count) == (6, 96)
            lease.wait_ready(timeout_s=LONG_S)
            whole = bytearray(6 * SPACE.block_bytes)
            lease.copy_into(whole)
            assert whole == b"".join(block_bytes(i) for i in range(6))
            parts = [bytearray(n) for _ in range(2) for n in SPACE.part_bytes]
            lease.copy_into(parts, first_block=3, block_count=2)
            assert b"".join(parts) == block_bytes(3) + block_bytes(4)
            blocks = numpy.empty((6, SPACE.block_bytes), numpy.uint8)
            lease.copy_into(list(blocks))
            assert blocks.tobytes() == bytes(whole)
            assert lease.is_valid


def test_views_keep_the_lease_until_they_are_gone(group):
    keys = store(group, list(range(32)))
    lease = group.acquire(keys)
    view = lease.part(1, 1)
    assert view.readonly and bytes(view) == block_bytes(1)[SPACE.part_bytes[0]:]
    lease.release("end_of_turn")
    assert group.query(keys)[1].lease_count == 1
    assert bytes(view) == block_bytes(1)[SPACE.part_bytes[0]:]
    with pytest.raises(terrace.Gone):
        lease.slot(0)
    del view
    gc.collect()
    wait_until_free(group, keys)


def test_an_error_has_the_sentence_of_its_own_call_or_none(group):
    part_bytes = SPACE.part_bytes[0]
    keys = store(group, list(range(32)))
    writer = group.reserve(group.hash([7] * 32))
    reader, late = group.acquire(keys), group.acquire(keys)
    ended, read = group.reserve(group.hash([8] * 32)), group.acquire(keys)
    ended.abort()
    read.release()
    whole, part = bytearray(2 * SPACE.block_bytes), bytearray(part_bytes)
    empty = types.SimpleNamespace(  # as torch has one
        data_ptr=lambda: 0, element_size=lambda: 1, numel=lambda: 0, is_contiguous=lambda: True,
        device=types.SimpleNamespace(type="cpu"))
    calls = {
        "keys 1 to 2 of a lease of 2": lambda: writer.write(whole, first_key=1, key_count=2),
        "blocks 1 to 2 of a lease of 2": lambda: reader.copy_into(whole, first_block=1,
                                                                  block_count=2),
        "blocks 2 to 2 of a lease of 2": lambda: reader.copy_part(2, 0, part),
        "the buffer is empty": lambda: writer.write_part(0, 0, empty),
        "16 to 32": lambda: group.keys_of_digests([b"short"]),
        "the lease has ended": lambda: ended.write(whole)}
    calls = [*calls.items(), *(("the lease has ended", call) for call in (
        ended.commit, lambda: ended.write_part(0, 0, part), lambda: ended.checksum(0, 0),
        lambda: ended.mark_absent(0, 0), lambda: read.copy_into(whole),
        lambda: read.copy_part(0, 0, part), lambda: read.wait_ready(1),
        lambda: read.chunk_position(0)))]
    for sentence, call in calls:
        with pytest.raises(terrace.Invalid, match="its Space has 2 parts"):
            writer.write_part(0, 9, part)
        with pytest.raises(terrace.Invalid, match=sentence) as told:
            call()
        assert "its Space has" not in str(told.value)
    with pytest.raises(terrace.Invalid, match="its Space has 2 parts"):  # and every time
        writer.write_part(0, 9, part)
    with late:  # nobody has been told of what is wrong with this one
        assert terrace._native.lib.terrace_write_lease_write_part(writer.native, 0, 0, 8,
                                                                  bytes(8), 8)
        with pytest.raises(terrace.NotFound) as told:
            late.wait_ready(3)
        assert "its Space has" not in str(told.value)
    reader.release()
    writer.abort()


def test_a_forgotten_lease_is_released(group):
    keys = store(group, list(range(32)))
    group.acquire(keys)
    gc.collect()
    wait_until_free(group, keys)


def test_writing_in_place(group):
    keys = group.hash(list(range(16)))
    with group.reserve(keys) as lease:
        assert [key.status for key in lease] == ["ok"]
        slot = lease.slot(0)
        for part, (first, count) in enumerate(((0, 50_000), (SPACE.part_offset(1), 20_000))):
            slot[first:first + count] = bytes([part + 1]) * count
            lease.checksum(0, part)
        del slot
        assert lease.commit() == 1
    with group.acquire(keys) as lease:
        lease.wait_ready()
        assert bytes(lease.part(0, 1)) == b"\2" * 20_000


def test_a_writer_joins_and_a_second_one_is_told(daemon, group):
    keys = group.hash(list(range(32)))
    with group.reserve(keys) as lease, connect(daemon) as other:
        theirs = other.open(terrace.SpaceGroup("tiny", [SPACE]))
        with theirs.reserve(keys) as second:
            assert [key.status for key in second] == ["busy", "busy"]
            assert second.reserved == []
        with theirs.join_write(lease.token) as joined:
            joined.write([block_bytes(0), block_bytes(1)])
            assert joined.commit() == 2
    assert [b.state for b in group.query(keys)] == ["sealed", "sealed"]
    with group.acquire(keys) as mine, connect(daemon) as other:
        theirs = other.open(terrace.SpaceGroup("tiny", [SPACE]))
        with theirs.join_read(mine.token) as joined:
            found = bytearray(2 * SPACE.block_bytes)
            joined.copy_into(found)
            assert found == block_bytes(0) + block_bytes(1)


def test_an_aborted_block_is_not_there(group):
    keys = group.hash(list(range(16)))
    with group.reserve(keys) as lease:
        lease.write([block_bytes(0)])
    assert group.match(keys).block_count == 0
    with group.acquire(keys) as lease:
        assert lease.block_count == 0


def test_the_other_verbs(group, client):
    keys = store(group, list(range(48)))
    assert group.pin(keys) == 3 and group.query(keys)[2].is_pinned
    assert group.pin(keys, is_pinned=False) == 3
    assert group.prefetch(keys) == 3
    group.touch(keys)
    assert group.query(keys)[0].tiers == ("dram",)
    assert group.evict(keys[1:2], with_descendants=True, dry_run=True).block_count == 2
    assert group.evict(keys[1:2], with_descendants=True).block_count == 2
    assert group.evict(keys[:0], with_descendants=True).block_count == 0
    assert group.match(keys).block_count == 1
    group.reset()
    assert client.stats()["domain"]["block_count"] == 0
    with pytest.raises(terrace.TerraceError):
        group.wait_persisted(keys, timeout_s=0.01)


def test_keys(group):
    tokens = list(range(64))
    keys = group.hash(tokens)
    for other in (numpy.arange(64), numpy.arange(64, dtype=numpy.uint32),
                  memoryview(array.array("I", tokens)), tuple(tokens)):
        assert group.hash(other).hex() == keys.hex()
    assert group.hash(tokens[32:], parent=keys[1]).hex() == keys[2:].hex()
    assert terrace.Keys.from_hex(keys.hex()).hex() == keys.hex()
    for wrong, error in (("zz" * 16, terrace.Invalid), (" +" + "1" * 30, terrace.Invalid),
                         (5, terrace.WrongType)):
        with pytest.raises(error, match="32 hex digits"):
            terrace.Keys.from_hex([wrong])
    for wrong in (lambda: group.keys_of_digests(["a" * 32]),
                  lambda: group.match(keys, hints={}),
                  lambda: group.match(keys, hints=terrace.Hints(priority="x")),
                  lambda: group.match(keys, hints=terrace.Hints(priority=300)),
                  lambda: group.reserve(keys, event_hashes=["a"] * len(keys)),
                  lambda: terrace.Client("a\0b"), lambda: terrace.Client("a", name="x\0y"),
                  lambda: terrace.SpaceGroup("\ud800", [SPACE])._native()):
        with pytest.raises(terrace.Invalid):
            wrong()
    assert group.hash(tokens[:15]).hex() == []
    for wrong in ([-1] * 16, [1 << 32] * 16, numpy.full(16, -1)):
        with pytest.raises(terrace.Invalid, match="2\\^32"):
            group.hash(wrong)
    for wrong in ("a text", "", {1: 2}, {1, 2}, [1.5] * 16, [None] * 16, 7):
        with pytest.raises(terrace.Invalid, match="whole numbers"):
            group.hash(wrong)
    digests = group.keys_of_digests([b"a" * 32, b"b" * 32])
    assert len(set(digests.hex())) == 2
    with pytest.raises(terrace.Invalid):
        group.keys_of_digests([b"a" * 32, b"b" * 16])
    with pytest.raises(terrace.Invalid):
        group.keys_of_digests([b"a" * 15])


def test_a_time_that_is_none_is_refused(client, group):
    keys = group.hash(list(range(16)))
    for wrong in (float("nan"), float("inf"), -1.0, 1e300):
        for call in (lambda: group.acquire(keys, timeout_s=wrong),
                     lambda: group.acquire(keys, load_timeout_s=wrong),
                     lambda: client.stats(timeout_s=wrong)):
            with pytest.raises(terrace.Invalid, match=f"timeout_s is {re.escape(str(wrong))}"):
                call()


def test_wrong_buffers_are_refused(group):
    keys = store(group, list(range(16)))
    with group.acquire(keys) as lease:
        for wrong, sentence in ((bytearray(5), "5 bytes"), (bytes(SPACE.block_bytes), "writable"),
                                ([bytearray(5)] * 3, "3 buffers"),
                                (numpy.empty((SPACE.block_bytes, 2), numpy.uint8)[:, 0],
                                 "contiguous")):
            with pytest.raises(terrace.Invalid, match=sentence):
                lease.copy_into(wrong)
        with pytest.raises(terrace.Invalid):
            lease.copy_into(bytearray(SPACE.block_bytes), first_block=1, block_count=1)
        with pytest.raises(terrace.Invalid):
            lease.copy_into(bytearray(SPACE.block_bytes), member=1)
        for wrong in (1 << 32, -1, 0.5):
            with pytest.raises(terrace.Invalid):
                lease.slot(wrong)
            with pytest.raises(terrace.Invalid):
                lease.is_part_ready(wrong, 0)
            with pytest.raises(terrace.Invalid):
                lease.wait_ready(wrong)
            with pytest.raises(terrace.Invalid):
                lease.copy_into(bytearray(SPACE.block_bytes), first_block=wrong, block_count=1)


def test_numbers_of_a_write_lease_are_refused_not_cut(group):
    with group.reserve(group.hash(range(16))) as lease:
        lease.slot(0)
        for wrong in (1 << 32, -1, 0.5):
            for call in (lease.key, lambda n: lease.checksum(n, 0), lambda n: lease.checksum(0, n),
                         lambda n: lease.checksum(0, 0, n), lambda n: lease.mark_absent(n, 0),
                         lambda n: lease.mark_absent(0, n)):
                with pytest.raises(terrace.Invalid, match=f" is {wrong}: "):
                    call(wrong)


@pytest.mark.parametrize("name", ["pending_requests_max", "reply_spin_us"])
def test_numbers_of_a_client_are_refused_not_cut(tmp_path, name):
    for wrong in ((1 << 32) + 1, 0.5):
        with pytest.raises(terrace.Invalid, match=f"{name} is {wrong}: "):
            terrace.Client(tmp_path / "none", **{name: wrong})


def test_numbers_of_every_request_are_refused_not_cut(client, group):
    keys = store(group, list(range(32)))
    lease = group.acquire(keys)
    calls = {
        "self_mask": lambda n: client.open(group.spec, self_mask=n(64)),
        "member_mask": lambda n: group.acquire(keys, member_mask=n(64)),
        "flags": lambda n: group.reserve(keys, flags=n(32)),
        "first_position": lambda n: group.acquire(keys, first_position=n(32)),
        "an event hash": lambda n: group.reserve(keys, event_hashes=[1, n(64)]),
        "ttl_s": lambda n: group.pin(keys, ttl_s=n(32)),
        "token.low": lambda n: group.join_read(terrace.Token(0, n(64))),
        "token.high": lambda n: group.join_write(terrace.Token(n(64), 0)),
        "block": lambda n: lease.is_part_ready(n(32), 0),
        "part": lambda n: lease.copy_part(0, n(32), bytearray(1)),
    }
    for name, call in calls.items():
        for wrong in (lambda bits: -1, lambda bits: 1 << bits):
            with pytest.raises(terrace.Invalid, match=f"{name} is "):
                call(wrong)
    lease.release()


def test_another_spec_of_the_same_name_is_refused_with_the_field(client, group):
    assert group.index == 0
    other = terrace.Space(**{**SPACE.__dict__, "dtype": "fp8_e4m3"})
    with pytest.raises(terrace.Invalid, match="dtype.*bf16.*fp8_e4m3|dtype.*fp8_e4m3.*bf16"):
        client.open(terrace.SpaceGroup("tiny", [other]))


def test_a_killed_daemon_is_gone_and_the_next_one_serves(daemon, client, group):
    keys = store(group, list(range(32)))
    lease = group.acquire(keys)
    boot_id = client.boot_id
    daemon.kill()
    found = bytearray(2 * SPACE.block_bytes)
    with pytest.raises(terrace.Unavailable):
        while True:  # until the client has noticed
            lease.copy_into(found)
    lease.release()
    daemon.start()
    for _ in range(100):
        try:
            client.wait_connected(LONG_S)
            if client.boot_id not in (0, boot_id) and group.match(keys).block_count == 0:
                break
        except terrace.Unavailable:
            pass
    connect(daemon).close()  # until it has memory
    store(group, list(range(32)), seed=1)


def test_leases_that_are_let_go_before_their_blocks_come_are_pending_no_more():
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, "pending_per_session_max = 8\n"
                        f'[nvme]\npaths = ["{directory}/nvme"]\ncapacity_bytes = "64MiB"\n'
                        'slab_bytes = "8MiB"\n')
        prompts = [[number] * 32 for number in range(60)]
        with connect(daemon) as client:
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            for prompt in prompts:
                group.wait_persisted(store(group, prompt), LONG_S)
        daemon.kill()
        daemon.start()
        try:
            with connect(daemon) as client:
                group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
                coming = 0
                for prompt in prompts:
                    with group.acquire(group.hash(prompt)) as lease:  # busy, were they pending
                        coming += lease.ready_count < lease.block_count
                assert coming > 5
                sessions = client.stats()["sessions"]
                assert max(session["pending_count"] for session in sessions) == 0
        finally:
            daemon.stop()


def test_a_daemon_dies_with_its_test_and_keeps_none_of_its_pipes():
    """Who reads a test run's output through a pipe sees its end."""
    code = ("import sys, conftest\n"
            "daemon = conftest.Daemon(sys.argv[1])\n"
            "conftest.connect(daemon).close()\n"
            "print(daemon.process.pid, flush=True)\n"
            "sys.stdin.read()")
    with tempfile.TemporaryDirectory() as directory, subprocess.Popen(
            [sys.executable, "-c", code, directory], cwd=os.path.dirname(__file__),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        pid = int(run.stdout.readline())
        daemon = os.pidfd_open(pid)
        try:
            with contextlib.suppress(PermissionError):  # not root: it cannot be looked into
                assert os.readlink(f"/proc/{pid}/fd/1") == os.path.join(directory, "log")
            run.kill()
            assert select.select([daemon], [], [], LONG_S)[0], "the daemon outlived who started it"
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(daemon, signal.SIGKILL)
            os.close(daemon)


def test_no_daemon_is_busy_and_says_what_is_tried(tmp_path):
    with terrace.Client(str(tmp_path / "none.sock")) as client:
        with pytest.raises(terrace.Busy, match="none.sock"):
            for _ in range(1000):
                client.wait_connected(0.01)
                pytest.fail("connected to nothing")
    with pytest.raises(terrace.Gone):
        client.stats()
    with pytest.raises(terrace.Invalid):
        terrace.Client("")


UNANSWERED = ("match: busy: the daemon has not answered by the deadline "
              r"\(request \d+ of session [0-9a-f]{16}\)")


def test_everyday_answers_do_not_repeat_what_an_earlier_call_was_told(daemon, client, group):
    keys = group.hash(list(range(16)))
    with pytest.raises(terrace.Invalid, match="the hint ttl_s"):
        group.match(keys, hints=terrace.Hints(ttl_s=5))
    daemon.process.send_signal(signal.SIGSTOP)
    with pytest.raises(terrace.Busy) as busy:
        group.match(keys, timeout_s=0.05)
    assert re.fullmatch(UNANSWERED, str(busy.value))
    daemon.process.send_signal(signal.SIGCONT)
    with pytest.raises(terrace.Invalid, match="the hint ttl_s"):  # said again, told again
        group.match(keys, hints=terrace.Hints(ttl_s=5), timeout_s=LONG_S)
    with pytest.raises(terrace.Invalid, match="dtype"):
        client.open(terrace.SpaceGroup("tiny", [terrace.Space(
            **{**SPACE.__dict__, "dtype": "fp8_e4m3"})]))
    daemon.process.send_signal(signal.SIGSTOP)
    with pytest.raises(terrace.Busy) as busy:
        group.match(keys, timeout_s=0.05)
    assert re.fullmatch(UNANSWERED, str(busy.value))


def test_a_forked_child_is_told_to_start_again(daemon, group):
    keys = store(group, list(range(16)))
    child = os.fork()
    if child == 0:
        code = 1
        said = []
        try:
            for _ in range(3):
                try:
                    group.match(keys)
                except terrace.Gone as gone:
                    said.append("forked child" in str(gone))
            code = 0 if said == [True] * 3 else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert group.match(keys).block_count == 1


def test_a_process_may_end_while_its_daemon_threads_call(daemon):
    program = """
import sys, threading, time
import terrace
from conftest import SPACE
client = terrace.Client(sys.argv[1])
client.wait_connected(30.0)
group = client.open(terrace.SpaceGroup("t", [SPACE]))
keys = group.hash(list(range(160)))
def work():
    while True:
        group.match(keys)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", program, daemon.socket], timeout=LONG_S,
                               cwd=os.path.dirname(__file__), capture_output=True, check=False)
        assert ended.returncode == 0, (ended.returncode, ended.stderr.decode()[-1000:])


def test_threads_share_a_client(group):
    wrong = []

    def work(seed):
        for i in range(20):
            tokens = [seed, i] + list(range(46))
            keys = store(group, tokens, seed)
            with group.acquire(keys) as lease:
                found = bytearray(len(keys) * SPACE.block_bytes)
                lease.copy_into(found)
                if found != b"".join(block_bytes(b, seed) for b in range(len(keys))):
                    wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


CLOSED_IN_CALLS = """
import sys, threading, time
import terrace
for _ in range(20):
    client = terrace.Client(sys.argv[1], default_timeout_s=30)
    client.wait_connected(30)
    def ask():
        try:
            while True:
                client.stats()
        except terrace.Gone:
            pass
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    client.close()
    for thread in threads:
        thread.join()
print("whole")
"""


def test_a_client_that_is_closed_in_the_middle_of_calls_outlives_them(daemon, group):
    done = subprocess.run([sys.executable, "-c", CLOSED_IN_CALLS, daemon.socket], timeout=120,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


COLLECTED_UNDER_THE_LOCK = """
import gc, sys
import terrace, conftest
client = terrace.Client(sys.argv[1], default_timeout_s=30)
client.wait_connected(30)
group = client.open(terrace.SpaceGroup("tiny", [conftest.SPACE]))
keys = group.hash(range(16))
gc.disable()
for threshold in range(1, 60):  # wherever the collector may run
    lease = group.acquire(keys)
    lease.wait_ready()
    gc.collect()
    cycle = [lease.slot(0)]
    cycle.append(cycle)
    lease.release()
    del cycle
    gc.set_threshold(threshold)
    gc.enable()
    try:
        lease.slot(0)
    except terrace.Gone:
        pass
    gc.disable()
print("whole")
"""


def test_the_collector_may_end_a_view_at_any_point(daemon, group):
    store(group, range(16))
    done = subprocess.run([sys.executable, "-c", COLLECTED_UNDER_THE_LOCK, daemon.socket],
                          timeout=60, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


def test_a_pin_ends_with_its_time_to_live(group):
    keys = store(group, list(range(64)))
    assert group.pin(keys, ttl_s=1) == len(keys)
    assert group.query(keys)[0].is_pinned
    deadline = time.monotonic() + LONG_S
    while group.match(keys).block_count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert group.match(keys).block_count == 0


def test_hints_are_checked(group):
    keys = group.hash(list(range(16)))
    with group.reserve(keys, hints=terrace.Hints(priority=100, end_reason="tool_call", ttl_s=5)):
        pass
    with pytest.raises(terrace.Invalid, match="the hint ttl_s .5. with Match.*Reserve, Commit"):
        group.match(keys, hints=terrace.Hints(ttl_s=5))
    with pytest.raises(terrace.Invalid, match="the hint min_tokens"):
        group.reserve(keys, hints=terrace.Hints(min_tokens=5))
    group.touch(keys, hints=terrace.Hints(priority=3))
    for wrong in (terrace.Hints(priority=101), terrace.Hints(end_reason="boredom"),
                  terrace.Hints(ttl_s=1 << 32), terrace.Hints(min_tokens=-1)):
        with pytest.raises(terrace.Invalid):
            group.match(keys, hints=wrong)
    with pytest.raises(terrace.Invalid):
        group.match(keys, timeout_s=-1)


def test_slices_and_sums_of_keys_are_keys(group):
    keys = group.hash(list(range(16 * 10)))
    texts = keys.hex()
    for cut in (slice(0, 10), slice(3, 7), slice(-2, None), slice(7, 3), slice(None, None, 2)):
        assert keys[cut].hex() == texts[cut]
    assert (keys[:4] + keys[7:]).hex() == texts[:4] + texts[7:]
    cut = keys[2:5]
    del keys
    assert cut.hex() == texts[2:5]


def test_a_lossy_space_takes_the_engines_bytes_and_gives_them_back_nearly(daemon):
    space = terrace.Space(model="tiny", revision="r", dtype="bf16", layout="nhd", layers=4,
                          kv_heads=2, head_size=64, block_tokens=16,
                          part_bytes=(1, 1)).encoded("int8")
    engine_bytes = sum(space.engine_part_bytes)
    assert engine_bytes == 4 * 2 * 4096 and space.block_bytes < 0.6 * engine_bytes
    values = numpy.random.default_rng(1).standard_normal(3 * engine_bytes // 2, numpy.float32)
    bf16 = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    truth = (bf16.astype(numpy.uint32) << 16).view(numpy.float32)
    with connect(daemon) as client:
        group = client.open(terrace.SpaceGroup("tiny-int8", [space]))
        keys = group.hash(list(range(48)))
        with group.reserve(keys) as lease:
            lease.write(bf16.view(numpy.uint8))
            assert lease.commit() == 3
        back = numpy.zeros(3 * engine_bytes, numpy.uint8)
        with group.acquire(keys) as lease:
            lease.wait_ready(timeout_s=LONG_S)
            lease.copy_into(back)
            with pytest.raises(terrace.Invalid):
                lease.copy_into(numpy.zeros(3 * space.block_bytes, numpy.uint8))
        read = (back.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
        assert 0 < numpy.abs(read - truth).max() < 0.05
        with pytest.raises(terrace.Unsupported, match="lossy"):
            group.match(keys, hints=terrace.Hints(exact=True))
        with group.reserve(group.hash(list(range(100, 116)))) as lease:
            with pytest.raises(terrace.Unsupported):
                lease.write(b"\xff" * engine_bytes)
        deadline = time.monotonic() + LONG_S
        while client.stats()["domain"]["parts_refused"] != 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client.stats()["domain"]["parts_refused"] == 1


def test_a_bypassed_domain_is_an_empty_cache_without_the_daemon(daemon, group, client):
    keys = store(group, list(range(48)))
    held = group.acquire(keys)
    assert not client.is_bypassed and client.bypassed_count == 0
    assert run_terrace("drain", "--bypass", "--socket", daemon.socket)[0] == 0
    assert client.is_bypassed
    with group.acquire(keys) as lease:
        assert lease.block_count == 0
    assert group.match(keys).block_count == 0
    with group.reserve(group.hash(list(range(100, 148)))) as lease:
        assert [key.status for key in lease] == ["no space"] * 3
        assert lease.commit() == 0
    assert client.bypassed_count == 3
    assert held.is_valid and bytes(held.part(0, 0)) == block_bytes(0)[:SPACE.part_bytes[0]]
    held.release()
    assert run_terrace("drain", "--resume", "--socket", daemon.socket)[0] == 0
    assert not client.is_bypassed
    with group.acquire(keys) as lease:
        assert lease.block_count == 3


def test_a_reader_loads_and_stores_nothing(daemon, group, client):
    keys = store(group, list(range(48)))
    assert not client.is_reader
    let_nobody_store(daemon)
    assert not client.is_reader, "it is what it was when it connected"
    with connect(daemon) as reader:
        assert reader.is_reader
        its_group = reader.open(terrace.SpaceGroup("tiny", [SPACE]))
        with its_group.acquire(keys) as lease:
            lease.wait_ready(timeout_s=LONG_S)
            assert bytes(lease.part(2, 0)) == block_bytes(2)[:SPACE.part_bytes[0]]
        with pytest.raises(terrace.ReadOnly, match="is a reader: writer_uids"):
            its_group.reserve(its_group.hash(list(range(100, 148))))
        assert not isinstance(reader.error(9, "acquire"), terrace.ReadOnly), "of no writer alone"
        assert "reads only" in run_terrace("status", "--socket", daemon.socket)[1]


def test_what_ranks_below_all_that_is_there_passes_by_and_says_so():
    with tempfile.TemporaryDirectory() as directory:
        small = Daemon(directory, memory='dram_bytes = "4MiB"\nsegment_bytes = "2MiB"\n')
        with connect(small) as client:
            def stat(name):
                return client.stats()["domain"][name]

            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            prompts = iter(range(0, 100_000, 1000))
            while stat("segments_populated") < 2 or stat("blocks_evicted") == 0:
                first = next(prompts)  # until there is room no more
                with contextlib.suppress(terrace.NoSpace):
                    store(group, range(first, first + 160))
            kept, passed = stat("block_count"), stat("reserve_passed_by")
            keys = group.hash(range(9000, 9080))
            with group.reserve(keys, hints=terrace.Hints(priority=1)) as lease:
                assert [(key.status, key.is_passed_by) for key in lease] == [("no space", True)] * 5
                assert lease.is_passed_by and lease.statuses == ["no space"] * 5
            assert (stat("block_count"), stat("reserve_passed_by")) == (kept, passed + 5)
            with group.reserve(keys, hints=terrace.Hints(priority=99)) as lease:
                assert [(key.status, key.is_passed_by) for key in lease] == [("ok", False)] * 5
                assert not lease.is_passed_by and lease.statuses == ["ok"] * 5
        small.stop()
