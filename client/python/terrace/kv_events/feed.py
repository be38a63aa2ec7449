"""The daemon's own KV events, without a gap: subscribed to, and asked for where some were missed.

Every second it is asked for what came since, mostly nothing: so a loss that nothing follows is
noticed, and a daemon that is gone or hung. What is heard of one that is gone is taken back.

THREADING: one thread.
LIMITS: held_max messages are held while older ones are asked for.
"""
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from .wire import END_OF_REPLAY, events_in

_ASK_EVERY_S = 1.0
_ANSWER_S = 5.0
_MESSAGE_BYTES_MAX = 16 << 20
_MESSAGES_A_TURN = 256


class Change(NamedTuple):
    """kind: stored, removed, cleared. topic: a number for the daemon's topic; None: all of them."""
    kind: str
    topic: Optional[int]
    medium: str = ""
    names: Tuple[int, ...] = ()


class Feed:
    """See the page. endpoint, replay_endpoint: as the daemon's configuration has them, with an
    address in place of a *."""

    def __init__(self, context: Any, endpoint: str, replay_endpoint: str, *,
                 clock: Callable[[], float] = time.monotonic, held_max: int = 16_384):
        self._clock = clock
        self._held_max = held_max
        self._next = 0  # number of the next message; 0: of none yet
        self._asked_at: Optional[float] = None  # and not answered
        self._ask_after = 0.0
        self._held: List[Tuple[bytes, int, bytes]] = []
        self._topics: Dict[bytes, int] = {}
        self._changes: List[Change] = []
        self.is_heard = False  # it has answered, and is not lost
        self.messages, self.gaps = 0, 0
        self._context, self._replay_endpoint = context, replay_endpoint
        self._events = self._socket(zmq.SUB)
        self._events.setsockopt(zmq.SUBSCRIBE, b"")
        self._events.connect(endpoint)
        self.askers = 0
        self._open_asker()

    def _socket(self, kind: int) -> Any:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        return socket

    def _open_asker(self) -> None:
        self._asker = self._socket(zmq.DEALER)
        self._asker.setsockopt(zmq.IMMEDIATE, 1)  # nothing is asked of a daemon that is not there
        self._monitor = self._asker.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._asker.connect(self._replay_endpoint)
        self.askers += 1

    def _close_asker(self) -> None:
        self._asker.disable_monitor()
        for socket in (self._asker, self._monitor):
            socket.close(0)

    @property
    def sockets(self) -> Tuple[Any, ...]:
        """Whoever waits for something to happen polls them; others when `askers` has grown."""
        return self._events, self._asker, self._monitor

    def turn(self) -> List[Change]:
        """What has changed since the last turn, in order."""
        self._look_at_connection()
        self._take_answers()
        self._take_live()
        self._ask_now_and_then()
        changes, self._changes = self._changes, []
        return changes

    def close(self) -> None:
        """Its sockets."""
        self._close_asker()
        self._events.close(0)

    # ---- what comes ----

    def _look_at_connection(self) -> None:
        is_lost = False
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            is_lost = True
        if self._asked_at is not None and self._clock() > self._asked_at + _ANSWER_S:
            is_lost = True
        if is_lost:
            self._lose()

    def _lose(self) -> None:
        """Nobody knows what is there any more."""
        if self._asked_at is not None:
            # An answer does not say to which question: what is still to come of this one goes to
            # nobody, and the next is asked by somebody else.
            self._close_asker()
            self._open_asker()
        if self.is_heard:
            self._changes.append(Change("cleared", None))
        self.is_heard = False
        self._next, self._asked_at, self._held = 0, None, []
        self._ask_after = self._clock() + _ASK_EVERY_S / 10

    def _take_live(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            if not self._events.poll(0):
                return
            parts = self._events.recv_multipart()
            if len(parts) != 3 or len(parts[1]) != 8:
                continue
            topic, number, payload = parts[0], int.from_bytes(parts[1], "big"), parts[2]
            if self._next and number == self._next and self._asked_at is None:
                self._apply(topic, number, payload)
            elif number >= self._next:
                self._hold(topic, number, payload)

    def _hold(self, topic: bytes, number: int, payload: bytes) -> None:
        self._held.append((topic, number, payload))
        if len(self._held) > self._held_max:
            self._held.clear()  # they are asked for, too
        if self._asked_at is None:
            self.gaps += 1
            self._ask()

    def _take_answers(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            if not self._asker.poll(0):
                return
            parts = self._asker.recv_multipart()
            if len(parts) != 4 or self._asked_at is None:
                continue  # nobody has asked
            self._asked_at = self._clock()
            _, topic, number, payload = parts
            if number == END_OF_REPLAY:
                self._end_answer()
            elif int.from_bytes(number, "big") + 1 >= self._next:
                self._apply(topic, int.from_bytes(number, "big"), payload)

    def _end_answer(self) -> None:
        self._asked_at, self.is_heard = None, True
        self._ask_after = self._clock() + _ASK_EVERY_S
        held, self._held = self._held, []
        for index, (topic, number, payload) in enumerate(held):
            if self._next not in (0, number) and number > self._next:
                self._held = held[index:]
                self._ask()
                return
            if number >= self._next:
                self._apply(topic, number, payload)

    def _apply(self, topic: bytes, number: int, payload: bytes) -> None:
        self._next = number + 1
        self.messages += 1
        topic_number = self._topics.setdefault(topic, len(self._topics))
        for event in events_in(payload):
            if event["type"] == "AllBlocksCleared":
                self._changes.append(Change("cleared", topic_number))
            elif event["type"] in ("BlockStored", "BlockRemoved"):
                kind = "stored" if event["type"] == "BlockStored" else "removed"
                self._changes.append(Change(kind, topic_number, event["medium"],
                                            tuple(event["block_hashes"])))

    # ---- what is asked ----

    def _ask_now_and_then(self) -> None:
        if self._asked_at is None and self._clock() >= self._ask_after:
            self._ask()

    def _ask(self) -> None:
        try:
            self._asker.send_multipart([b"", self._next.to_bytes(8, "big")], zmq.NOBLOCK)
            self._asked_at = self._clock()
        except zmq.Again:
            self._ask_after = self._clock() + _ASK_EVERY_S / 10
