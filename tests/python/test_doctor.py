"""`terrace doctor` of this host, with and without a daemon."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import types

import pytest

from conftest import Daemon, connect, run_terrace


def doctor(*arguments, **options):
    """Exit status, and the levels and texts of each check's rows."""
    status, output, errors = run_terrace("doctor", "--json", *arguments, **options)
    assert errors == "", errors
    document = json.loads(output)
    rows = {}
    for row in document["findings"]:
        rows.setdefault(row["check"], []).append(row)
    return status, rows, document


def only(rows, check):
    (row,) = rows[check]
    return row


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory() as path:  # pytest's own paths are too long for a socket
        yield pathlib.Path(path)


def write_config(directory, more=""):
    path = directory / "doctor.toml"
    path.write_text(f'[daemon]\ndram_bytes = "64MiB"\nsegment_bytes = "2MiB"\n'
                    f'state_dir = "{directory}"\n{more}'
                    f'[[domain]]\nname = "chat"\nsocket = "{directory}/c.sock"\n')
    return path


def test_a_daemon_in_good_order_has_no_problem(daemon):
    status, rows, document = doctor("--socket", daemon.socket)
    assert (status, document["counts"]["problem"]) == (0, 0), document
    assert document["config"] == str(daemon.config)  # of the daemon's own command line
    for check in ("configuration", "socket", "version", "health", "secret", "cores", "fenced"):
        assert only(rows, check)["level"] == "ok", rows[check]
    assert f"pid {daemon.process.pid}" in only(rows, "open files")["found"]
    text = run_terrace("doctor", "--socket", daemon.socket)[1]
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[-1].startswith("0 problems, ")


def test_who_names_a_configuration_asks_the_daemon_it_is_for(directory):
    running = Daemon(directory, f'[[domain]]\nname = "chat"\nsocket = "{directory}/t.sock"\n')
    connect(running).close()
    environment = {k: v for k, v in os.environ.items() if k != "TERRACE_SOCKET"}
    of_another = {**environment, "TERRACE_SOCKET": f"{directory}/another.sock"}
    for each in (environment, of_another):  # one that a shell exports is of whatever it was
        status, rows, document = doctor("--config", running.config, env=each)
        assert (status, only(rows, "socket")["level"]) == (0, "ok")
        assert document["socket"] == running.socket
    running.stop()


def test_paths_that_begin_where_the_daemon_was_started_are_found(directory):
    (directory / "t.toml").write_text(
        '[daemon]\ndram_bytes = "64MiB"\nsegment_bytes = "2MiB"\n'
        f'state_dir = "{directory}"\n[[domain]]\nname = "chat"\nsocket = "/unused"\n')
    process = subprocess.Popen([os.environ["TERRACED"], "--config", "t.toml", "--socket", "t.sock"],
                               cwd=directory, stderr=subprocess.DEVNULL)
    running = types.SimpleNamespace(socket=str(directory / "t.sock"), process=process)
    try:
        connect(running).close()
        status, rows, document = doctor("--socket", running.socket)
    finally:
        process.terminate()
        process.wait()
    assert (status, only(rows, "configuration")["level"]) == (0, "ok"), rows["configuration"]
    assert document["config"] == str((directory / "t.toml").resolve())


@pytest.mark.parametrize("name", ["state", "somebody's", 'a "state"', "back\\slash"])
def test_state_is_where_the_daemon_that_answers_has_it(directory, monkeypatch, name):
    with monkeypatch.context() as of_the_unit:
        of_the_unit.setenv("STATE_DIRECTORY", str(directory / name))
        running = Daemon(directory)
        connect(running).close()
    try:
        _, rows, _ = doctor("--socket", running.socket)
    finally:
        running.stop()
    assert rows["directory"][0]["found"].startswith(f"{directory / name} (state_dir): writable")


def test_what_others_may_read_is_a_problem(daemon):
    secret = pathlib.Path(daemon.socket).parent / "default.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    secret.chmod(0o644)
    status, rows, _ = doctor("--socket", daemon.socket)
    assert status == 1
    assert only(rows, "secret")["level"] == "problem"
    assert f"chmod 600 {secret}" in only(rows, "secret")["remedy"]


