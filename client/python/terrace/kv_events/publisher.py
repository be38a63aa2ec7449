"""An engine's own topic: a socket that routers subscribe to, and one where they ask for what they
missed, as vLLM's. Who subscribes anew, or asks for more than is kept, has everything told again.

THREADING: one thread.
LIMITS: kept_max messages and kept_bytes_max bytes are kept; of a subscriber that does not read
ZeroMQ drops what comes; peers_max answers are under way, and one that nobody reads is given up.
Who is connected over TCP is bounded by peers.py.
"""
import collections
import time
from typing import Any, Callable, Deque, Dict, Optional, Sequence, Tuple

import zmq

from .peers import PeerGuard
from .wire import CLEARED, END_OF_REPLAY, Event, batch

_TELL_AGAIN_EVERY_S, _TELL_AGAIN_EVERY_S_MAX = 5.0, 60.0
_STALLED_MS_MIN, _STALLED_MS_MAX = 2, 20
_REQUEST_BYTES_MAX = 4096
_REQUESTS_A_TURN = 64
_ANSWERS_A_TURN = 256
_UNREAD_S_MAX = 10.0


class _Answer:
    """To one peer. number: of the message that it gets next."""

    def __init__(self, number: int, now: float):
        self.number = number
        self.waits_since = now
        self.is_begun = False


