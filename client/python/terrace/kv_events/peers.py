"""Who is connected to a socket over TCP. ZeroMQ bounds the parts of what a peer sends, not how many
a message has, and keeps them until the last one is there, and every subscription for as long as the
peer; nor does it bound how many connect. So each connection may send so many bytes in its life,
which are more than routers need, and a bit with each second; one that sends more is shut down, and
so is one too many, and one that takes nothing of what is sent to it. As the daemon does.

A descriptor of ZeroMQ's may be another connection's by the time it is looked at: a copy of it is,
its cookie tells whose it is, and only the copy is shut down.

THREADING: a thread of its own, since a flood of subscriptions keeps ZeroMQ from returning to the
one that has the socket; made and closed by that one.
LIMITS: peers_max connections, of each BYTES_MAX + BYTES_PER_SECOND_MAX, UNREAD_S_MAX.
"""
import contextlib
import dataclasses
import logging
import os
import socket
import struct
import threading
import time
from typing import Any, Callable, Iterator, List, Mapping, Optional

import zmq
import zmq.utils.monitor

BYTES_MAX = 256 << 10
BYTES_PER_SECOND_MAX = 64
UNREAD_S_MAX = 30.0
PEERS_MAX = 128
_BETWEEN_LOOKS_MS = 100
_SAY_EVERY_S = 10.0
_SO_COOKIE = 57
_TCP_INFO_BYTES = 148  # of linux/tcp.h's tcp_info, up to what is not sent
_UNACKED_AT, _ACKED_AT, _NOT_SENT_AT = 24, 120, 144  # bytes received behind bytes acknowledged

logger = logging.getLogger("terrace.kv_events")


@dataclasses.dataclass
class _Traffic:
    received_bytes: int
    taken_bytes: int  # by the other end
    is_sending: bool  # something is on its way there


@dataclasses.dataclass
class _Peer:
    fd: int  # ZeroMQ's
    cookie: bytes
    since: float
    taken_bytes: int
    taken_since: float  # so many; or nothing was on its way


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[Optional[socket.socket]]:
    """A copy of a descriptor that may be anybody's by now; None: it is no socket."""
    copy: Optional[socket.socket] = None
    try:
        number = os.dup(fd)
        try:
            copy = socket.socket(fileno=number)
        except OSError:
            os.close(number)
    except OSError:  # nobody's
        pass
    try:
        yield copy
    finally:
        if copy is not None:
            copy.close()


def _cookie_of(copy: socket.socket) -> bytes:
    """Of no other socket since the host began."""
    return copy.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)


def _traffic_of(copy: socket.socket) -> Optional[_Traffic]:
    """None: it is no TCP connection, or an older kernel's."""
    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _TCP_INFO_BYTES:
        return None
    unacked, = struct.unpack_from("I", info, _UNACKED_AT)
    acked, received = struct.unpack_from("QQ", info, _ACKED_AT)
    not_sent, = struct.unpack_from("I", info, _NOT_SENT_AT)
    return _Traffic(received, acked, unacked > 0 or not_sent > 0)


class PeerGuard:
    """The thread. watched: sockets that are not bound yet, by name."""

    def __init__(self, watched: Mapping[str, Any], *, peers_max: int = PEERS_MAX):
        self._watched = list(watched.values())
        self._peers = [Peers(socket.get_monitor_socket(zmq.EVENT_ACCEPTED), name,
                             peers_max=peers_max) for name, socket in watched.items()]
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="terrace-kv-peers")
        self._thread.start()

    @property
    def ended_count(self) -> int:
        """Connections that were ended."""
        return sum(peers.ended_count for peers in self._peers)

    def close(self) -> None:
        """Before the watched sockets are."""
        self._is_ending.set()
        self._thread.join()
        for socket_ in self._watched:
            socket_.disable_monitor()

    def _run(self) -> None:
        poller = zmq.Poller()
        for peers in self._peers:
            poller.register(peers.news, zmq.POLLIN)
        while not self._is_ending.is_set():
            poller.poll(_BETWEEN_LOOKS_MS)
            for peers in self._peers:
                peers.look()


class Peers:
    """Of one socket. news: its monitor's, of those who connect."""

    def __init__(self, news: Any, name: str, *, peers_max: int = PEERS_MAX,
                 clock: Callable[[], float] = time.monotonic):
        self.news = news
        self._name = name
        self._peers_max = peers_max
        self._clock = clock
        self._peers: List[_Peer] = []
        self._looked_at = self._said_at = float("-inf")
        self._not_said = 0
        self.ended_count = 0

    def look(self) -> None:
        """At them all, if it is time; at once at who has come."""
        now = self._clock()
        while self.news.poll(0):
            event = zmq.utils.monitor.recv_monitor_message(self.news)
            self._take(event["value"], now)
        if now >= self._looked_at + _BETWEEN_LOOKS_MS / 1000:
            self._looked_at = now
            self._look_at_all(now)

    def _take(self, fd: int, now: float) -> None:
        with _borrowed(fd) as copy, contextlib.suppress(OSError):
            if copy is None:
                return
            peer = _Peer(fd, _cookie_of(copy), now, 0, now)
            if len(self._peers) >= self._peers_max:
                self._look_at_all(now)
            if self._is_within_bounds(peer, len(self._peers) >= self._peers_max, now):
                self._peers.append(peer)

    def _look_at_all(self, now: float) -> None:
        self._peers = [peer for peer in self._peers if self._is_within_bounds(peer, False, now)]

    def _is_within_bounds(self, peer: _Peer, is_one_too_many: bool, now: float) -> bool:
        """Else the connection is ended, or has ended."""
        with _borrowed(peer.fd) as copy, contextlib.suppress(OSError):
            if copy is None or _cookie_of(copy) != peer.cookie:
                return False
            traffic = _traffic_of(copy)
            if traffic is None:
                return False
            if not traffic.is_sending or traffic.taken_bytes != peer.taken_bytes:
                peer.taken_bytes, peer.taken_since = traffic.taken_bytes, now
            bytes_max = BYTES_MAX + int(now - peer.since) * BYTES_PER_SECOND_MAX
            if is_one_too_many:
                why = f"more than {self._peers_max} peers"
            elif traffic.received_bytes > bytes_max:
                why = f"it sent {traffic.received_bytes} bytes, and a router {bytes_max} at most"
            elif now > peer.taken_since + UNREAD_S_MAX:
                why = f"it has taken nothing of what is sent to it for {UNREAD_S_MAX:.0f} s"
            else:
                return True
            self._say_end(why, now)
            copy.shutdown(socket.SHUT_RDWR)
        return False

    def _say_end(self, why: str, now: float) -> None:
        self.ended_count += 1
        if now < self._said_at + _SAY_EVERY_S:
            self._not_said += 1
            return
        logger.warning("terrace: a connection to the kv events' %s was ended: %s (%d more since "
                       "the last one that was told of)", self._name, why, self._not_said)
        self._said_at, self._not_said = now, 0
