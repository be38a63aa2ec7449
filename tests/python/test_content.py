"""`terrace evict` by filters, `log`, `pin`, `warm`, `export` and `import`, of live daemons."""
import contextlib
import json
import os
import pathlib
import random
import socket
import struct
import subprocess
import tempfile
import threading
import time
import types

import pytest

import terrace

from conftest import (LONG_S, Daemon, SPACE, block_bytes, connect, die_with_parent, run_terrace,
                      store, terrace_path, wait_until_free)

SECONDS = 1_000


def ask(daemon, *arguments, status=0):
    returned, output, errors = run_terrace(*arguments, "--json", "--socket", daemon.socket)
    assert returned == status, (returned, output, errors)
    return json.loads(output)


def refused(daemon, *arguments, status=1):
    returned, output, errors = run_terrace(*arguments, "--socket", daemon.socket)
    assert (returned, output) == (status, ""), (returned, output, errors)
    return errors


def listed(daemon):
    return sorted(ask(daemon, "ls", "--limit", 4096)["blocks"], key=lambda one: one["position"])


# ---- evict ----

def test_evict_takes_what_was_not_used_for_so_long(daemon, group):
    old = store(group, list(range(64)))
    young = store(group, list(range(1000, 1032)))
    time.sleep(6)
    wait_until_free(group, old + young)
    group.acquire(young).release()
    dry = ask(daemon, "evict", "--older-than", "5s", "--dry-run")
    assert (dry["block_count"], dry["older_than_ms"], dry["is_dry_run"]) == (4, 5000, True)
    assert len(listed(daemon)) == 6
    group.acquire(young).release()
    wait_until_free(group, young)
    assert ask(daemon, "evict", "--older-than", "5s", "--yes")["block_count"] == 4
    assert len(listed(daemon)) == 2
    text = run_terrace("evict", "--older-than", "1h", "--yes", "--socket", daemon.socket)[1]
    assert text == "evicted 0 blocks, 0 B\n"


def test_evict_by_space_and_tier(daemon, client, group):
    other = client.open(terrace.SpaceGroup(
        "other", [SPACE.__class__(**{**vars(SPACE), "model": "other"})]))
    keys, others = store(group, list(range(64))), store(other, list(range(32)))
    wait_until_free(group, keys)
    wait_until_free(other, others)
    assert ask(daemon, "evict", "--space", "other", "--tier", "dram", "--yes") == {
        "is_dry_run": False, "block_count": 2, "byte_count": 2 * 73728, "skipped_count": 0,
        "tier": "dram"}
    assert len(listed(daemon)) == 4
    assert "has no nvme tier" in refused(daemon, "evict", "--tier", "nvme", "--yes")
    assert "tiny" in refused(daemon, "evict", "--space", "huge", "--older-than", "1s", "--yes")


def test_evict_asks_or_takes_yes(daemon, group):
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    last = listed(daemon)[3]["key"]
    for arguments in (["--older-than", "1ms"], ["--tier", "dram"], [last], ["--all"]):
        errors = refused(daemon, "evict", *arguments, status=2)
        assert "--yes" in errors and "--dry-run" in errors
    assert len(listed(daemon)) == 4


def test_evict_refuses_what_it_cannot_mean(daemon, group):
    errors = refused(daemon, "evict", "--older-than", "2x", "--yes", status=2)
    assert "'2x' is no time" in errors and "2h" in errors
    assert "--everywhere is for filters" in refused(daemon, "evict", "--all", "--everywhere",
                                                    "--yes", status=2)
    errors = refused(daemon, "evict", "--all", "--domain", "chat", "--yes")
    assert "domain 'default', not 'chat'" in errors and "--socket" in errors
    assert run_terrace("evict", "--tier", "tape", "--yes", "--socket", daemon.socket)[0] == 2
    assert run_terrace("evict", "0" * 32, "--tier", "dram", "--socket", daemon.socket)[0] == 2


def test_a_key_that_is_not_here_speaks_of_redis_only_where_there_is_one(daemon):
    text = run_terrace("evict", "ab" * 16, "--yes", "--socket", daemon.socket)[1]
    assert text == "evicted 0 blocks, 0 B\n1 key names no block of this host\n"
    assert "redis_blocks_owed" not in ask(daemon, "evict", "ab" * 16, "--yes")


