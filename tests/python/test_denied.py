"""A daemon that may not be reached is one that is not there: whatever keeps a connection from being
made is Unavailable, and says what lets this user in."""
import contextlib
import grp
import os
import pwd
import resource
import socket
import threading
import time

import pytest

import terrace
from conftest import LONG_S, SPACE, connect, kept_out

SPEC = terrace.SpaceGroup("tiny", [SPACE])
VERBS = {"wait_connected": lambda client: client.wait_connected(LONG_S),
         "open": lambda client: client.open(SPEC, timeout_s=LONG_S)}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.mark.parametrize("verb", VERBS)
def test_a_socket_that_may_not_be_opened_is_no_cache(daemon, verb):
    with kept_out(daemon), terrace.Client(daemon.socket) as client:
        user = pwd.getpwuid(os.geteuid()).pw_name
        with pytest.raises(terrace.Unavailable) as raised:
            VERBS[verb](client)
        with pytest.raises(terrace.Gone):  # as without a daemon
            client.stats()
    assert type(raised.value) is terrace.Unreachable  # pylint: disable=unidiomatic-typecheck
    assert isinstance(raised.value, (terrace.IoError, OSError))
    assert raised.value.status == "i/o error"
    group = grp.getgrgid(os.stat(daemon.socket).st_gid).gr_name
    for said in (daemon.socket, "Permission denied", f"User {user} ",
                 f"group is {group}, mode 0000"):
        assert said in str(raised.value)


@needs_root
def test_the_group_that_lets_a_user_in_is_named(daemon):
    users = grp.getgrnam("users")
    with kept_out(daemon, 0o660, users.gr_gid), terrace.Client(daemon.socket) as client:
        with pytest.raises(terrace.Unreachable, match=r"User daemon is not in the socket's group "
                           r"users \(mode 0660\): sudo usermod -aG users daemon, and a new login"):
            client.wait_connected(LONG_S)


@needs_root
def test_a_directory_that_may_not_be_entered_is_named(daemon):
    with kept_out(daemon, directory_mode=0o700), terrace.Client(daemon.socket) as client:
        with pytest.raises(terrace.Unreachable, match="User daemon may not enter the directory of"):
            client.wait_connected(LONG_S)


def test_a_process_without_descriptors_is_told_so(daemon):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 256), limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(terrace.Unavailable) as raised:
            terrace.Client(daemon.socket)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert isinstance(raised.value, terrace.IoError) and "descriptors" in str(raised.value)


def test_who_is_let_in_later_is_connected(daemon):
    with contextlib.ExitStack() as until_let_in:
        until_let_in.enter_context(kept_out(daemon))
        with terrace.Client(daemon.socket) as client:
            with pytest.raises(terrace.Unreachable):
                client.wait_connected(LONG_S)
            until_let_in.close()
            deadline = time.monotonic() + LONG_S
            while not client.is_connected:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            client.wait_connected(LONG_S)


@pytest.mark.parametrize("verb", VERBS)
def test_what_answers_in_another_protocol_is_no_cache(tmp_path, verb):
    """Nobody's business but an operator's: a program goes on."""
    path = str(tmp_path / "s")
    if len(path) > 100:
        pytest.skip("the path is too long for a socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
                peer.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with terrace.Client(path) as client:
            with pytest.raises(terrace.Unavailable) as raised:
                VERBS[verb](client)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LONG_S)
    assert isinstance(raised.value, (terrace.Unsupported, terrace.Gone)), raised.value


def test_what_is_wrong_with_a_call_is_not_of_connecting(daemon):
    """With a connection, and without one."""
    wrong = terrace.SpaceGroup("no name\n", [SPACE])
    with connect(daemon) as client:
        with pytest.raises(terrace.Invalid) as raised:
            client.open(wrong)
        assert not isinstance(raised.value, terrace.Unavailable)
    with kept_out(daemon), terrace.Client(daemon.socket) as client:
        with pytest.raises(terrace.Invalid) as raised:
            client.open(wrong)
        assert not isinstance(raised.value, terrace.Unavailable)