class Publisher:
    """See the page. rank: data parallel, in each message."""

    def __init__(self, context: Any, endpoint: str, replay_endpoint: Optional[str], topic: str, *,
                 rank: int = 0, kept_max: int = 10_000, kept_bytes_max: int = 64 << 20,
                 peers_max: int = 64, clock: Callable[[], float] = time.monotonic):
        self._topic = topic.encode()
        self._rank = rank
        self._kept: Deque[bytes] = collections.deque()
        self._kept_bytes = 0
        self._kept_max, self._kept_bytes_max = kept_max, kept_bytes_max
        self._peers_max = peers_max
        self._clock = clock
        # Numbers of another start are never taken for the next ones.
        self._next = int(time.time() * 1e6)
        self._answers: Dict[bytes, _Answer] = {}
        self._wanted_at: Optional[float] = None  # that all is told again
        self._told_again_at = -_TELL_AGAIN_EVERY_S
        self._pause_s = _TELL_AGAIN_EVERY_S  # until all is told again once more
        self._has_sent = False  # of answers, in the latest turn
        self._stalled_ms = _STALLED_MS_MIN
        self.messages, self.replays, self.replays_refused = 0, 0, 0
        self._events = context.socket(zmq.XPUB)
        self._events.setsockopt(zmq.XPUB_VERBOSE, 1)  # each that comes is heard of
        self._events.setsockopt(zmq.SNDHWM, 16_384)
        self._events.setsockopt(zmq.RCVHWM, 64)
        self._replay = None if replay_endpoint is None else context.socket(zmq.ROUTER)
        for socket in self.sockets:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, _REQUEST_BYTES_MAX)
        self._guard = PeerGuard(dict(zip(("endpoint", "replay_endpoint"), self.sockets)))
        try:
            self._events.bind(endpoint)
            if self._replay is not None:
                self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)
                self._replay.setsockopt(zmq.SNDHWM, 64)
                self._replay.setsockopt(zmq.RCVHWM, 64)
                self._replay.bind(replay_endpoint)
        except BaseException:
            self.close()
            raise
        self.send([CLEARED])  # whatever another start has told

    @property
    def sockets(self) -> Tuple[Any, ...]:
        """Whoever waits for something to happen polls them."""
        return (self._events,) if self._replay is None else (self._events, self._replay)

    @property
    def peers_ended(self) -> int:
        """Connections that were ended for a limit, or for reading nothing."""
        return self._guard.ended_count

    @property
    def wait_ms(self) -> Optional[int]:
        """How soon a turn is wanted, whatever the sockets say: 0 while answers go, later while
        nobody reads them; None: there are none."""
        if not self._answers:
            return None
        return 0 if self._has_sent else self._stalled_ms

    def send(self, events: Sequence[Event]) -> None:
        """A message with the next number."""
        payload = batch(events, self._rank)
        self._kept.append(payload)
        self._kept_bytes += len(payload)
        while len(self._kept) > self._kept_max or self._kept_bytes > self._kept_bytes_max:
            self._kept_bytes -= len(self._kept.popleft())
        number = self._next.to_bytes(8, "big")
        self._next += 1
        self.messages += 1
        self._events.send_multipart([self._topic, number, payload])

    def turn(self) -> bool:
        """Serves who asks. True: everything has to be told again, behind AllBlocksCleared."""
        for _ in range(_REQUESTS_A_TURN):
            if not self._events.poll(0):
                break
            asked = self._events.recv()
            if asked[:1] == b"\x01" and self._topic.startswith(asked[1:]):
                self._want_all()
        if self._replay is not None:
            self._take_requests()
            self._send_answers()
        return self._is_time_to_tell_all()

    def _want_all(self) -> None:
        if self._wanted_at is None:
            self._wanted_at = self._clock()

    def _is_time_to_tell_all(self) -> bool:
        """Where some come again and again, each pause is twice the last one, until nobody comes
        within one: as the daemon's own events have it."""
        now = self._clock()
        ends_at = self._told_again_at + self._pause_s
        if self._wanted_at is None or now < ends_at:
            return False
        self._pause_s = (min(2 * self._pause_s, _TELL_AGAIN_EVERY_S_MAX)
                         if self._wanted_at < ends_at else _TELL_AGAIN_EVERY_S)
        self._wanted_at, self._told_again_at = None, now
        return True

    def close(self) -> None:
        """Its sockets."""
        self._guard.close()
        for socket in self.sockets:
            socket.close(0)

    # ---- what was missed ----

    @property
    def _first_kept(self) -> int:
        return self._next - len(self._kept)

    def _take_requests(self) -> None:
        assert self._replay is not None
        for _ in range(_REQUESTS_A_TURN):
            if not self._replay.poll(0):
                return
            parts = self._replay.recv_multipart()
            # vLLM's own subscribers send an empty part first, some others do not.
            is_request = (len(parts) in (2, 3) and len(parts[-1]) == 8
                          and (len(parts) == 2 or parts[1] == b""))
            if not is_request or parts[0] in self._answers or len(self._answers) >= self._peers_max:
                self.replays_refused += 1
                continue
            self.replays += 1
            self._answers[parts[0]] = _Answer(int.from_bytes(parts[-1], "big"), self._clock())

    def _send_answers(self) -> None:
        self._has_sent = False
        for peer, answer in list(self._answers.items()):
            for _ in range(_ANSWERS_A_TURN):
                is_last = answer.number >= self._next
                try:
                    self._send_next(peer, answer)
                except zmq.Again:
                    if self._clock() > answer.waits_since + _UNREAD_S_MAX:
                        del self._answers[peer]
                    break
                except zmq.ZMQError:  # it is gone
                    del self._answers[peer]
                    break
                answer.waits_since = self._clock()
                self._has_sent = True
                if is_last:
                    del self._answers[peer]
                    break
        self._stalled_ms = (_STALLED_MS_MIN if self._has_sent
                            else min(2 * self._stalled_ms, _STALLED_MS_MAX))

    def _send_next(self, peer: bytes, answer: _Answer) -> None:
        """A message that is kept, or the end. Where some of what was asked for is not kept any more
        all that was told is taken back first."""
        assert self._replay is not None
        begun = answer.number >= self._first_kept
        if answer.number >= self._next:
            parts = [b"", END_OF_REPLAY, b""]
        elif not begun:
            parts = [self._topic, (self._first_kept - 1).to_bytes(8, "big"),
                     batch([CLEARED], self._rank)]
        else:
            parts = [self._topic, answer.number.to_bytes(8, "big"),
                     self._kept[answer.number - self._first_kept]]
        self._replay.send_multipart([peer, b"", *parts], zmq.NOBLOCK)
        if not begun:
            self._want_all()
            answer.number = self._first_kept
        else:
            answer.number += 1
