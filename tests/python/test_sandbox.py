"""A daemon and a keeper that serve have given up what they never need."""
import contextlib
import ctypes
import os
import pathlib
import subprocess
import tempfile
import time

import pytest

from conftest import LONG_S, Daemon, connect, die_with_parent, run_terrace, store
import terrace

from conftest import SPACE

SYS_LANDLOCK_CREATE_RULESET = 444
LANDLOCK_CREATE_RULESET_VERSION = 1


def require_landlock():
    """Nothing under /proc tells of Landlock: a process is asked to do what it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0),
                           LANDLOCK_CREATE_RULESET_VERSION)
    if version <= 0:
        pytest.skip("SKIPPED: this kernel has no Landlock, or it is off (lsm= of its command "
                    f"line): {os.strerror(ctypes.get_errno())}")


def lead_elsewhere(path, elsewhere):
    """What is named below `path` from now on lies below `elsewhere`."""
    path.rename(path.with_name(path.name + ".before"))
    path.symlink_to(elsewhere)


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def threads_of(pid):
    return [int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]


@contextlib.contextmanager
def with_a_block_on_its_drive(directory, config):
    daemon = Daemon(directory, config +
                    f'[nvme]\npaths = ["{directory}/drive"]\ncapacity_bytes = "64MiB"\n'
                    'slab_bytes = "16MiB"\n')
    try:
        with connect(daemon) as client:
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            group.wait_persisted(store(group, list(range(64))), 30.0)
            yield daemon
    finally:
        daemon.stop()


def test_each_thread_of_a_daemon_is_confined(tmp_path_factory):
    with with_a_block_on_its_drive(tmp_path_factory.mktemp("s"), 'sandbox = "on"\n') as daemon:
        tasks = threads_of(daemon.process.pid)
        assert len(tasks) > 3
        for task in tasks:
            status = status_of(task)
            assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"), status["Name"]
        assert "not confined" not in daemon.log.read_text()


def test_each_thread_of_a_daemon_says_what_it_is_for(tmp_path_factory):
    directory = tmp_path_factory.mktemp("s")
    events = f'[kv_events]\nendpoint = "ipc://{directory}/events"\n'
    with with_a_block_on_its_drive(directory, events) as daemon:
        names = [status_of(task)["Name"] for task in threads_of(daemon.process.pid)]
        assert names.count("terraced") == 1  # the store thread
        assert {"terrace-log", "terrace-offload", "terrace-events", "terrace-arena", "rocksdb",
                "terrace-groups", "terrace-catalog"} <= set(names)
        unnamed = [name for name in names
                   if not name.startswith(("terrace", "rocksdb", "ZMQbg", "iou-"))]
        assert not unnamed, names


def test_a_daemon_may_be_told_not_to(tmp_path_factory):
    daemon = Daemon(tmp_path_factory.mktemp("s"), 'sandbox = "off"\n')
    try:
        connect(daemon).close()
        status, own = status_of(daemon.process.pid), status_of(os.getpid())
        for name in ("Seccomp", "NoNewPrivs"):  # as it was started
            assert status[name] == own[name]
    finally:
        daemon.stop()


@pytest.mark.parametrize("sandbox", ["on", "off"])
def test_a_daemon_makes_no_file_but_below_its_own_directories(sandbox):
    """Led elsewhere by a link, it is refused by the kernel, and nobody else: without a sandbox it
    writes there."""
    require_landlock()
    with tempfile.TemporaryDirectory() as directory:
        traces = pathlib.Path(directory, "traces")
        elsewhere = pathlib.Path(directory, "elsewhere")
        traces.mkdir()
        elsewhere.mkdir()
        pathlib.Path(directory, "own").mkdir()  # its socket's and state's: not all of `directory`
        daemon = Daemon(pathlib.Path(directory, "own"),
                        f'sandbox = "{sandbox}"\ntrace_dir = "{traces}"\n')
        try:
            connect(daemon).close()
            ask = ("trace", "record", "start", "--socket", daemon.socket)
            status, out, err = run_terrace(*ask)
            assert status == 0, out + err
            assert run_terrace("trace", "record", "stop", "--socket", daemon.socket)[0] == 0
            lead_elsewhere(traces, elsewhere)
            status, out, err = run_terrace(*ask)
            if sandbox == "on":
                assert status == 1 and "Permission denied" in err, out + err
                assert list(elsewhere.iterdir()) == []
            else:
                assert status == 0, out + err
                assert len(list(elsewhere.iterdir())) == 1
        finally:
            daemon.stop()


@contextlib.contextmanager
def keeper_at(socket):
    keeper = subprocess.Popen([os.environ["TERRACED"], "--keeper", "--socket", socket],
                              preexec_fn=die_with_parent, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + LONG_S
        while not socket.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        yield keeper
    finally:
        keeper.terminate()
        assert keeper.communicate()[1] == ""


def test_a_keeper_is_confined(tmp_path_factory):
    with keeper_at(tmp_path_factory.mktemp("s") / "k.sock") as keeper:
        status = status_of(keeper.pid)
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")


def test_a_keeper_removes_no_file_but_beside_its_socket():
    """It removes its socket when it ends: led elsewhere, it may not."""
    require_landlock()
    with tempfile.TemporaryDirectory() as directory:
        own, elsewhere = pathlib.Path(directory, "own"), pathlib.Path(directory, "elsewhere")
        own.mkdir()
        elsewhere.mkdir()
        precious = elsewhere / "k.sock"
        with keeper_at(own / "k.sock"):
            precious.write_text("somebody's")
            lead_elsewhere(own, elsewhere)
        assert precious.exists()