@pytest.mark.parametrize("tier, key", [("hbm", "hbm.capacity_bytes"), ("nvme", "nvme.paths"),
                                       ("redis", "redis.endpoints")])
def test_evict_from_a_tier_that_is_not_there_names_those_that_are(daemon, tier, key):
    assert refused(daemon, "evict", "--tier", tier, "--yes") == (
        f"terrace: evict: domain default has no {tier} tier; it has dram. Name one of these, or "
        f"set {key} and restart the daemon\n")


def test_what_redis_has_not_been_told_yet_is_said_and_logged():
    with tempfile.TemporaryDirectory() as directory:
        running = Daemon(directory, f'[redis]\nendpoints = ["unix:{directory}/away.sock"]\n')
        client = connect(running)
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        keys = store(group, list(range(32)))
        wait_until_free(group, keys)
        tip = listed(running)[-1]["key"]
        assert "NOT TOLD YET" not in run_terrace("evict", tip, "--dry-run", "--socket",
                                                 running.socket)[1]
        text = run_terrace("evict", tip, "--yes", "--socket", running.socket)[1]
        assert text.startswith("evicted 1 block, ")
        assert "NOT TOLD YET: Redis, of 1 block erased here. This host takes nothing" in text
        assert max(map(len, text.splitlines())) <= 100
        until = time.monotonic() + LONG_S
        log = running.log.read_text
        while "redis has not been told yet of blocks" not in log() and time.monotonic() < until:
            time.sleep(0.1)
        assert "redis has not been told yet of blocks that are erased" in log()
        told = ask(running, "evict", "--all", "--yes")  # of the group as a whole from now on
        assert (told["redis_groups_owed"], told["redis_blocks_owed"]) == (1, 0), told
        time.sleep(1.5)  # the log looks once a second
        assert "redis has erased what was owed" not in log(), "nobody was there"
        text = run_terrace("evict", "ab" * 16, "--yes", "--socket", running.socket)[1]
        assert "; what a Redis server has of it is not found here any more\n" in text
        client.close()
        running.stop()


def test_evict_by_more_keys_than_a_request_takes_leaves_none(client, daemon):
    small = client.open(terrace.SpaceGroup("small", [terrace.Space(
        model="small", revision="r1", dtype="bf16", layout="nhd", layers=2, kv_heads=1,
        head_size=64, block_tokens=16, part_bytes=(2000, 2000))]))
    count = 4200  # 4,096 are a request
    keys = small.hash(range(16 * count))
    deadline = time.monotonic() + LONG_S
    while small.match(keys).block_count < count:  # memory comes bit by bit
        assert time.monotonic() < deadline
        with contextlib.suppress(terrace.NoSpace), small.reserve(keys) as lease:
            lease.write([bytes(4000)] * count)
            lease.commit()
    done = ask(daemon, "evict", *(f"{key.high:016x}{key.low:016x}" for key in keys), "--yes")
    assert (done["block_count"], done["skipped_count"]) == (count, 0)


