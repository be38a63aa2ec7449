# PROMISE: T49 encryption at rest
"""Encryption at rest, of live daemons: nothing of a block lies on a drive or a Redis server, a kill
loses nothing, another key reads nothing and loses nothing, keys change under load, and a group's
key that is destroyed takes its blocks along at once."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time

import numpy
import pytest

import terrace

from conftest import LONG_S, SPACE, Daemon, connect, die_with_parent, run_terrace, until

BLOCKS = 24
GROUP = terrace.SpaceGroup("tiny", [SPACE])


def new_key():
    return "terrace-key-1 " + os.urandom(32).hex() + "\n"


def payload(seed, count=BLOCKS):
    """What nobody has written by chance."""
    random = numpy.random.default_rng(seed)
    return [random.bytes(SPACE.block_bytes) for _ in range(count)]


def tokens_of(seed, count=BLOCKS):
    return [seed * 1_000_000 + i for i in range(count * SPACE.block_tokens)]


class Host:
    """A daemon with a drive, keys, and what was asked of it in the configuration."""

    def __init__(self, directory, keys, more=""):
        self.directory = pathlib.Path(directory)
        self.keys = self.directory / "keys"
        self.drive = self.directory / "drive"
        self.more = more
        self.write_keys(keys)
        self.daemon = Daemon(directory, self.sections(bool(keys)))

    def sections(self, is_encrypted):
        encryption = f'encryption_keys_file = "{self.keys}"\n' if is_encrypted else ""
        return (f'state_dir = "{self.directory}/state"\n'
                f'[nvme]\npaths = ["{self.drive}"]\ncapacity_bytes = "64MiB"\n'
                f'slab_bytes = "8MiB"\n{self.more}'
                f'[[domain]]\nname = "d"\nsocket = "{self.directory}/t.sock"\n{encryption}')

    def write_keys(self, *keys):
        text = "".join(keys)
        if not text:
            return
        draft = self.directory / "keys.new"
        draft.write_text("# of this test\n" + text)
        draft.chmod(0o600)
        draft.rename(self.keys)

    def restart(self, *keys):
        """As after kill -9, with these keys."""
        self.daemon.kill()
        self.write_keys(*keys)
        text = self.daemon.config.read_text()
        self.daemon.config.write_text(
            text[:text.index("state_dir")] + self.sections(bool(keys)))
        self.daemon.start()

    def status(self):
        return json.loads(run_terrace("status", "--json", "--socket", self.daemon.socket)[1])

    def reload(self):
        status, out, err = run_terrace("config", "reload", "--socket", self.daemon.socket)
        assert status == 0, out + err
        return out

    def log(self):
        return self.daemon.log.read_text()


@contextlib.contextmanager
def host(keys, more=""):
    with tempfile.TemporaryDirectory() as directory:
        running = Host(directory, keys, more)
        try:
            yield running
        finally:
            running.daemon.stop()


def store(client, seed, count=BLOCKS):
    group = client.open(GROUP)
    keys = group.hash(tokens_of(seed, count))
    with group.reserve(keys) as lease:
        lease.write(payload(seed, count))
        assert lease.commit() == len(keys)
    group.wait_persisted(keys, timeout_s=LONG_S)
    return keys


def hits(client, seed, count=BLOCKS):
    """How many blocks come back from wherever they are; a wrong byte is a failure."""
    group = client.open(GROUP)
    with group.acquire(group.hash(tokens_of(seed, count)), timeout_s=LONG_S,
                       load_timeout_s=LONG_S) as lease:
        with contextlib.suppress(terrace.Unavailable):
            lease.wait_ready(timeout_s=LONG_S)
        wanted = payload(seed, count)
        for block in range(lease.ready_count):
            slot = lease.slot(block)
            # A part begins at a page.
            assert bytes(slot[:50_000]) == wanted[block][:50_000]
            assert bytes(slot[53_248:53_248 + 20_000]) == wanted[block][50_000:]
        return lease.ready_count


def grams(seeds):
    """Every eighth 8-byte word of the payloads: any 32 bytes of one hold some of them whole."""
    text = b"".join(block[:len(block) // 8 * 8] for seed in seeds for block in payload(seed))
    return numpy.unique(numpy.frombuffer(text, "<u8"))


def is_found_in(paths, seeds):
    """The first file that holds 32 bytes of a payload, or fewer, in one piece."""
    wanted = grams(seeds)
    for path in paths:
        content = path.read_bytes()
        for shift in range(8):
            rest = content[shift:]
            words = numpy.unique(numpy.frombuffer(rest[:len(rest) // 8 * 8], "<u8"))
            if numpy.isin(words, wanted, assume_unique=True).any():
                return path
    return None


def files_below(directory):
    return [path for path in pathlib.Path(directory).rglob("*") if path.is_file()]


def test_nothing_of_a_block_lies_on_the_drive_and_a_kill_loses_none():
    key = new_key()
    with host(key) as one:
        with connect(one.daemon) as client:
            store(client, 1)
        assert one.status()["domain"]["name"] == "d"
        one.daemon.kill()
        assert is_found_in(files_below(one.directory), [1]) is None
        one.restart(key)
        with connect(one.daemon) as client:
            assert hits(client, 1) == BLOCKS
            assert client.stats()["domain"]["blocks_corrupt"] == 0
        secret = key.split()[1]
        assert secret not in one.log() + json.dumps(one.status())
        for process in (one.daemon.process.pid,):
            assert secret.encode() not in pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
            with contextlib.suppress(PermissionError):  # not root: its user cannot look either
                assert secret.encode() not in pathlib.Path(f"/proc/{process}/environ").read_bytes()
    with host("") as plain:  # the search finds what is there
        with connect(plain.daemon) as client:
            store(client, 1)
        plain.daemon.kill()
        assert is_found_in(files_below(plain.directory), [1]) is not None


@pytest.mark.parametrize("other", [(new_key(),), ()])
def test_another_key_or_none_reads_nothing_and_loses_nothing(other):
    key = new_key()
    with host(key) as one:
        with connect(one.daemon) as client:
            store(client, 1)
        one.restart(*other)
        with connect(one.daemon) as client:
            assert hits(client, 1) == 0
            status = one.status()
            assert "slabs_left_alone" in status["conditions"]
            assert status["lower_tiers"][0]["left_alone_bytes"] > 0
        if other:
            assert "which the keys file does not hold" in one.log()
        one.restart(key)
        with connect(one.daemon) as client:
            assert hits(client, 1) == BLOCKS
            assert one.status()["conditions"] == []


def test_keys_change_under_load_without_a_miss_and_the_old_one_may_go():
    old, new = new_key(), new_key()
    with host(old) as one, connect(one.daemon) as client:
        for seed in range(4):
            store(client, seed)
        asked, found, is_over = [0], [0], threading.Event()

        def load():
            with connect(one.daemon) as mine:
                seed = 0
                while not is_over.is_set():
                    # From the drive each time.
                    run_terrace("evict", "--tier", "dram", "--all", "--yes", "--socket",
                                one.daemon.socket)
                    asked[0] += BLOCKS
                    found[0] += hits(mine, seed % 4)
                    seed += 1

        worker = threading.Thread(target=load)
        worker.start()
        time.sleep(0.5)
        one.write_keys(new, old)
        told = one.reload()
        assert f"encryption keys of domain d are read from {one.keys}: " in told, told
        assert "nothing that is live has changed" not in told, told
        assert "nothing that is live has changed" in one.reload()
        time.sleep(0.5)
        one.write_keys(new)
        one.reload()
        time.sleep(0.5)
        is_over.set()
        worker.join()  # what it evicts might be what is not on the drive yet
        store(client, 9)
        assert asked[0] > 0 and found[0] >= 0.99 * asked[0], (found, asked)
        client.close()
        one.restart(new)
        with connect(one.daemon) as again:
            assert [hits(again, seed) for seed in (0, 1, 2, 3, 9)] == [BLOCKS] * 5


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_keys_that_change_by_restarts_alone_are_wrapped_anew(end):
    old, new = new_key(), new_key()
    with host(old) as one:
        with connect(one.daemon) as client:
            store(client, 1)
        one.restart(new, old)
        until(lambda: "keys of groups are wrapped" in one.log())
        assert one.status()["conditions"] == []
        if end == "stop":
            one.daemon.stop()
        one.restart(new)
        with connect(one.daemon) as client:
            assert hits(client, 1) == BLOCKS


def test_a_key_file_that_cannot_be_wrapped_anew_is_told_until_it_is():
    old, new = new_key(), new_key()
    with host(old) as one, connect(one.daemon) as client:
        store(client, 1)
        file, = one.drive.glob("d/keys/*.key")
        kept = file.read_bytes()
        file.unlink()
        file.mkdir()  # in the way of root, too
        one.write_keys(new, old)
        one.reload()
        until(lambda: one.status()["conditions"] == ["groups_not_kept"])
        assert "1 files of groups' keys" in one.status()["troubles"][0]
        file.rmdir()
        file.write_bytes(kept)
        until(lambda: not one.status()["conditions"])
        client.close()
        one.restart(new)
        with connect(one.daemon) as again:
            assert hits(again, 1) == BLOCKS


def test_a_reload_with_a_broken_keys_file_changes_nothing():
    key = new_key()
    with host(key) as one, connect(one.daemon) as client:
        store(client, 1)
        one.keys.write_text("nonsense\n")
        status, out, err = run_terrace("config", "reload", "--socket", one.daemon.socket)
        assert status == 1 and "openssl rand" in out + err
        one.keys.write_text(key)
        one.keys.chmod(0o644)
        status, out, err = run_terrace("config", "reload", "--socket", one.daemon.socket)
        assert status == 1 and "chmod 600" in out + err
        store(client, 2)
        assert hits(client, 1) == hits(client, 2) == BLOCKS


def test_what_rm_takes_under_a_daemon_is_made_again_and_a_kill_loses_nothing():
    with host(new_key()) as one, connect(one.daemon) as client:
        store(client, 1)
        domain = one.drive / "d"
        before = {path.name for path in domain.glob("*/*.*") if path.suffix in (".key", ".group")}
        assert len(before) == 2
        shutil.rmtree(domain)
        # Nothing is asked for meanwhile: it is noticed all the same, and DRAM has the blocks.
        until(lambda: {path.name for path in domain.glob("*/*.*")} >= before)
        assert "they are written again" in one.log()
        until(lambda: list(domain.glob("slab-*.terrace")))
        until(lambda: one.status()["lower_tiers"][0]["persisted_block_count"] == BLOCKS)
        store(client, 2)
        one.daemon.kill()
        one.daemon.start()
        with connect(one.daemon) as again:
            assert hits(again, 1) == hits(again, 2) == BLOCKS


def test_keys_that_others_can_read_are_refused_at_the_start():
    with tempfile.TemporaryDirectory() as directory:
        keys = pathlib.Path(directory) / "keys"
        keys.write_text(new_key())
        keys.chmod(0o640)
        running = Daemon(directory, f'[[domain]]\nname = "d"\nsocket = "{directory}/t.sock"\n'
                                    f'encryption_keys_file = "{keys}"\n')
        assert running.process.wait(LONG_S) != 0
        assert f"chmod 600 {keys}" in running.log.read_text()


def test_plain_blocks_are_given_up_or_served_as_configured():
    with host("") as one:
        with connect(one.daemon) as client:
            store(client, 1)
        key = new_key()
        one.restart(key)
        with connect(one.daemon) as client:
            assert hits(client, 1) == 0
            assert "entries_plain=" + str(BLOCKS) in one.log()
            store(client, 2)
        one.restart()
        with connect(one.daemon) as client:
            assert hits(client, 2) == 0


def test_erasing_by_key_takes_a_second_at_most_and_leaves_noise():
    key = new_key()
    with host(key) as one, connect(one.daemon) as client:
        store(client, 1)
        (name,) = [p for p in (one.drive / "d" / "keys").iterdir()]
        wrapped = name.read_bytes()[:128]
        assert wrapped.startswith(b"TERRGKEY")
        began = time.monotonic()
        evicting = threading.Thread(target=run_terrace, args=(
            "evict", "--all", "--group", "tiny", "--by-key", "--yes", "--socket",
            one.daemon.socket))
        evicting.start()
        until(lambda: not name.exists() or name.read_bytes()[:128] != wrapped)
        assert hits(client, 1) == 0
        took_s = time.monotonic() - began
        assert took_s <= 1.0, took_s
        evicting.join()
        for path in files_below(one.directory):
            assert wrapped[48:128] not in path.read_bytes(), path
        store(client, 2)  # under the group's next key
        assert hits(client, 2) == BLOCKS
        client.close()
        one.restart(key)
        with connect(one.daemon) as again:
            assert hits(again, 1) == 0 and hits(again, 2) == BLOCKS
            assert again.stats()["domain"]["blocks_corrupt"] == 0


def content_of(path):
    with contextlib.suppress(FileNotFoundError):  # it was there a moment ago
        return path.read_bytes()
    return b""


def hex_of(key):
    return f"{key.high:016x}{key.low:016x}"


@pytest.mark.parametrize("other_key", ["", new_key()], ids=["without_keys", "with_another"])
@pytest.mark.parametrize("asked", [["--all"], ["--all", "--group", "tiny"],
                                   ["--all", "--group", "tiny", "--by-key"], ["keys"], []],
                         ids=["all", "group", "by_key", "keys", "reset"])
def test_what_is_erased_while_its_key_is_away_does_not_come_back_with_it(asked, other_key):
    key = new_key()
    with host(key) as one:
        with connect(one.daemon) as client:
            keys = store(client, 1)
        (file,) = (one.drive / "d" / "keys").iterdir()
        wrapped = file.read_bytes()[48:128]
        one.restart(*filter(None, [other_key]))
        if not other_key:
            until(lambda: re.search("nvme note.*no encryption_keys_file is set", one.log()))
        with connect(one.daemon) as client:
            group = client.open(GROUP)
            if not asked:
                group.reset()
            else:
                named = [hex_of(k) for k in keys] if asked == ["keys"] else asked
                status, out, err = run_terrace("evict", *named, "--yes", "--socket",
                                               one.daemon.socket)
                assert status == 0, out + err
                assert f"evicted {BLOCKS} blocks" in out
        if asked == [] or "--by-key" in asked:
            until(lambda: not any(wrapped in content_of(path)
                                     for path in files_below(one.directory)))
        one.restart(key)
        with connect(one.daemon) as client:
            assert hits(client, 1) == 0


@contextlib.contextmanager
def redis_server(directory):
    if shutil.which("redis-server") is None:
        pytest.skip("SKIPPED: redis-server is not installed; run tools/setup")
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", f"{directory}/redis.sock", "--save", "",
         "--rdbcompression", "no", "--appendonly", "no", "--dir", directory],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def redis_cli(directory, *words):
    return subprocess.run(["redis-cli", "-s", f"{directory}/redis.sock", *words], check=True,
                          capture_output=True, text=True, timeout=LONG_S).stdout


def redis_host(directory, name, keys):
    os.mkdir(f"{directory}/{name}")
    if keys:
        path = pathlib.Path(directory) / name / "keys"
        path.write_text("".join(keys))
        path.chmod(0o600)
    encryption = f'encryption_keys_file = "{directory}/{name}/keys"\n' if keys else ""
    running = Daemon(f"{directory}/{name}", f'''state_dir = "{directory}/{name}/state"
[redis]
endpoints = ["unix:{directory}/redis.sock"]
absence_ms = 1
probe_timeout_us = 10000000
[[domain]]
name = "shared"
socket = "{directory}/{name}/t.sock"
secret_file = "{directory}/secret"
{encryption}''')
    client = connect(running)
    until(lambda: client.stats()["redis"]["is_ready"])
    return running, client


def test_redis_gets_cipher_text_which_only_hosts_with_the_key_read():
    old, new, foreign = new_key(), new_key(), new_key()
    with tempfile.TemporaryDirectory() as directory, redis_server(directory), \
            contextlib.ExitStack() as ends:
        run_terrace("domain", "new", f"{directory}/secret")

        def start(name, *keys):
            running, client = redis_host(directory, name, keys)
            ends.callback(running.stop)
            ends.callback(client.close)
            return client

        first = start("first", old)
        group = first.open(GROUP)
        keys = group.hash(tokens_of(1))
        with group.reserve(keys) as lease:
            lease.write(payload(1))
            assert lease.commit() == BLOCKS
        until(lambda: first.stats()["redis"]["stores_done"] == BLOCKS)
        redis_cli(directory, "SAVE")
        assert is_found_in([pathlib.Path(directory) / "dump.rdb"], [1]) is None

        rotated = start("rotated", new, old)
        assert hits(rotated, 1) == BLOCKS
        stranger = start("stranger", foreign)

        def is_told():  # a first question may be given up before a busy server answers it
            assert hits(stranger, 1) == 0
            log = pathlib.Path(directory, "stranger", "log").read_text()
            return "under a key which is not here" in log

        until(is_told)
        assert stranger.stats()["redis"]["fetches_broken"] == 0
        plain = start("plain")
        assert hits(plain, 1) == 0
        # Neither took anything away.
        assert hits(start("third", old), 1) == BLOCKS


def test_a_group_leaves_with_what_only_redis_has_of_it_and_its_key_stays():
    with tempfile.TemporaryDirectory() as directory, redis_server(directory), \
            host(new_key(), f'[redis]\nendpoints = ["unix:{directory}/redis.sock"]\n'
                            'absence_ms = 1\n') as one, connect(one.daemon) as client:
        def evict(*words):
            status, out, err = run_terrace("evict", *words, "--yes", "--socket",
                                           one.daemon.socket)
            assert status == 0, out + err

        until(lambda: client.stats()["redis"]["is_ready"])
        store(client, 1)
        until(lambda: client.stats()["redis"]["stores_done"] == BLOCKS)
        (name,) = [*(one.drive / "d" / "keys").iterdir()]
        wrapped = name.read_bytes()[:128]
        # An age, however short, is a filter: what Redis has stays.
        evict("--older-than", "0s")
        assert client.stats()["domain"]["block_count"] == 0
        assert hits(client, 1) == BLOCKS
        evict("--older-than", "0s", "--everywhere", "--dry-run")
        evict("--older-than", "0s")
        evict("--all", "--group", "tiny", "--dry-run")
        assert hits(client, 1) == BLOCKS
        evict("--older-than", "0s")
        evict("--all", "--group", "tiny")
        assert hits(client, 1) == 0
        assert name.read_bytes()[:128] == wrapped
        store(client, 2)
        assert hits(client, 2) == BLOCKS


def test_drives_in_another_order_and_a_new_one_in_front_lose_no_key_and_keep_none():
    with host(new_key()) as one:
        paths = {name: one.directory / name for name in "abc"}

        def begin(*names):
            said = ", ".join(f'"{paths[name]}"' for name in names)
            text = one.daemon.config.read_text()
            before, rest = text.split("paths = [", 1)
            one.daemon.stop()
            one.daemon.config.write_text(before + "paths = [" + said + rest[rest.index("]"):])
            one.daemon.start()
            connect(one.daemon).close()  # it serves

        begin("a", "b")
        with connect(one.daemon) as client:
            store(client, 1)
        for names in ("ba", "cab", "ab"):
            begin(*names)
            with connect(one.daemon) as client:
                assert hits(client, 1) == BLOCKS, names
        begin("c", "a", "b")
        done = run_terrace("evict", "--all", "--by-key", "--yes", "--socket", one.daemon.socket)
        assert done[0] == 0, done
        assert not [*one.directory.glob("[abc]/d/keys/*.key")]
        begin("a", "b")
        with connect(one.daemon) as client:
            assert hits(client, 1) == 0
