"""A terraced of one test's own, and a small model's Space."""
import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import pytest

import terrace

LONG_S = 30.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may be


def die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """A real terraced on a private socket."""

    def __init__(self, directory, more="", memory='dram_bytes = "64MiB"\nsegment_bytes = "2MiB"\n'
                                                  'segments_spare = 4\n'):
        self.socket = str(pathlib.Path(directory) / "t.sock")
        self.config = pathlib.Path(directory) / "t.toml"
        # Other tests have the machine's huge pages for moments: a daemon would begin with them.
        self.config.write_text('[daemon]\nhugepages = "off"\n' + memory + more)
        self.log = pathlib.Path(directory) / "log"
        self.process = None
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [os.environ["TERRACED"], "--config", self.config, "--socket", self.socket],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(LONG_S)


@pytest.fixture
def daemon():
    with tempfile.TemporaryDirectory() as directory:  # pytest's own paths are too long for a socket
        running = Daemon(directory)
        connect(running).close()  # it has memory by then
        yield running
        running.stop()


@pytest.fixture
def hbm_daemon():
    """With an HBM tier in ordinary memory."""
    with tempfile.TemporaryDirectory() as directory:
        running = Daemon(directory, '[hbm]\ncapacity_bytes = "16MiB"\nslab_bytes = "4MiB"\n'
                                    'device = "host"\n')
        connect(running).close()
        yield running
        running.stop()


def connect(daemon, **options):
    client = terrace.Client(daemon.socket, default_timeout_s=LONG_S, **options)
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            client.wait_connected(1.0)
            if client.stats()["domain"]["segments_populated"] > 0:
                return client
        except terrace.Unavailable:
            pass
        if time.monotonic() > deadline:
            pytest.fail(f"no daemon came up: {client.last_error}\n{daemon.log.read_text()}")


@contextlib.contextmanager
def kept_out(daemon, mode=0, gid=None, directory_mode=0o711):
    """This process's user may not open the daemon's socket meanwhile: root becomes another one."""
    path = pathlib.Path(daemon.socket)
    path.chmod(mode)
    if gid is not None:
        os.chown(path, -1, gid)
    path.parent.chmod(directory_mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(1)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o660)


def terrace_path():
    return pathlib.Path(os.environ["TERRACED"]).parents[1] / "tools" / "terrace"


def run_terrace(*arguments, **options):
    """The command's exit status, standard output and standard error."""
    done = subprocess.run([terrace_path(), *map(str, arguments)], capture_output=True, text=True,
                          check=False, timeout=LONG_S, stdin=subprocess.DEVNULL, **options)
    return done.returncode, done.stdout, done.stderr


def let_nobody_store(daemon):
    """Who connects from now on is a reader."""
    status, _, said = run_terrace("config", "set", "domain.default.writer_uids=[]", "--socket",
                                  daemon.socket)
    assert status == 0, said


@pytest.fixture
def client(daemon):
    with connect(daemon) as connected:
        yield connected


SPACE = terrace.Space(model="tiny", revision="r1", dtype="bf16", layout="nhd", layers=2,
                      kv_heads=1, head_size=64, block_tokens=16, part_bytes=(50_000, 20_000))


@pytest.fixture
def group(client):
    return client.open(terrace.SpaceGroup("tiny", [SPACE]))


def block_bytes(block, seed=0):
    """The whole payload of a block, both parts."""
    step = 31 + 2 * seed
    return bytes((i * step + block * 7) & 255 for i in range(256)) * (SPACE.block_bytes // 256) \
        + bytes(SPACE.block_bytes % 256)


def store(group, tokens, seed=0):
    keys = group.hash(tokens)
    with group.reserve(keys) as lease:
        lease.write([block_bytes(i, seed) for i in range(len(keys))])
        assert lease.commit() == len(keys)
    return keys


class Late:
    """A lease of which but a head comes before the test says so."""

    def __init__(self, lease, head=0):
        self._lease, self._head, self.has_come = lease, head, False

    @property
    def ready_count(self):
        return self._lease.ready_count if self.has_come else self._head

    def wait_ready(self, count, timeout_s):
        if self.ready_count < count:
            time.sleep(timeout_s)
            raise terrace.Busy("a tier is slow")

    def late(self, block_count, timeout_s):
        return terrace.ReadLease.late(self, block_count, timeout_s)

    def __getattr__(self, name):
        return getattr(self._lease, name)


class SlowTier:
    """What is acquired while it is slow comes late."""

    def __init__(self, monkeypatch):
        self.leases, self.is_slow, self.head = [], True, 0
        acquire = terrace.Group.acquire

        def late(*arguments, **named):
            lease = acquire(*arguments, **named)
            if not self.is_slow:
                return lease
            self.leases.append(Late(lease, self.head))
            return self.leases[-1]

        monkeypatch.setattr(terrace.Group, "acquire", late)

    def bring(self):
        for lease in self.leases:
            lease.has_come = True


def begin_beside_hang(daemon, tier, begin, is_under_way, count=100):
    """So many loads of a slow tier, whose daemon hangs before it is asked, or once it has been."""
    if not is_under_way:
        daemon.process.send_signal(signal.SIGSTOP)
    begun = [begin() for _ in range(count)]
    if is_under_way:
        until(lambda: len(tier.leases) == count)
        daemon.process.send_signal(signal.SIGSTOP)
    return begun


def until(what, limit_s=LONG_S, pause_s=0.01):
    """Seconds until it came to pass."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() < began + limit_s, "it did not come to pass"
        time.sleep(pause_s)
    return time.monotonic() - began


def wait_until_free(group, keys):
    """A release is sent, not awaited."""
    deadline = time.monotonic() + LONG_S
    while any(block.lease_count for block in group.query(keys)):
        assert time.monotonic() < deadline, "a lease was not given back"
        time.sleep(0.005)
