"""`terrace top`: pictures of a live daemon, and the terminal it draws them on (tmux)."""
import json
import os
import shlex
import shutil
import subprocess
import time

import pytest

from conftest import LONG_S, connect, run_terrace, store, terrace_path

TMUX = shutil.which("tmux")


def test_once_tells_what_went_on_in_the_interval(daemon, group):
    keys = store(group, list(range(64)))
    with subprocess.Popen([terrace_path(), "top", "--json", "--interval", "1", "--socket",
                           daemon.socket], stdout=subprocess.PIPE, text=True) as running:
        asked = 0
        while running.poll() is None:
            with group.acquire(keys) as lease:
                asked += lease.block_count
        document = json.loads(running.stdout.read())
    assert running.returncode == 0
    assert 900 <= document["elapsed_ms"] <= 1000 * LONG_S
    # All of it was asked for and hit while it looked, or little of it before and behind.
    assert 0 < document["blocks_asked_per_s"] <= asked / document["elapsed_ms"] * 1000
    assert document["hit_share"] == 1.0
    (dram,) = [tier for tier in document["tiers"] if tier["kind"] == "dram"]
    assert dram["hit_share"] == 1.0 and dram["used_bytes"] > 0
    assert document["groups"][0]["name"] == "tiny"
    assert document["groups"][0]["hit_share"] == 1.0
    assert document["is_restarted"] is False


def test_without_a_terminal_it_prints_one_picture(daemon, client):
    status, output, errors = run_terrace("top", "--interval", "0.1", "--socket", daemon.socket)
    assert (status, errors) == (0, "")
    assert output.startswith("domain default, terraced ")
    assert "\x1b" not in output
    assert output.count("TIER") == 1
    assert max(map(len, output.splitlines())) <= 80


def test_once_without_a_daemon_says_so(tmp_path):
    status, output, errors = run_terrace("top", "--once", "--socket", tmp_path / "none.sock")
    assert (status, output) == (1, "")
    assert "no daemon" in errors


class Terminal:
    """A shell in a tmux of the test's own."""

    def __init__(self, directory):
        self.server = ["-f", "/dev/null", "-S", str(directory / "tmux")]
        environment = {**os.environ, "PS1": "$ ", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        subprocess.run([TMUX, *self.server, "-u", "new-session", "-d", "-x", "80", "-y", "24",
                        "bash", "--norc", "--noprofile", "-i"], check=True, env=environment)

    def tmux(self, *words):
        return subprocess.run([TMUX, *self.server, *words], check=True, capture_output=True,
                              text=True).stdout

    def type(self, *keys):
        self.tmux("send-keys", *keys)

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def await_screen(self, *texts):
        deadline = time.monotonic() + LONG_S
        while True:
            screen = self.screen()
            if all(text in screen for text in texts):
                return screen
            assert time.monotonic() < deadline, f"no {texts} on the screen:\n{screen}"
            time.sleep(0.05)

    def state(self):
        """Whether the alternate screen is on and the cursor is to be seen."""
        return self.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip()


@pytest.fixture
def terminal(tmp_path):
    if TMUX is None:
        pytest.skip("tmux is not installed (tools/setup installs it)")
    shell = Terminal(tmp_path)
    yield shell
    shell.tmux("kill-server")


def start_top(terminal, daemon):
    command = [str(terrace_path()), "top", "--interval", "0.2", "--socket", daemon.socket]
    terminal.type(shlex.join(command) + "; echo ended with $?", "Enter")
    screen = terminal.await_screen("domain default", "TIER", "HITS/s", "missed")
    assert terminal.state() == "1 0"
    return screen


def expect_terminal_as_before(terminal):
    terminal.await_screen("ended with 0")
    assert terminal.state() == "0 1"
    terminal.type("stty -a | tr ' ;' '\\n\\n' | grep -cxE 'echo|icanon|isig'", "Enter")
    terminal.await_screen("\n3\n")


@pytest.mark.parametrize("key", ["q", "C-c"])
def test_a_key_ends_it_and_the_terminal_is_as_before(daemon, client, terminal, key):
    start_top(terminal, daemon)
    terminal.type(key)
    expect_terminal_as_before(terminal)


def test_it_fits_a_terminal_that_is_resized(daemon, group, terminal):
    store(group, list(range(64)))
    screen = start_top(terminal, daemon)
    assert "GROUP" in terminal.await_screen("tiny")
    assert len(screen.splitlines()) <= 24
    terminal.tmux("resize-window", "-x", "40", "-y", "8")
    time.sleep(1)
    screen = terminal.await_screen("domain default")
    # Drawn anew for its size: the first line is the first, and none is broken into two.
    assert screen.splitlines()[0].startswith("domain default, terraced ")
    assert "GROUP" not in screen
    terminal.tmux("resize-window", "-x", "100", "-y", "40")
    terminal.await_screen("tiny")
    terminal.type("q")
    expect_terminal_as_before(terminal)


def test_it_outlives_the_daemon(daemon, client, terminal):
    start_top(terminal, daemon)
    daemon.kill()
    terminal.await_screen("NO DAEMON", "domain default")
    daemon.start()
    connect(daemon).close()
    deadline = time.monotonic() + LONG_S
    while "NO DAEMON" in terminal.screen():
        assert time.monotonic() < deadline, "it does not see that the daemon is back"
        time.sleep(0.05)
    terminal.await_screen(f"of pid {daemon.process.pid} ", "health ok")
    terminal.type("q")
    expect_terminal_as_before(terminal)


def test_it_begins_without_a_daemon(daemon, client, terminal):
    daemon.kill()
    command = [str(terrace_path()), "top", "--interval", "0.2", "--socket", daemon.socket]
    terminal.type(shlex.join(command) + "; echo ended with $?", "Enter")
    terminal.await_screen("NO DAEMON")
    daemon.start()
    terminal.await_screen("health ok", "TIER")
    terminal.type("q")
    expect_terminal_as_before(terminal)


def test_it_can_be_stopped_and_goes_on(daemon, client, terminal):
    start_top(terminal, daemon)
    terminal.type("C-z")
    terminal.await_screen("Stopped")
    assert terminal.state() == "0 1"
    terminal.type("fg", "Enter")
    terminal.await_screen("TIER", "missed")
    assert terminal.state() == "1 0"
    terminal.type("q")
    deadline = time.monotonic() + LONG_S
    while terminal.state() != "0 1":
        assert time.monotonic() < deadline, "the screen was not given back"
        time.sleep(0.05)