def test_without_a_daemon_it_says_what_it_cannot_see(directory):
    config = write_config(directory)
    environment = {**os.environ, "TERRACE_SOCKET": str(directory / "none.sock")}
    status, rows, _ = doctor("--config", config, env=environment)
    assert status == 0
    assert only(rows, "socket")["level"] == "warning"
    assert "version" not in rows and "cores" not in rows
    assert only(rows, "configuration")["level"] == "ok"
    # A socket that somebody names ought to be there.
    status, rows, _ = doctor("--config", config, "--socket", directory / "none.sock")
    assert status == 1
    assert only(rows, "socket")["level"] == "problem"


def test_a_wrong_configuration_is_a_problem(directory):
    config = write_config(directory, more="dram_bites = 1\n")
    status, rows, _ = doctor("--config", config)
    assert status == 1
    assert only(rows, "configuration")["level"] == "problem"
    assert "dram_bites" in only(rows, "configuration")["found"]
    status, rows, _ = doctor("--config", directory / "none.toml")
    assert (status, only(rows, "configuration")["level"]) == (1, "problem")


def test_a_pipe_that_nobody_writes_to_holds_neither_it_nor_the_daemon(directory):
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    status, rows, _ = doctor("--config", pipe)
    assert status == 1
    assert only(rows, "configuration")["level"] == "problem"
    found = only(rows, "configuration")["found"]
    assert str(pipe) in found and "was not written to its end" in found and "--config" in found
    checked = subprocess.run([os.environ["TERRACED"], "--check-config", "--config", pipe],
                             capture_output=True, text=True, timeout=20)
    assert (checked.returncode, checked.stderr) == (2, f"terraced: {found}\n")


def test_a_pipe_that_is_written_once_is_read_once(directory):
    pipe = directory / "pipe"
    os.mkfifo(pipe)
    text = write_config(directory).read_text()
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    status, rows, _ = doctor("--config", pipe)
    writer.join()
    assert (status, only(rows, "configuration")["level"]) == (0, "ok"), rows
    assert f"{directory}/c.sock" in only(rows, "socket")["found"]


