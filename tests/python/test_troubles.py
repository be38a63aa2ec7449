"""What an operator sees when something is wrong, of live daemons: status, its conditions, health by
HTTP, the log and doctor agree, and all heal by themselves."""
import contextlib
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request

import pytest

import terrace

from conftest import (LONG_S, SPACE, Daemon, connect, die_with_parent, run_terrace, store,
                      until)

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
MIB = 1 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D
EXT4_GOING_FLAGS_NOLOGFLUSH = 2

HOLDER = """
import sys, time, terrace
from conftest import SPACE
client = terrace.Client(sys.argv[1], default_timeout_s=30.0, name="engine-1")
client.wait_connected(30.0)
group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
with group.reserve(group.hash(range(16 * int(sys.argv[2])))) as lease:
    print("holds", flush=True)
    while True:
        time.sleep(0.05)
        client.stats()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def daemon_with(more="", sections="", directory=None):
    """A daemon that answers figures and health over HTTP, too."""
    with tempfile.TemporaryDirectory() as own:
        port = free_port()
        running = Daemon(directory or own, more + f'[metrics]\nlisten = "127.0.0.1:{port}"\n' +
                         sections)
        running.port = port
        try:
            connect(running).close()
            yield running
        finally:
            running.stop()


def get(daemon, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}{path}", timeout=10) as answer:
        return answer.read().decode()


def look(daemon):
    """Status as JSON and as text; both, the metrics and the body of /healthz tell the same."""
    def document():
        _, out, err = run_terrace("status", "--json", "--socket", daemon.socket)
        assert not err
        return json.loads(out)
    before, after, text = document(), None, ""
    while after is None or before["troubles"] != after["troubles"]:  # else told of another moment
        before = after or before
        _, text, _ = run_terrace("status", "--socket", daemon.socket)
        after = document()
    return after, text


def eventually(what, seconds=LONG_S):
    until(what, seconds, 0.1)  # each look is a process


def holds(daemon, condition):
    """Everything agrees that the condition holds, and no other; else False."""
    document, text = look(daemon)
    if document["conditions"] != [condition]:
        return False
    assert document["health"] == "degraded" and len(document["troubles"]) == 1
    assert f"DEGRADED: {document['troubles'][0]}" in text
    if get(daemon, "/healthz") != f"degraded: default: {condition}\n":
        return False  # it is looked at once a second
    figures = [line for line in get(daemon, "/metrics").splitlines()
               if line.startswith("terrace_degraded{") and not line.endswith(" 0")]
    return not figures or f'condition="{condition}"' in figures[0] and len(figures) == 1


def is_well(daemon):
    return look(daemon)[0]["conditions"] == [] and get(daemon, "/healthz") == "ok\n"


def lines(daemon, event):
    return [line for line in daemon.log.read_text().splitlines() if f'event="{event}"' in line]


@pytest.mark.parametrize("answers", [False, True])
def test_redis_that_cannot_be_used_is_a_condition(answers):
    if answers:
        pytest.importorskip("shutil").which("redis-server") or pytest.skip("no redis-server")
    port = free_port()
    with daemon_with(sections=f'[redis]\nendpoints = ["127.0.0.1:{port}"]\n') as daemon:
        eventually(lambda: holds(daemon, "redis_away"))
        trouble = look(daemon)[0]["troubles"][0]
        assert "cannot be reached: " in trouble and ", at " in trouble, trouble
        if not answers:
            return
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--save", "", "--maxmemory", "4mb",
             "--maxmemory-policy", "noeviction"], stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent)
        try:
            eventually(lambda: is_well(daemon))
            with connect(daemon) as client:
                group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
                for prompt in range(8):
                    store(group, range(prompt * 1000, prompt * 1000 + 16 * 16))
                    time.sleep(0.2)
                eventually(lambda: holds(daemon, "redis_no_writes"))
            document, text = look(daemon)
            assert "allkeys-lru" in document["troubles"][0]
            assert "TAKES NO WRITES: the Redis server is full" in text
            subprocess.run(["redis-cli", "-p", str(port), "config", "set", "maxmemory-policy",
                            "allkeys-lru"], check=True, stdout=subprocess.DEVNULL)
            eventually(lambda: is_well(daemon))  # though nobody stores anything
            assert len(lines(daemon, "redis takes no writes")) == 1
            assert len(lines(daemon, "redis takes writes again")) == 1
        finally:
            server.kill()
            server.wait()


@contextlib.contextmanager
def redis_servers(directory, ports, bus_ports=(None, None)):
    """Plain ones, or with ports for each other nodes of a Cluster."""
    running = []
    try:
        for port, bus_port in zip(ports, bus_ports):
            of_cluster = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port)]
            own = pathlib.Path(directory, str(port))
            own.mkdir(exist_ok=True)
            running.append(subprocess.Popen(
                ["redis-server", "--port", str(port), "--save", "", "--dir", own,
                 *(of_cluster if bus_port else [])],
                stdout=subprocess.DEVNULL, preexec_fn=die_with_parent))
        eventually(lambda: all(redis_says(port, "ping") == "PONG" for port in ports))
        yield
    finally:
        for server in running:
            server.kill()
            server.wait()


def redis_says(port, *words):
    return subprocess.run(["redis-cli", "-p", str(port), *map(str, words)], capture_output=True,
                          text=True, timeout=LONG_S, check=False).stdout.strip()


def test_a_node_of_a_redis_cluster_is_told_once_with_the_key_to_change(tmp_path):
    shutil.which("redis-server") or pytest.skip("no redis-server")
    ports, bus_ports = [free_port(), free_port()], [free_port(), free_port()]
    config = f'[redis]\nendpoints = ["127.0.0.1:{ports[0]}"]\n'
    with daemon_with(sections=config) as daemon:
        with redis_servers(tmp_path, ports, bus_ports):
            redis_says(ports[0], "cluster", "addslotsrange", 0, 8191)
            redis_says(ports[1], "cluster", "addslotsrange", 8192, 16383)
            redis_says(ports[0], "cluster", "meet", "127.0.0.1", ports[1], bus_ports[1])
            eventually(lambda: all("cluster_state:ok" in redis_says(port, "cluster", "info")
                                   for port in ports))
            with connect(daemon) as client:
                group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
                prompts = iter(range(0, 1_000_000, 1000))

                def is_said():
                    if not holds(daemon, "redis_away"):
                        first = next(prompts)
                        store(group, range(first, first + 16))
                        return False
                    return "Redis Cluster" in look(daemon)[0]["troubles"][0]
                eventually(is_said)
            document, text = look(daemon)
            attempts = document["redis"]["connection_attempts"]
            assert document["redis"]["is_of_another_kind"]
            assert 'set redis.mode = "cluster"' in document["troubles"][0]
            assert "AWAY: the Redis server is a node of a Redis Cluster" in text
            _, out, _ = run_terrace("doctor", "--socket", daemon.socket)
            out = " ".join(out.split())  # its rows are wrapped
            assert "[redis] mode, endpoints and master_name, then a restart" in out
            # Its logins succeed, and say nothing.
            eventually(lambda: look(daemon)[0]["redis"]["connection_attempts"] >= attempts + 3)
            assert holds(daemon, "redis_away")
            told = lines(daemon, "redis is away: what it has are misses until it is back")
            assert sum("redis.mode" in line for line in told) == 1
            assert len(lines(daemon, "redis is there")) <= 1
        with redis_servers(tmp_path, ports[:1]):
            eventually(lambda: is_well(daemon))


def test_a_catalog_that_cannot_be_opened_is_told_and_comes_back(tmp_path):
    sections = (f'[nvme]\npaths = ["{tmp_path}/drive"]\ncapacity_bytes = "16MiB"\n'
                'slab_bytes = "4MiB"\n')
    (tmp_path / "drive").mkdir()
    with daemon_with(sections=sections, directory=tmp_path) as daemon, connect(daemon) as client:
        store(client.open(terrace.SpaceGroup("tiny", [SPACE])), range(16 * 8))
        eventually(lambda: look(daemon)[0]["lower_tiers"][0]["persisted_block_count"] == 8)
    (catalog,) = (tmp_path / "drive").rglob("catalog")
    catalog.rename(catalog.with_suffix(".aside"))
    catalog.write_text("no directory")
    with daemon_with(sections=sections, directory=tmp_path) as daemon:
        eventually(lambda: holds(daemon, "catalog_off"))
        document, _ = look(daemon)
        assert document["lower_tiers"][0]["catalog_trouble"] in document["troubles"][0]
        (told,) = lines(daemon, "catalog")
        assert f"the catalog {catalog} is off" in told
        code, _, err = run_terrace("audit", "--socket", daemon.socket)
        assert code != 0 and "it is off" in err, "rather than that nothing was erased"
        catalog.unlink()
        eventually(lambda: is_well(daemon))
        assert len(lines(daemon, "the catalog is on again")) == 1
        assert len(lines(daemon, "catalog")) == 1
        assert run_terrace("audit", "--socket", daemon.socket)[0] == 0
    with daemon_with(sections=sections, directory=tmp_path) as daemon, connect(daemon) as client:
        restored = lines(daemon, "restored")
        assert 'from="tables"' in restored[1] and 'from="catalog"' in restored[2]
        group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
        assert group.match(group.hash(range(16 * 8))).block_count == 8


def test_a_stopped_client_that_fences_memory_is_named():
    more = 'lease_ttl_ms = 300\nfenced_bytes_max = "1MiB"\n'
    with daemon_with(more) as daemon:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, daemon.socket, "32"],
                                  stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
                                  cwd=pathlib.Path(__file__).parent)
        try:
            assert holder.stdout.readline().startswith("holds")
            holder.send_signal(signal.SIGSTOP)
            eventually(lambda: holds(daemon, "fenced_memory"))
            document, text = look(daemon)
            (session,) = [s for s in document["sessions"] if s["pid"] == holder.pid]
            assert session["revoked_leases"] == 1
            assert "silent, fenced" in text and "(at 1.0 MiB nothing more is stored)" in text
            (told,) = lines(daemon, "a client is silent: its leases are revoked, what they hold is "
                                    "fenced")
            assert f"pid={holder.pid}" in told and 'comm="python' in told
            assert 'client="engine-1"' in told
            assert f'session="{session["id"]}"' in told
            holder.send_signal(signal.SIGCONT)
            holder.kill()
            eventually(lambda: is_well(daemon))
            eventually(lambda: lines(daemon, "fenced memory is below its limit"))
            assert len(lines(daemon, "fenced memory is at its limit")) == 1
        finally:
            holder.send_signal(signal.SIGCONT)
            holder.kill()
            holder.wait()


@ROOT_ONLY
def test_a_full_drive_is_a_condition_until_there_is_room():
    with tempfile.TemporaryDirectory() as drive:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14M", "none", drive], check=True)
        try:
            sections = (f'[nvme]\npaths = ["{drive}/t"]\ncapacity_bytes = "64MiB"\n'
                        'slab_bytes = "4MiB"\n')
            with daemon_with(sections=sections) as daemon, connect(daemon) as client:
                group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
                for prompt in range(16):
                    store(group, range(prompt * 1000, prompt * 1000 + 16 * 16))
                eventually(lambda: holds(daemon, "drive_full"))
                document, _ = look(daemon)
                assert f"{drive}/t/default is full" in document["troubles"][0]
                assert "No space left on device" in document["troubles"][0]
                subprocess.run(["mount", "-o", "remount,size=128M", drive], check=True)
                eventually(lambda: is_well(daemon))
                (told,) = lines(daemon, "a drive is full")
                assert f'path="{drive}/t/default"' in told and "errno 28" in told
                eventually(lambda: lines(daemon, "a drive has room again"))
        finally:
            subprocess.run(["umount", "-l", drive], check=True)


@contextlib.contextmanager
def drive_on_loop(directory):
    """An ext4 of its own."""
    image, drive = directory / "image", directory / "drive"
    drive.mkdir()
    with open(image, "wb") as file:
        file.truncate(256 * MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, drive], check=False,
                             capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no loop devices here")
    try:
        yield drive
    finally:
        subprocess.run(["umount", "-l", drive], check=True)


def shut_down(drive):
    """As a device does that is pulled: whatever is asked of the file system is EIO from now on."""
    at = os.open(drive, os.O_RDONLY)
    fcntl.ioctl(at, EXT4_IOC_SHUTDOWN, struct.pack("I", EXT4_GOING_FLAGS_NOLOGFLUSH))
    os.close(at)


@ROOT_ONLY
def test_a_drive_that_answers_errors_is_a_condition_with_its_errno(tmp_path):
    with drive_on_loop(tmp_path) as drive:
        sections = (f'[nvme]\npaths = ["{drive}/t"]\ncapacity_bytes = "160MiB"\n'
                    'slab_bytes = "16MiB"\n')
        with daemon_with(sections=sections) as daemon, connect(daemon) as client:
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            store(group, range(16 * 32))
            eventually(lambda: look(daemon)[0]["lower_tiers"][0]["persisted_block_count"] == 32)
            shut_down(drive)
            prompts = iter(range(1, 10_000))

            def is_off():
                prompt = next(prompts)
                store(group, range(prompt * 1000, prompt * 1000 + 16 * 32))
                return look(daemon)[0]["conditions"] == ["drive_off"]

            eventually(is_off)
            eventually(lambda: holds(daemon, "drive_off"))
            document, _ = look(daemon)
            assert f"the drive at {drive}/t/default is off: 8 requests" in document["troubles"][0]
            assert "Input/output error (errno 5)" in document["troubles"][0]
            (told,) = lines(daemon, "a drive is off")
            for word in (f'path="{drive}/t/default"', "operation=", 'error="Input/output error',
                         "failures_in_row=8"):
                assert word in told, told


@ROOT_ONLY
def test_a_drive_that_is_not_mounted_is_a_condition():
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as drive:
        sections = (f'[nvme]\npaths = ["{drive}/t"]\ncapacity_bytes = "64MiB"\n'
                    'slab_bytes = "4MiB"\n')
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128M", "none", drive], check=True)
        try:
            with daemon_with(sections=sections, directory=directory) as daemon:
                assert is_well(daemon)
        finally:
            subprocess.run(["umount", "-l", drive], check=True)
        with daemon_with(sections=sections, directory=directory) as daemon:
            eventually(lambda: holds(daemon, "drive_not_mounted"))
            assert f"what was mounted at {drive} is not" in look(daemon)[0]["troubles"][0]
            assert lines(daemon, "a drive is not mounted")
            _, out, _ = run_terrace("doctor", "--socket", daemon.socket)
            assert f"it lay on what was mounted at {drive}" in " ".join(out.split())
        refused = Daemon(directory, sections + 'require_mount = "on"\n')
        assert refused.process.wait(LONG_S) == 1
        assert f"and lay on {drive}" in refused.log.read_text()


def test_wrong_checksums_name_the_program(daemon):
    space = terrace.Space(model="claims", revision="1", dtype="bf16", layout="nhd", layers=1,
                          kv_heads=1, head_size=64, block_tokens=16, part_bytes=(65536,))
    with connect(daemon) as writer, connect(daemon) as reader:
        group = writer.open(terrace.SpaceGroup("claims", [space]))
        keys = group.hash(range(16 * 4))
        with group.reserve(keys) as lease:
            for key in lease.reserved:
                slot = lease.slot(key)
                slot[:] = bytes(65536)
                lease.checksum(key, 0)
                slot[7] = 1
                del slot
            lease.commit()
        others = reader.open(terrace.SpaceGroup("claims", [space]))

        def is_told():
            with others.acquire(keys):
                pass
            return look(daemon)[0]["conditions"] == ["wrong_checksums"]

        eventually(is_told)
        document, text = look(daemon)
        (wrong,) = document["domain"]["refuted_writers"]
        assert wrong["pid"] == os.getpid() and wrong["comm"] and wrong["unix_s"] > 1e9
        assert f"uid {os.getuid()}, pid {os.getpid()} ({wrong['comm']})" in text
        told = lines(daemon, "a client's checksums are wrong: the block is erased")[0]
        assert f'session="{wrong["session"]}"' in told and f"pid={os.getpid()}" in told


def test_a_refused_user_is_told_so_at_once():
    domain = '[[domain]]\nname = "default"\nsocket = "/tmp/unused"\nallow_uids = []\n'
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, domain)
        try:
            eventually(lambda: os.path.exists(daemon.socket))
            began = time.monotonic()
            for command in ("status", "pins"):
                status, _, err = run_terrace(command, "--socket", daemon.socket)
                assert status == 1
                assert "may not connect; add one to allow_uids" in err, err
                assert "timeout" not in err and "no handshake" not in err, err
            _, out, _ = run_terrace("doctor", "--socket", daemon.socket)
            said = " ".join(out.split())  # a long path wraps its line elsewhere
            assert "refused this client" in said and "gives no answer" not in said, out
            assert time.monotonic() - began < 10
        finally:
            daemon.stop()


def test_a_hung_daemon_is_not_said_to_refuse(daemon):
    daemon.process.send_signal(signal.SIGSTOP)
    status, _, err = run_terrace("drain", "--bypass", "--timeout-ms", "300", "--socket",
                                 daemon.socket)
    assert status == 1
    assert "no handshake with the daemon" in err and "refused" not in err, err
    status, _, err = run_terrace("status", "--timeout-ms", "300", "--socket", daemon.socket)
    assert status == 1 and "last_error" not in err, err
    daemon.process.send_signal(signal.SIGCONT)


class SlowDaemon:
    """Answers so many Hellos and then nothing; with the last of them a Fsck, if `is_done`."""

    def __init__(self, directory, hello_count, is_done):
        self.socket = str(pathlib.Path(directory) / "slow.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.socket)
        self.listener.listen(8)
        self.hello_count = hello_count
        self.is_done = is_done
        self.peers = []  # they stay open
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                self.peers.append(self.listener.accept()[0])
                threading.Thread(target=self.serve, args=[self.peers[-1]], daemon=True).start()

    def serve(self, peer):
        while len(head := peer.recv(16, socket.MSG_WAITALL)) == 16:
            size, version, verb, _, number = struct.unpack("<IBBHQ", head)
            peer.recv(size - 16, socket.MSG_WAITALL)
            body = bytes(296)
            if verb == 1:
                self.hello_count -= 1
                if self.hello_count < 0:
                    return
            else:
                eventually(lambda: self.hello_count <= 0)
                if not self.is_done:
                    return
                body = b'{"is_done": true, "group_count": 0}'
            body = struct.pack("<QB3xi", 7, 0, 0) + body
            peer.sendall(struct.pack("<IBBHQ", 16 + len(body), version, verb, 0, number) + body)


def test_a_check_of_a_daemon_that_hangs_ends(daemon):
    daemon.process.send_signal(signal.SIGSTOP)
    status, _, err = run_terrace("fsck", "--online", "--socket", daemon.socket)
    assert status == 2
    assert "no handshake with the daemon" in err and "within 5000 ms" in err, err
    daemon.process.send_signal(signal.SIGCONT)


def test_a_check_waits_for_a_slow_drive_and_not_for_a_daemon_that_came_to_hang():
    with tempfile.TemporaryDirectory() as directory:
        slow = SlowDaemon(directory, 4, True)
        status, out, err = run_terrace("fsck", "--online", "--timeout-ms", "200", "--socket",
                                       slow.socket)
        assert status == 0 and "clean" in out, out + err
        slow.listener.close()
    with tempfile.TemporaryDirectory() as directory:
        slow = SlowDaemon(directory, 2, False)
        status, _, err = run_terrace("fsck", "--online", "--timeout-ms", "200", "--socket",
                                     slow.socket)
        assert status == 2 and "did not answer within 200 ms" in err, err
        slow.listener.close()


def test_a_file_size_limit_below_a_slab_is_no_start_and_a_sentence():
    limit = (80 * MIB, 80 * MIB)
    with tempfile.TemporaryDirectory() as directory:
        config = pathlib.Path(directory) / "t.toml"
        config.write_text(f'[daemon]\ndram_bytes = "64MiB"\nsegment_bytes = "2MiB"\n'
                          f'state_dir = "{directory}/state"\n[nvme]\n'
                          f'paths = ["{directory}/drive"]\ncapacity_bytes = "256MiB"\n'
                          f'slab_bytes = "128MiB"\n')
        done = subprocess.run(
            [os.environ["TERRACED"], "--config", config, "--socket", f"{directory}/t.sock"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
            capture_output=True, text=True, check=False, timeout=LONG_S)
        assert done.returncode == 1
        assert "nvme.slab_bytes is 128MiB" in done.stderr and "LimitFSIZE" in done.stderr
        _, out, _ = run_terrace(
            "doctor", "--config", config, "--socket", f"{directory}/t.sock",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        assert "file size" in out and "a slab file has 128.0 MiB" in " ".join(out.split()), out


def test_a_file_size_limit_that_comes_later_does_not_end_the_daemon():
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory, f'state_dir = "{directory}/state"\n[nvme]\n'
                                   f'paths = ["{directory}/drive"]\ncapacity_bytes = "64MiB"\n'
                                   f'slab_bytes = "8MiB"\n')
        try:
            with connect(daemon) as client:
                resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (MIB, MIB))
                group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
                keys = store(group, range(16 * 8))
                eventually(lambda: look(daemon)[0]["conditions"])
                assert daemon.process.poll() is None
                assert group.match(keys).block_count == 8
        finally:
            daemon.stop()


def test_a_configuration_whose_name_is_no_utf_8_is_told_of_all_the_same():
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory)
        daemon.stop()
        name = os.fsencode(directory) + b"/\xff\xfe.toml"
        os.rename(daemon.config, name)
        daemon.config = name
        daemon.start()
        try:
            connect(daemon).close()
            for words in (["get"], ["set", "daemon.log_level=debug"], ["reload"]):
                status, out, err = run_terrace("config", *words, "--json", "--socket",
                                               daemon.socket)
                assert status == 0, out + err
                assert json.loads(out).get("file", "\ufffd").count("\ufffd") > 0
            assert daemon.process.poll() is None
        finally:
            daemon.stop()


def test_a_daemon_that_runs_out_of_memory_does_not_say_that_it_cannot_start(daemon):
    with terrace.Client(daemon.socket, default_timeout_s=1.0) as client:
        client.wait_connected(LONG_S)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_AS, (MIB, MIB))
        for name in range(100):
            with contextlib.suppress(terrace.Unavailable, OSError):
                group = client.open(terrace.SpaceGroup(f"group{name}", [SPACE]))
                group.match(group.hash(range(16 * 20_000)))
            if daemon.process.poll() is not None:
                break
    assert daemon.process.wait(LONG_S) == 1
    said = daemon.log.read_text()
    assert "terraced: ends while it serves: memory is short" in said, said
    assert "cannot start" not in said, said


def test_what_engines_pin_is_told_beside_names(daemon, group):
    assert run_terrace("pins", "--socket", daemon.socket)[1] == "nothing is pinned by name\n"
    keys = store(group, range(16 * 8))
    group.pin(keys)
    _, out, _ = run_terrace("pins", "--socket", daemon.socket)
    assert "nothing is pinned by name\n" in out and "engines have pinned 8 blocks" in out
    _, text, _ = run_terrace("status", "--socket", daemon.socket)
    assert "in 8 blocks by engines themselves" in text


def test_a_value_that_is_left_out_is_asked_for(daemon):
    status, _, err = run_terrace("config", "set", "domain.default.allow_uids=", "--socket",
                                 daemon.socket)
    assert status == 1
    assert "is given no value" in err and "[1000, 1001]" in err and ":3:" not in err, err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_secret_that_cannot_be_opened_says_whose_it_must_be():
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "secret"
        assert run_terrace("domain", "new", path)[0] == 0
        pathlib.Path(directory).chmod(0o711)
        nobody = 65534
        _, _, err = run_terrace("domain", "show", path, user=nobody, group=nobody, extra_groups=[],
                                cwd="/")
        assert "Permission denied; it must belong to the user that reads it" in err, err
        path.write_text("nothing")
        _, _, err = run_terrace("domain", "show", path)
        assert "terrace domain new FILE" in err, err


def test_a_prompt_may_come_from_a_pipe(daemon, group):
    store(group, range(16 * 4))
    read_end, write_end = os.pipe()
    os.write(write_end, " ".join(map(str, range(16 * 4))).encode())
    os.close(write_end)
    status, out, err = run_terrace("explain", "--prompt-file", f"/dev/fd/{read_end}", "--socket",
                                   daemon.socket, pass_fds=[read_end])
    os.close(read_end)
    assert status == 0, err
    assert "4 of 4 blocks are usable" in out


def test_a_stop_ends_though_nobody_reads_the_log():
    with tempfile.TemporaryDirectory() as directory:
        log = pathlib.Path(directory) / "log"
        os.mkfifo(log)
        unread = os.open(log, os.O_RDWR)
        try:
            fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, 4096)
            running = Daemon(directory, 'log_level = "debug"\n')
            for _ in range(60):
                connect(running).close()
            (waiting_bytes,) = struct.unpack("i", fcntl.ioctl(unread, termios.FIONREAD, bytes(4)))
            assert waiting_bytes > 3000, "no line more finds room"
            running.process.terminate()
            assert running.process.wait(LONG_S) == 0
        finally:
            os.close(unread)


def test_a_service_that_is_refused_ends_after_a_pause_unless_it_is_told():
    """systemd starts it again at once, and without limit."""
    def start(service_pid):
        script = f'export SYSTEMD_EXEC_PID={service_pid}; exec "$TERRACED" --socket /nowhere/t.sock'
        return subprocess.Popen(["sh", "-c", script], stderr=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    for service_pid, pauses in (("$$", True), ("$PPID", False)):  # itself, or who has started it
        began = time.monotonic()
        with start(service_pid) as refused:
            assert refused.wait(LONG_S) == 1
        assert (time.monotonic() - began >= 5) == pauses
    with start("$$") as refused:
        began = time.monotonic()
        while "/nowhere" not in refused.stderr.readline():
            assert refused.poll() is None
        refused.terminate()
        assert refused.wait(LONG_S) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5
