"""A daemon and a keeper that serve have given up what they never need."""
import pathlib
import subprocess
import os
import time

from conftest import Daemon, connect, die_with_parent, store
import terrace

from conftest import SPACE


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def threads_of(pid):
    return [int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]


def test_each_thread_of_a_daemon_is_confined(tmp_path_factory):
    directory = tmp_path_factory.mktemp("s")
    daemon = Daemon(directory, 'sandbox = "on"\n'
                    f'[nvme]\npaths = ["{directory}/drive"]\ncapacity_bytes = "64MiB"\n'
                    'slab_bytes = "16MiB"\n')
    try:
        with connect(daemon) as client:
            group = client.open(terrace.SpaceGroup("tiny", [SPACE]))
            group.wait_persisted(store(group, list(range(64))), 30.0)
            tasks = threads_of(daemon.process.pid)
            assert len(tasks) > 3
            for task in tasks:
                status = status_of(task)
                assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"), status["Name"]
        assert "not confined" not in daemon.log.read_text()
    finally:
        daemon.stop()


def test_a_daemon_may_be_told_not_to(tmp_path_factory):
    daemon = Daemon(tmp_path_factory.mktemp("s"), 'sandbox = "off"\n')
    try:
        connect(daemon).close()
        status = status_of(daemon.process.pid)
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("0", "0")
    finally:
        daemon.stop()


def test_a_keeper_is_confined(tmp_path_factory):
    socket = tmp_path_factory.mktemp("s") / "k.sock"
    keeper = subprocess.Popen([os.environ["TERRACED"], "--keeper", "--socket", socket],
                              preexec_fn=die_with_parent, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 30
        while not socket.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        status = status_of(keeper.pid)
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    finally:
        keeper.terminate()
        assert keeper.communicate()[1] == ""
