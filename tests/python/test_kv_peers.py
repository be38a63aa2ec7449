"""Peers of an engine's own topic that send what no router sends."""
import contextlib
import logging
import os
import socket
import threading

import pytest
import zmq

import terrace.kv_events.peers as peers_module
from terrace.kv_events.publisher import Publisher

from conftest import LONG_S
from zmtp import RawPeer

FLOOD_BYTES = 16 << 20
PART = bytes(2000)
SEND_S = 5


@pytest.fixture(name="published")
def published_fixture():
    """A publisher whose thread works, as the relay's; and its endpoints' ports."""
    context = zmq.Context()
    publisher = Publisher(context, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", "kv@a@b")
    ports = [int(each.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
             for each in publisher.sockets]
    is_ending = threading.Event()

    def run():
        poller = zmq.Poller()
        for each in publisher.sockets:
            poller.register(each, zmq.POLLIN)
        while not is_ending.is_set():
            poller.poll(20)
            if publisher.turn():
                publisher.send([["AllBlocksCleared"]])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield publisher, ports
    is_ending.set()
    thread.join(LONG_S)
    publisher.close()
    context.destroy(0)


def hears(port):
    """Whether a router that comes now is told something."""
    context = zmq.Context()
    router = context.socket(zmq.SUB)
    router.connect(f"tcp://127.0.0.1:{port}")
    router.setsockopt(zmq.SUBSCRIBE, b"kv@")
    is_told = router.poll(LONG_S * 1000) != 0
    context.destroy(0)
    return is_told


def never_ending(peer):
    for _ in range(FLOOD_BYTES // len(PART)):
        peer.send(PART, more=True)


def subscribing(peer):
    for _ in range(FLOOD_BYTES // len(PART)):
        peer.send(b"\x01" + os.urandom(len(PART) - 1))


@pytest.mark.parametrize("which, kind, flood", [
    (0, b"SUB", never_ending), (0, b"SUB", subscribing), (1, b"DEALER", never_ending)])
def test_who_sends_more_than_a_router_is_ended_and_others_are_served(published, caplog, which, kind,
                                                                      flood):
    publisher, ports = published
    caplog.set_level(logging.WARNING)
    peer = RawPeer(socket.socket(), ("127.0.0.1", ports[which]), kind)
    # Who is told that there is no more room asks again and again, later each time, before he learns
    # that there is nobody: what he sends is not what shows that he was ended.
    peer.socket.settimeout(SEND_S)
    with contextlib.suppress(ConnectionError, TimeoutError):
        flood(peer)
    peer.socket.settimeout(LONG_S)
    assert peer.is_hung_up()
    assert publisher.peers_ended == 1
    assert "endpoint was ended: it sent" in caplog.text
    assert hears(ports[0])


def test_one_too_many_is_ended_and_those_who_were_there_stay(published, monkeypatch):
    publisher, ports = published
    guard = publisher._guard  # pylint: disable=protected-access
    monkeypatch.setattr(guard._peers[0], "_peers_max", 4)  # pylint: disable=protected-access
    stay = [RawPeer(socket.socket(), ("127.0.0.1", ports[0]), b"SUB") for _ in range(4)]
    try:
        one_more = RawPeer(socket.socket(), ("127.0.0.1", ports[0]), b"SUB")
        assert one_more.is_hung_up()
    except ConnectionError:
        pass  # before it had said who it is
    assert publisher.peers_ended == 1
    for peer in stay:
        peer.socket.settimeout(0.2)
        assert not peer.is_hung_up()
    stay.pop().socket.close()
    assert hears(ports[0])


def test_who_sends_little_may_stay(published):
    publisher, ports = published
    peer = RawPeer(socket.socket(), ("127.0.0.1", ports[0]), b"SUB")
    for _ in range(peers_module.BYTES_MAX // 2 // len(PART)):
        peer.send(b"\x01kv@" + PART)
    peer.socket.settimeout(0.5)
    assert not peer.is_hung_up() and publisher.peers_ended == 0


def test_an_endpoint_that_is_taken_leaves_no_thread():
    context = zmq.Context()
    first = Publisher(context, "tcp://127.0.0.1:*", None, "kv@a@b")
    endpoint = first.sockets[0].getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(zmq.ZMQError):
        Publisher(context, endpoint, None, "kv@a@b")
    first.close()
    context.destroy(0)
    assert "terrace-kv-peers" not in [thread.name for thread in threading.enumerate()]