class OldDaemon:
    """Answers Hello and refuses every other verb, as a daemon from before it does."""

    def __init__(self, directory):
        self.socket = str(pathlib.Path(directory) / "old.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen(8)
        self.verbs = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                while self.answer(peer):
                    pass

    def answer(self, peer):
        head = peer.recv(16, socket.MSG_WAITALL)
        if len(head) < 16:
            return False
        size, version, verb, flags, number = struct.unpack("<IBBHQ", head)
        peer.recv(size - 16, socket.MSG_WAITALL)
        self.verbs.append(verb)
        if verb == 1:
            body = struct.pack("<QB3xi", 7, 0, 0) + bytes(296)
        else:
            body = struct.pack("<QB3xi", 7, 5, 0) + (
                f"verb {verb} is none that a client sends; they are 1 to 28").encode()
        peer.sendall(struct.pack("<IBBHQ", 16 + len(body), version, verb, 0, number) + body)
        return verb == 1


def test_an_old_daemon_is_named_and_nothing_is_passed_over():
    with tempfile.TemporaryDirectory() as directory:
        old = OldDaemon(directory)
        for arguments, verb in ((["evict", "--older-than", "2h", "--yes"], "EvictWhere"),
                                (["pin", "a", "0" * 31 + "1"], "NamedPin"),
                                (["pins"], "NamedPin")):
            errors = refused(old, *arguments)
            assert "older than this command" in errors and verb in errors, errors
            assert "has done nothing" in errors
        assert 15 not in old.verbs  # Evict, which would have taken everything
        old.listener.close()


# ---- log ----

def test_log_tells_who_did_what(daemon, group):
    assert ask(daemon, "log") == {"events": [], "event_count": 0}
    assert "since the daemon's start" in run_terrace("log", "--socket", daemon.socket)[1]
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    ask(daemon, "evict", listed(daemon)[3]["key"], "--yes")
    ask(daemon, "evict", "--older-than", "1ms", "--group", "tiny", "--yes")
    document = ask(daemon, "log")
    latest, first = document["events"]
    assert document["event_count"] == 2
    assert (latest["verb"], latest["block_count"], latest["group"]) == ("evict", 3, "tiny")
    assert latest["detail"] == "idle_s=0 tier=all" and latest["is_whole"]
    assert (first["block_count"], first["detail"], first["group"]) == (1, "keys=1", None)
    assert (latest["uid"], latest["client"]) == (os.getuid(), "terrace")
    assert latest["pid"] > 0 and latest["age_ms"] < 60 * SECONDS
    text = run_terrace("log", "--limit", 1, "--socket", daemon.socket)[1].splitlines()
    assert text[0].endswith(f"pid {latest['pid']} (terrace)")
    assert "evict idle_s=0 tier=all group=tiny: 3 blocks" in text[0]
    assert text[1].startswith("1 of 2 events")
    logged = [line for line in daemon.log.read_text().splitlines() if "operator request" in line]
    assert len(logged) == 2 and "blocks=3" in logged[1] and "EvictWhere" in logged[1]
    assert all('domain="default"' in line for line in logged)
    # What other hosts stored goes with all of it, and is not counted: so it is told in any case.
    ask(daemon, "evict", "--all", "--yes")
    ask(daemon, "evict", "--all", "--yes")
    ask(daemon, "evict", "--all", "--dry-run")
    document = ask(daemon, "log")
    assert document["event_count"] == 4
    latest = document["events"][0]
    assert (latest["verb"], latest["block_count"], latest["detail"]) == ("evict", 0, "all")


def test_audit_tells_an_eviction_of_keys_from_one_of_all():
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, f'[nvme]\npaths = ["{directory}/d"]\n'
                                   'capacity_bytes = "64MiB"\nslab_bytes = "4MiB"\n')
        try:
            client = connect(daemon)
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            keys = store(group, list(range(64)))
            wait_until_free(group, keys)
            ask(daemon, "evict", listed(daemon)[3]["key"], "--yes")
            ask(daemon, "evict", "--all", "--yes")
            deadline = time.monotonic() + LONG_S
            while len(ask(daemon, "audit")["audit"]) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            told = run_terrace("audit", "--socket", daemon.socket)[1].splitlines()
            client.close()
        finally:
            daemon.stop()
    assert " blocks of all groups by uid" in told[0], told
    assert " evicted 1 block of 1 key by uid" in told[1], told


def test_a_change_that_was_refused_is_told_so(daemon):
    for value, status in (("nonsense", 1), ("debug", 0)):
        asked = run_terrace("config", "set", f"daemon.log_level={value}", "--socket",
                            daemon.socket)
        assert asked[0] == status, asked
    done, refused = ask(daemon, "log")["events"]
    assert (done["detail"], done["status"]) == ("set daemon.log_level", "ok")
    assert (refused["detail"], refused["status"]) == ("set daemon.log_level", "invalid")
    done, refused = run_terrace("log", "--socket", daemon.socket)[1].splitlines()
    assert " config set daemon.log_level, by uid " in done
    assert " config set daemon.log_level: refused (invalid; " in refused
    assert "blocks" not in done + refused
    (line,) = [line for line in daemon.log.read_text().splitlines()
               if "operator request" in line and "refused" in line]
    assert "nonsense" in line and 'domain="default"' in line