def test_a_pipe_that_a_daemon_was_started_with_is_not_read_again(directory):
    text, socket_path = write_config(directory).read_text(), directory / "c.sock"
    with subprocess.Popen([os.environ["TERRACED"], "--config", "/dev/stdin"],
                          stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            running.stdin.write(text)
            running.stdin.close()
            connect(types.SimpleNamespace(socket=socket_path)).close()
            status, rows, _ = doctor("--socket", socket_path)
        finally:
            running.terminate()
    row = only(rows, "configuration")
    assert (status, row["level"], row["remedy"]) == (0, "note", "terrace config get"), row
    assert "/dev/stdin" in row["found"]


def test_what_cannot_be_a_file_is_a_problem_and_not_unreadable(directory):
    status, rows, _ = doctor("--config", directory)
    row = only(rows, "configuration")
    assert (status, row["level"]) == (1, "problem")
    assert "Is a directory" in row["found"]


@pytest.mark.skipif(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >= 1 << 40,
                    reason="this machine has a terabyte")
def test_more_memory_than_there_is_is_a_problem(directory):
    config = write_config(directory)
    config.write_text(config.read_text().replace("64MiB", "1TiB").replace("2MiB", "256MiB"))
    status, rows, _ = doctor("--config", config)
    assert (status, only(rows, "memory")["level"]) == (1, "problem")


def test_directories_of_drives_are_looked_at(directory):
    more = (f'[nvme]\npaths = ["{directory}/d", "{directory}/none"]\ncapacity_bytes = "64MiB"\n'
            'slab_bytes = "4MiB"\n')
    config = write_config(directory, more=more)
    (directory / "d").mkdir(mode=0o700)
    status, rows, _ = doctor("--config", config)
    assert status == 0  # the start makes what is not there
    by_path = {row["found"].split(" ")[0]: row["level"] for row in rows["directory"]}
    assert by_path == {str(directory): "ok", f"{directory}/d": "ok",
                       f"{directory}/none": "note"}
    assert not list((directory / "d").iterdir())  # trying O_DIRECT leaves nothing behind
    assert len(rows["file system"]) == len(rows["space"]) == len(rows["drive"]) == 2
    assert " free, 0 B held by slabs" in rows["space"][0]["found"]


def test_what_a_start_cannot_make_is_a_problem_of_doctor_and_of_the_start(directory):
    config = write_config(directory)
    text = config.read_text()
    more = '[nvme]\npaths = ["{0}/d"]\ncapacity_bytes = "64MiB"\nslab_bytes = "4MiB"\n[[domain]]'
    none = directory / "none"
    for told, missing in ((text.replace("c.sock", "none/c.sock"), none),
                          (text.replace("[[domain]]", more.format(none)), none / "d")):
        config.write_text(told)
        status, rows, document = doctor("--config", config)
        assert (status, document["counts"]["problem"]) == (1, 1), document
        (row,) = [row for row in rows["directory"] if row["level"] == "problem"]
        assert row["found"].startswith(f"{missing} (") and "is not there" in row["found"]
        assert "refuses to start" in row["meaning"] and f" {missing}" in row["remedy"]
        started = subprocess.run([os.environ["TERRACED"], "--config", config], timeout=20,
                                 capture_output=True, text=True)
        assert started.returncode == 1 and str(none) in started.stderr, started
        assert "sudo terrace doctor" not in json.dumps(document)
    none.mkdir()
    assert doctor("--config", config)[0] == 0
    (row,) = doctor("--config", config)[1]["file system"]
    assert f" at {none}; the path is not there yet" in row["found"]


def test_a_daemon_that_is_stopped_is_a_problem(daemon):
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        status, rows, _ = doctor("--socket", daemon.socket, "--timeout-ms", "300")
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    row = only(rows, "socket")
    assert (status, row["level"]) == (1, "problem")
    assert "gives no answer within 300 ms" in row["found"]
    assert f"kill -CONT {daemon.process.pid}" in row["remedy"]


@contextlib.contextmanager
def server(directory, answer):
    """A Unix socket that answers whatever is said; None: nothing, ever."""
    listener = socket.socket(socket.AF_UNIX)
    path = directory / "r.sock"
    listener.bind(str(path))
    listener.listen()
    held = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                if answer is not None:
                    assert connection.recv(64) == b"PING\r\n"
                    connection.sendall(answer)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"unix:{path}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in (listener, *held):
            connection.close()
        path.unlink()


def redis_row(directory, endpoint):
    config = write_config(directory, more=f'[redis]\nendpoints = ["{endpoint}"]\n')
    return only(doctor("--config", config)[1], "Redis")


def test_redis_is_asked(directory):
    for answer in (b"+PONG\r\n", b"-NOAUTH Authentication required.\r\n"):
        with server(directory, answer) as endpoint:
            assert redis_row(directory, endpoint)["level"] == "ok"
    with server(directory, b"HTTP/1.1 400 Bad Request\r\n") as endpoint:
        row = redis_row(directory, endpoint)
        assert row["level"] == "problem" and "HTTP/1.1 400" in row["found"]
    with server(directory, None) as endpoint:
        row = redis_row(directory, endpoint)
        assert row["level"] == "problem" and "within 200 ms" in row["found"]
    with socket.socket() as bound:  # a port on which nobody listens
        bound.bind(("127.0.0.1", 0))
        row = redis_row(directory, f"127.0.0.1:{bound.getsockname()[1]}")
        assert row["level"] == "problem" and "refused" in row["found"]


def test_a_drive_that_a_daemon_uses_is_counted_as_its_own(directory):
    (directory / "d").mkdir()
    running = Daemon(directory, f'[nvme]\npaths = ["{directory}/d"]\ncapacity_bytes = "8MiB"\n'
                                'slab_bytes = "4MiB"\n')
    try:
        connect(running).close()
        status, rows, document = doctor("--socket", running.socket)
        assert status == 0, document
        assert only(rows, "space")["level"] in ("ok", "warning"), document
    finally:
        running.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_it_needs_no_rights(daemon):
    directory = pathlib.Path(daemon.socket).parent
    directory.chmod(0o711)
    nobody = 65534
    status, rows, document = doctor("--socket", daemon.socket, user=nobody, group=nobody,
                                    extra_groups=[], cwd="/")
    assert status == 1, document
    assert only(rows, "socket")["level"] == "problem"
    assert "usermod" not in only(rows, "socket")["remedy"], "nobody joins root's group"
    assert "the socket's group is root" in only(rows, "socket")["remedy"]
    assert "permission denied" in only(rows, "socket")["found"]


def test_a_wrong_command_line_is_two():
    assert run_terrace("doctor", "--bogus")[0] == 2