# ---- pins ----

def test_what_the_command_line_says_is_not_live():
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/t.sock"
        with subprocess.Popen([os.environ["TERRACED"], "--socket", path, "--dram-bytes", "256MiB"],
                              stderr=subprocess.DEVNULL, preexec_fn=die_with_parent) as process:
            try:
                connect(types.SimpleNamespace(socket=path)).close()
                asked = run_terrace("config", "get", "daemon.dram_bytes", "--socket", path)
                level = run_terrace("config", "get", "daemon.log_level", "--socket", path)
            finally:
                process.terminate()
        assert "# from: command line; needs a restart with another command line" in asked[1], asked
        assert "# from: default; changes by terrace config set" in level[1], "there is no file"


def test_pins_keep_blocks_and_are_seen(daemon, group):
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    blocks = [one["key"] for one in listed(daemon)]
    pin = ask(daemon, "pin", "system", "--prefix", blocks[2], "--cap", "1MiB", "--ttl", "2h")
    assert (pin["block_count"], pin["missing_count"], pin["left_out_count"]) == (3, 0, 0)
    assert 7100 < pin["expires_in_s"] <= 7201
    shown = ask(daemon, "show", blocks[0])
    assert shown["is_pinned"] and shown["pins"] == ["system"]
    assert "and pinned by system" in run_terrace("show", blocks[0], "--socket", daemon.socket)[1]
    assert [one["is_pinned"] for one in listed(daemon)] == [True, True, True, False]
    assert "pinned" in run_terrace("ls", "--socket", daemon.socket)[1]
    assert ask(daemon, "evict", "--all", "--yes")["block_count"] == 1
    (one,) = ask(daemon, "pins")["pins"]
    assert (one["name"], one["cap_bytes"], one["uid"]) == ("system", 1 << 20, os.getuid())
    table = run_terrace("pins", "--socket", daemon.socket)[1]
    assert table.splitlines()[1].startswith("system")
    assert ask(daemon, "unpin", "system")["block_count"] == 3
    assert "nothing is pinned" in run_terrace("pins", "--socket", daemon.socket)[1]
    assert ask(daemon, "evict", "--all", "--yes")["block_count"] == 3
    assert [one["detail"] for one in ask(daemon, "log")["events"] if one["verb"] == "pin"] == [
        "clear system", "set system"]


def test_a_pin_ends_with_its_time(daemon, group):
    keys = store(group, list(range(32)))
    wait_until_free(group, keys)
    ask(daemon, "pin", "brief", listed(daemon)[1]["key"], "--ttl", "1s")
    deadline = time.monotonic() + 30
    while ask(daemon, "pins")["pins"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert len(listed(daemon)) == 2


def test_a_pin_says_what_it_left_out(daemon, group):
    keys = store(group, list(range(64)))
    wait_until_free(group, keys)
    last = listed(daemon)[3]["key"]
    status, output, errors = run_terrace("pin", "small", "--prefix", last, "--cap", "150000",
                                         "--socket", daemon.socket)
    assert status == 1 and "keeps 2 blocks" in output
    assert "2 blocks are beyond the cap" in errors and "--cap" in errors
    status, output, errors = run_terrace("pin", "small", "f" * 32, "--socket", daemon.socket)
    assert status == 1 and "1 key has no block here" in errors


def test_a_pin_of_nothing_is_none(daemon, group):
    status, output, errors = run_terrace("pin", "typo", "f" * 32, "--socket", daemon.socket)
    assert status == 1 and "there is no pin typo" in output
    assert "1 key has no block here" in errors
    assert ask(daemon, "pins")["pins"] == []


def test_pins_refuse_what_they_cannot_mean(daemon, client):
    assert "there is no pin nobody" in refused(daemon, "unpin", "nobody")
    assert "KEY" in refused(daemon, "pin", "a", status=2)
    key = "0" * 31 + "1"
    assert "write bytes above 0" in refused(daemon, "pin", "a", key, "--cap", "much", status=2)
    assert "is no time" in refused(daemon, "pin", "a", key, "--ttl", "soon", status=2)
    assert "the limit is 47" in refused(daemon, "pin", "a" * 48, key, status=2)
    assert "letters, digits" in refused(daemon, "pin", "a b", key)


# ---- warm ----

@pytest.fixture
def nvme_daemon():
    with tempfile.TemporaryDirectory() as directory:
        drive = pathlib.Path(directory) / "drive"
        drive.mkdir()
        running = Daemon(directory, f'[nvme]\npaths = ["{drive}"]\ncapacity_bytes = "64MiB"\n'
                                    'slab_bytes = "4MiB"\n')
        connect(running).close()
        yield running
        running.stop()


def tiers(daemon):
    return [one["tiers"] for one in listed(daemon)]


def wait_below(daemon, count):
    deadline = time.monotonic() + 30
    while sum("nvme" in one for one in tiers(daemon)) < count:
        assert time.monotonic() < deadline, tiers(daemon)
        time.sleep(0.05)


def warm(daemon, text, *arguments):
    done = subprocess.run([terrace_path(), "warm", "-", "--json", "--socket", daemon.socket,
                           *arguments], input=text, capture_output=True, text=True, timeout=60,
                          check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_warm_brings_prompts_up(nvme_daemon):
    with connect(nvme_daemon) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        keys = store(group, list(range(128)))
        wait_until_free(group, keys)
        wait_below(nvme_daemon, 8)
        (group,) = ask(nvme_daemon, "spaces")["groups"]  # a block in two tiers counts once in each
        assert group["bytes_by_tier"]["dram"] == group["bytes_by_tier"]["nvme"]
        assert group["bytes_by_tier"]["dram"] == 8 * group["block_bytes"]
        assert ask(nvme_daemon, "evict", "--tier", "dram", "--yes")["block_count"] == 8
        assert tiers(nvme_daemon) == [["nvme"]] * 8
        line = json.dumps({"group": "tiny", "tokens": list(range(64)) + [9] * 32})
        status, told, errors = warm(nvme_daemon, line + "\n")
        assert status == 1, errors  # two blocks of that prompt nobody has
        assert told["found_by_tier"] == {"hbm": 0, "dram": 0, "nvme": 4, "redis": 0}
        assert (told["asked_count"], told["promoted_count"], told["missing_count"]) == (6, 4, 2)
        assert not told["is_cancelled"]
        assert tiers(nvme_daemon) == [["dram", "nvme"]] * 4 + [["nvme"]] * 4
        blocks = [one["key"] for one in listed(nvme_daemon)]
        status, told, errors = warm(nvme_daemon, "\n".join(reversed(blocks)), "--rate", "1GiB")
        assert (status, told["promoted_count"]) == (0, 4), errors
        assert told["found_by_tier"]["dram"] == 4
        chain = json.dumps({"keys": blocks})
        assert warm(nvme_daemon, chain, "--group", "tiny")[1]["found_by_tier"]["dram"] == 8


def test_warm_names_the_line_that_is_none(daemon, group):
    keys = store(group, list(range(32)))
    wait_until_free(group, keys)
    status, told, errors = warm(daemon, "\n".join([listed(daemon)[0]["key"], "nonsense"]))
    assert status == 1 and told["found_by_tier"]["dram"] == 1
    assert "line 2: 'nonsense' is no key" in errors
    status, _, errors = warm(daemon, '{"tokens": [1]}')
    assert status == 1 and "line 1 names no group" in errors and "--group" in errors
    status, _, errors = warm(daemon, '{"group": "huge", "tokens": [1]}')
    assert status == 1 and "tiny" in errors
    assert "cannot read /nowhere" in refused(daemon, "warm", "/nowhere")


# ---- export and import ----

@pytest.fixture
def two_nodes():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        secret = pathlib.Path(one) / "secret"
        assert run_terrace("domain", "new", secret)[0] == 0
        nodes = [Daemon(directory, f'[[domain]]\nname = "default"\nsocket = "{directory}/t.sock"\n'
                                   f'secret_file = "{secret}"\n') for directory in (one, other)]
        for node in nodes:
            connect(node).close()
        yield nodes
        for node in nodes:
            node.stop()


def prompts(count, seed):
    """Requests of a few system prompts, continued by users who come again and again."""
    draw = random.Random(seed)
    for _ in range(count):
        system = draw.randrange(4)
        user = min(int(draw.paretovariate(0.8)), 60)
        yield ([system * 1000 + i for i in range(96)]
               + [100_000 + system * 10_000 + user * 100 + i for i in range(64)])


def serve(group, requests, stores=True):
    """How many blocks were hits; whatever was none is stored, and each hit is compared."""
    hits = 0
    for tokens in requests:
        keys = group.hash(tokens)
        with group.acquire(keys) as lease:
            found = lease.block_count
            if found:
                into = bytearray(found * SPACE.block_bytes)
                lease.wait_ready()
                lease.copy_into(into)
                assert into == b"".join(block_bytes(i, 1) for i in range(found))
        hits += found
        if stores and found < len(keys):
            with group.reserve(keys) as lease:
                lease.write([block_bytes(i, 1) for i in range(len(keys))])
                lease.commit()
    return hits


def test_a_hot_set_gives_the_hits_to_an_empty_node(two_nodes):
    source, target = two_nodes
    with connect(source) as client, connect(target) as empty, tempfile.TemporaryDirectory() as at:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        serve(group, prompts(600, 1))
        replay = list(prompts(300, 2))
        file = pathlib.Path(at) / "hot"
        told = ask(source, "export", file, "--hot", "48MiB")
        assert told["lost_count"] == 0 and told["block_count"] == len(listed(source))
        assert file.stat().st_mode & 0o777 == 0o600
        stored = ask(target, "import", file)
        assert (stored["stored_count"], stored["no_room_count"]) == (told["block_count"], 0)
        assert stored["is_whole"]
        hits = serve(group, replay, stores=False)
        there = serve(empty.open(terrace.SpaceGroup("tiny", [SPACE])), replay, stores=False)
        print(f"{there} of {hits} hits on the empty node ({there / hits:.2%})")
        assert hits > 2000 and there >= 0.99 * hits, (there, hits)
        again = ask(target, "import", file)
        assert (again["stored_count"], again["existed_count"]) == (0, told["block_count"])


def test_content_of_a_bypassed_domain_is_refused_as_that(two_nodes, tmp_path):
    """Its clients ask nobody: a file of nothing would pass for a backup."""
    source, _ = two_nodes
    with connect(source) as client:
        keys = store(client.open(terrace.SpaceGroup("tiny", [SPACE])), list(range(32)))
        ask(source, "export", tmp_path / "before", "--hot", "48MiB")
        ask(source, "drain", "--bypass")
        for words in (("export", tmp_path / "hot", "--hot", "48MiB"),
                      ("import", tmp_path / "before"),
                      ("bench", "load", "--seconds", "1", "--prompts", "1")):
            said = refused(source, *words)
            assert "is bypassed" in said and "`terrace drain --resume`" in said, (words, said)
        assert not list(tmp_path.glob("hot*"))
        root = listed(source)[0]["key"]
        status, said, _ = run_terrace("explain", root, "--socket", source.socket)
        assert status == 0 and "is bypassed" in said
        ask(source, "drain", "--resume")
        assert ask(source, "export", tmp_path / "hot", "--hot", "48MiB")["block_count"] == len(keys)


def test_blocks_that_others_write_are_not_said_to_be_there(two_nodes, tmp_path):
    source, target = two_nodes
    with connect(source) as client, connect(target) as writer:
        keys = store(client.open(terrace.SpaceGroup("tiny", [SPACE])), list(range(32)))
        ask(source, "export", tmp_path / "hot", "--hot", "48MiB")
        with writer.open(terrace.SpaceGroup("tiny", [SPACE])).reserve(keys):
            told = ask(target, "import", tmp_path / "hot", status=1)
        assert told["busy_count"] == len(keys)
        assert told["existed_count"] == told["stored_count"] == 0
        assert ask(target, "import", tmp_path / "hot")["stored_count"] == len(keys)


def test_an_export_replaces_no_file_that_comes_to_be_meanwhile(two_nodes, tmp_path):
    source, _ = two_nodes
    with connect(source) as client:
        serve(client.open(terrace.SpaceGroup("tiny", [SPACE])), prompts(300, 1))
        for attempt in range(10):
            file = tmp_path / f"hot{attempt}"
            with subprocess.Popen(
                    [terrace_path(), "export", file, "--hot", "48MiB", "--socket", source.socket],
                    stderr=subprocess.PIPE, stdout=subprocess.PIPE) as exporting:
                while exporting.poll() is None and not os.path.exists(f"{file}.partial"):
                    pass
                with contextlib.suppress(FileExistsError):
                    with open(file, "x", encoding="utf-8") as own:
                        own.write("mine")
                said = exporting.communicate(timeout=LONG_S)[1].decode()
            if exporting.returncode != 0:
                break  # else it was done before there was a file
        assert "exists: name another file" in said
        assert file.read_text() == "mine" and not os.path.exists(f"{file}.partial")
        assert "cannot make" in refused(source, "export", tmp_path / ("a" * 300), "--hot", "1MiB")


def test_a_small_hot_set_is_the_hottest_and_goes_through_a_pipe(two_nodes):
    source, target = two_nodes
    with connect(source) as client:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        cold, hot = list(range(64)), list(range(5000, 5064))
        store(group, cold)
        hot_keys = store(group, hot)
        for _ in range(5):
            group.acquire(hot_keys).release()
        wait_until_free(group, hot_keys)
        exporting = subprocess.Popen(
            [terrace_path(), "export", "-", "--hot", "300000", "--socket", source.socket],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        importing = subprocess.run([terrace_path(), "import", "-", "--socket", target.socket],
                                   stdin=exporting.stdout, capture_output=True, timeout=60,
                                   check=False, text=True)
        assert exporting.wait(60) == 0
        assert b"exported 4 blocks" in exporting.stderr.read()
        assert importing.returncode == 0 and "imported 4 blocks" in importing.stdout
        assert sorted(one["key"] for one in listed(target)) == sorted(
            one["key"] for one in listed(source) if one["hit_count"] > 0)


def test_a_file_that_is_none_is_refused_by_name(two_nodes):
    source, target = two_nodes
    with connect(source) as client, tempfile.TemporaryDirectory() as at:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        wait_until_free(group, store(group, list(range(64))))
        file = pathlib.Path(at) / "hot"
        ask(source, "export", file, "--hot", "1GiB")
        assert f"{file} exists" in refused(source, "export", file, "--hot", "1GiB")
        whole = file.read_bytes()
        file.write_bytes(whole[:-100_000])
        status, output, errors = run_terrace("import", file, "--socket", target.socket)
        assert status == 1 and "imported 2 blocks" in output
        assert f"{file} at byte {len(whole) - 100_000}: the file ends within" in errors
        assert "export it again" in errors and "2 blocks before it were stored" in errors
        assert len(listed(target)) == 2
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        file.write_bytes(damaged)
        status, _, errors = run_terrace("import", file, "--socket", target.socket)
        assert status == 1 and "wrong checksum" in errors
        file.write_bytes(b"no such thing" * 100)
        assert "no file of `terrace export`" in refused(target, "import", file)
        assert "cannot read" in refused(target, "import", "/nowhere")
        assert "write bytes above 0" in refused(source, "export", file, "--hot", "hot", status=2)


def test_another_domains_file_is_refused(two_nodes, daemon):
    source, _ = two_nodes
    with connect(source) as client, tempfile.TemporaryDirectory() as at:
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        wait_until_free(group, store(group, list(range(64))))
        file = pathlib.Path(at) / "hot"
        ask(source, "export", file, "--hot", "1GiB")
        errors = refused(daemon, "import", file)
        assert "fingerprint" in errors and "secret_file" in errors
        assert not listed(daemon)
        assert "no block here fits" in refused(daemon, "export", file, "--hot", "1GiB")
