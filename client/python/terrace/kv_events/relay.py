"""The thread that hears the daemon, and speaks for the engine: see the package.

THREADING: learn, take and close are for the engine's thread, and never wait for the other one,
close but a second. A trouble with sockets is tried again, 0.1 to 10 s later; any other ends the
events, with its reason in the log, and the engine serves on.
LIMITS: batches_max batches of facts wait for the thread; of what comes above that nothing is
announced until a request brings it again.
"""
import array
import collections
import contextlib
import dataclasses
import logging
import socket as sockets_of_the_system
import threading
import time
from typing import (AbstractSet, Any, Deque, Dict, Iterable, List, Mapping, NamedTuple, Optional,
                    Tuple)

import zmq

from .. import parameters
from .announcer import Adapter, Announcer, Facts, Hash
from .book import Book
from .feed import Feed
from .publisher import Publisher
from .wire import CLEARED, Event

_TURN_BLOCKS = 512
_AGAIN_BLOCKS = 2048  # in the message that takes all back
_BATCHES_A_TURN = 16
_POLL_MS = 20
_READ_OTHERS_EVERY_S = 1.0
_PAUSE_S, _PAUSE_S_MAX = 0.1, 10.0
_LOCKED_S = 2.0
_BOOK_AGAIN_S = 60.0
_BATCHES_MAX = 4096
_ADAPTERS_MAX = 4096  # whose numbers are kept, the newest
_HANDED_MAX = 256  # events that wait for whoever publishes them
# What routers call the daemon's tiers. HBM is the daemon's copy of a block in a GPU's memory: where
# the engine's own events stand in the same stream, GPU means its own cache.
MEDIA: Mapping[str, str] = {"HBM": "CPU", "CPU": "CPU", "STORAGE": "STORAGE", "REDIS": "EXTERNAL"}


@dataclasses.dataclass(frozen=True)
class RelaySettings:
    """daemon, daemon_replay: the daemon's kv_events.endpoint and replay_endpoint, as seen from
    here. endpoint, replay_endpoint: of this engine's own topic; None: take() hands events to
    whoever publishes them. topic: {host} and {model} are replaced. book: a directory; None: facts
    are known until this process ends. media: of each of the daemon's tiers what routers call it,
    empty: they are not told. blocks_max: facts that are kept."""
    daemon: str
    daemon_replay: str
    endpoint: Optional[str] = None
    replay_endpoint: Optional[str] = None
    topic: str = "kv@{host}@{model}"
    book: Optional[str] = None
    media: Mapping[str, str] = dataclasses.field(default_factory=lambda: MEDIA)
    blocks_max: int = 500_000
    rank: int = 0

    @classmethod
    def of(cls, said: Mapping[str, Any], *, rank: int = 0) -> "RelaySettings":
        """Of an engine's configuration. Raises ValueError, which names what is wrong."""
        if not isinstance(said, Mapping):
            raise ValueError(f"kv_events is {said!r:.80}: it has names and values, as JSON's "
                             "objects do")
        wrong = sorted(set(map(str, said)) - set(_KNOWN))
        if wrong:
            raise ValueError(f"kv_events has no {wrong[0]!r}: there are "
                             f"{', '.join(sorted(_KNOWN))}")
        for name in ("daemon", "daemon_replay"):
            if not said.get(name):
                raise ValueError(f"kv_events.{name} is not set: name the daemon's "
                                 f"kv_events.{'replay_' if 'replay' in name else ''}endpoint")
        ranked = {name: at_rank(said[name], rank) for name in ("endpoint", "replay_endpoint")
                  if isinstance(said.get(name), str) and said[name]}
        return cls(rank=rank, **parameters.read(dict(said, **ranked), _KNOWN, where="kv_events",
                                                logger=logging.getLogger("terrace")))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    value.encode()
    return value


def _endpoint(value: Any, is_bound: bool) -> str:
    kind, _, place = _text(value).partition("://")
    host, _, port = place.rpartition(":")
    is_any = host == "*" or port == "*"
    is_tcp = kind == "tcp" and host != "" and (
        port == "*" or port.isdecimal() and int(port) <= _PORT_MAX)
    if not (kind == "ipc" and place) and not (is_tcp and (is_bound or not is_any)):
        raise ValueError("no endpoint")
    return value


def _media(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError("no names and values")
    media = dict(MEDIA, **{_text(name): _text(medium) for name, medium in value.items()})
    if set(media) != set(MEDIA):
        raise ValueError("no tier")
    return media


def _blocks(value: Any) -> int:
    if parameters.count(value) < 1:
        raise ValueError("no block")
    return parameters.count(value)


_PORT_MAX = 65535
_THERE = "ipc:///path or tcp://host:port, as the daemon's configuration has it, with an address"
_HERE = "ipc:///path or tcp://address:port (* for any address), a port to 65535"
_KNOWN = {
    "daemon": parameters.Parameter("daemon", lambda value: _endpoint(value, False), _THERE),
    "daemon_replay": parameters.Parameter(
        "daemon_replay", lambda value: _endpoint(value, False), _THERE),
    "endpoint": parameters.Parameter(
        "endpoint", lambda value: _endpoint(value, True) if value else None, _HERE),
    "replay_endpoint": parameters.Parameter(
        "replay_endpoint", lambda value: _endpoint(value, True) if value else None, _HERE),
    "topic": parameters.Parameter("topic", _text, "a text"),
    "book": parameters.Parameter(
        "book", lambda value: parameters.path(value) if value else None, "a directory"),
    "media": parameters.Parameter(
        "media", _media, f"of each tier what routers call it, empty: they are not told; there are "
                         f"{', '.join(MEDIA)}"),
    "blocks_max": parameters.Parameter("blocks_max", _blocks, "a number of blocks, one at least"),
}


def at_rank(endpoint: str, rank: int) -> str:
    """As vLLM does: a data parallel rank's port is so much higher."""
    if rank == 0:
        return endpoint
    place, _, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and port.isdigit() and int(port) > 0:
        return f"{place}:{int(port) + rank}"
    return f"{endpoint}_dp{rank}"


class Batch(NamedTuple):
    """Facts of blocks that follow each other. parent: name and hash of the block before them.
    extra_keys: None, or of each block what there is, None: none. lora_id: this engine's own number
    of the adapter, which others know by lora_name."""
    names: List[int]
    hashes: List[Hash]
    parent: Tuple[int, Optional[Hash]]
    token_ids: Any  # of all of them: numbers that fit into u32
    block_size: int
    lora_id: Optional[int] = None
    lora_name: Optional[str] = None
    extra_keys: Optional[List[Any]] = None
    group_idx: Optional[int] = None
    spec_kind: Optional[str] = None
    weights: str = ""

    def facts(self) -> Iterable[Tuple[int, Facts]]:
        """By name."""
        parent_name, parent_hash = self.parent
        for i, (name, block_hash) in enumerate(zip(self.names, self.hashes)):
            tokens = self.token_ids[i * self.block_size:(i + 1) * self.block_size]
            keys = None if self.extra_keys is None else list(self.extra_keys[i] or ())
            yield name, Facts(
                block_hash, parent_hash, parent_name, array.array("I", tokens).tobytes(),
                self.block_size, self.lora_id, self.lora_name, keys, self.group_idx, self.spec_kind,
                self.weights)
            parent_name, parent_hash = name, block_hash


class Relay:
    """Of one engine, whose model the topic names."""

    def __init__(self, settings: RelaySettings, model: str, logger: logging.Logger):
        self._settings = settings
        self._logger = logger
        host = sockets_of_the_system.gethostname()
        self.topic = settings.topic.replace("{host}", host).replace("{model}", model)
        self._announcer = Announcer(settings.media, settings.blocks_max)
        self._book: Optional[Book] = None
        self._book_trouble: Optional[str] = None  # that was said, and is not over
        self._open_book_at = 0.0  # where there is none
        self._learned: Deque[Batch] = collections.deque()
        self._handed: Deque[Event] = collections.deque()
        if settings.endpoint is None:
            self._handed.append(CLEARED)  # whatever another start told; a publisher does so itself
        self._handing = threading.Lock()
        self._is_ending = threading.Event()
        self._tells_again = False
        self._weights: AbstractSet[str] = frozenset(("",))
        self._lora_ids: Mapping[Adapter, int] = {}
        self._read_others_at = 0.0
        self.counters: Dict[str, int] = {"events": 0, "gaps": 0, "dropped_facts": 0, "announced": 0}
        self._thread = threading.Thread(target=self._run, daemon=True, name="terrace-kv-events")
        self._thread.start()

    # ---- the engine's thread ----

    def knows(self, name: int) -> bool:
        """Its facts need not be said again, as far as can be told from here."""
        return self._announcer.knows(name)

    def learn(self, batch: Batch) -> None:
        """Facts; the thread has them soon."""
        if batch.lora_name is not None and batch.lora_id is not None:
            self.number(batch.lora_name, batch.lora_id, batch.weights)
        if len(self._learned) >= _BATCHES_MAX:
            self.counters["dropped_facts"] += len(batch.names)
            return
        self._learned.append(batch)

    def use(self, weights: AbstractSet[str]) -> None:
        """Blocks of these weights are announced, and no others; at first of those named ""."""
        self._weights = frozenset(weights)

    def number(self, lora_name: str, lora_id: int, weights: str = "") -> None:
        """What this engine calls that adapter of these weights: its blocks are announced so,
        whichever engine, or start of this one, has learned of them. Said before `use`."""
        if self._lora_ids.get((weights, lora_name)) != lora_id:
            numbered = dict(self._lora_ids)  # the thread reads the other one
            numbered.pop((weights, lora_name), None)
            while len(numbered) >= _ADAPTERS_MAX:
                del numbered[next(iter(numbered))]
            numbered[weights, lora_name] = lora_id
            self._lora_ids = numbered

    def take(self) -> List[Event]:
        """What is to be published, where there is no endpoint of its own."""
        taken = []
        while self._handed:
            taken.append(self._handed.popleft())
        return taken

    def tell_again(self) -> None:
        """Where there is no endpoint of its own: an AllBlocksCleared is published before what is
        taken from here on. This alone may wait for the thread, some milliseconds."""
        with self._handing:
            self._handed.clear()
            self._tells_again = True

    @property
    def is_on(self) -> bool:
        """The thread works."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread."""
        self._is_ending.set()
        self._thread.join(1.0)

    # ---- the thread ----

    def _run(self) -> None:
        pause_s = _PAUSE_S
        try:
            self._load_book()
            while not self._is_ending.is_set():
                began = time.monotonic()
                try:
                    self._serve()
                except zmq.ZMQError as error:
                    pause_s = _PAUSE_S if time.monotonic() > began + 60 else min(
                        2 * pause_s, _PAUSE_S_MAX)
                    self._logger.warning("terrace: kv events try again in %.1f s: %s (%s)", pause_s,
                                         error, self._endpoints)
                    self._is_ending.wait(pause_s)
        except Exception as error:  # pylint: disable=broad-except
            self._logger.warning("terrace: kv events have ended, and blocks are served on: %s: %s",
                                 type(error).__name__, error)
        finally:
            while self._book is not None and self._learned:  # the next start announces them
                self._take_facts()
            if self._book is not None:
                try:
                    self._book.close()
                except OSError as error:
                    self._end_book("kept", error)

    @property
    def _endpoints(self) -> str:
        said = {name: getattr(self._settings, name)
                for name in ("daemon", "daemon_replay", "endpoint", "replay_endpoint")}
        return ", ".join(f"{name} {value}" for name, value in said.items() if value)

    def _load_book(self) -> None:
        """Waits while this engine's last process still has it."""
        while self._settings.book is not None and not self._is_ending.is_set():
            try:
                self._open_book(self._settings.book)
                return
            except BlockingIOError:
                self._logger.warning("terrace: another process has the topic %s, and its book in "
                                     "%s: each engine needs its own", self._owner,
                                     self._settings.book)
                self._is_ending.wait(_LOCKED_S)
            except OSError as error:
                self._end_book("opened", error)
                return

    @property
    def _owner(self) -> str:
        rank = self._settings.rank
        return self.topic if rank == 0 else f"{self.topic}@dp{rank}"

    def _open_book(self, directory: str) -> None:
        """It has what is known by now, and was not known when it was written last."""
        book, known = Book(directory, self._owner), dict(self._announcer.packed())
        try:
            for name, facts in book.load():
                if known.pop(name, None) is None:
                    self._announcer.learn_packed(name, facts)
            for name, facts in known.items():
                book.add(name, facts)
        except OSError:
            with contextlib.suppress(OSError):
                book.close()
            raise
        self._book = book

    def _open_again(self, directory: str) -> None:
        try:
            self._open_book(directory)
        except OSError as error:
            self._end_book("opened", error)

    def _serve(self) -> None:
        """Until the end, or a trouble with sockets."""
        context = zmq.Context()
        feed: Optional[Feed] = None
        publisher: Optional[Publisher] = None
        try:
            feed = Feed(context, self._settings.daemon, self._settings.daemon_replay)
            if self._settings.endpoint is not None:
                publisher = Publisher(context, self._settings.endpoint,
                                      self._settings.replay_endpoint, self.topic,
                                      rank=self._settings.rank)
            self._announcer.clear()
            if publisher is not None:  # it has taken back all that was told
                self._announcer.tell_again()
            poller, askers = zmq.Poller(), 0
            while not self._is_ending.is_set():
                wait_ms = self._turn(feed, publisher)
                if askers != feed.askers:
                    poller, askers = zmq.Poller(), feed.askers
                    for each in (*feed.sockets, *(publisher.sockets if publisher else ())):
                        poller.register(each, zmq.POLLIN)
                poller.poll(wait_ms)
        finally:
            for owner in (feed, publisher):
                if owner is not None:
                    owner.close()
            context.destroy(0)

    def _turn(self, feed: Feed, publisher: Optional[Publisher]) -> int:
        """Milliseconds until the next turn, unless something comes; 0: there is more to do."""
        self._take_facts()
        weights = self._weights  # before the numbers, which are there by then
        self._announcer.use(weights, self._lora_ids)
        for change in feed.turn():
            if change.kind == "cleared":
                self._announcer.clear(change.topic)
            else:
                assert change.topic is not None
                self._announcer.place(change.names, change.topic, change.medium,
                                      change.kind == "stored")
        begun_anew = publisher is not None and (publisher.turn() or self._tells_again)
        if begun_anew:
            self._tells_again = False
            self._announcer.tell_again()
        self.counters.update(gaps=feed.gaps, announced=self._announcer.told_count)
        if publisher is not None:
            self.counters["peers_ended"] = publisher.peers_ended
        if publisher is None:
            return 0 if self._hand_over() else _POLL_MS
        # In one message: so nobody's view is empty for a moment.
        events = self._announcer.take(_AGAIN_BLOCKS if begun_anew else _TURN_BLOCKS)
        if begun_anew:
            events.insert(0, CLEARED)
        if events:
            publisher.send(events)
            self.counters["events"] += len(events)
        if self._announcer.has_work:
            return 0
        return _POLL_MS if publisher.wait_ms is None else min(publisher.wait_ms, _POLL_MS)

    def _hand_over(self) -> bool:
        """No more than somebody takes."""
        with self._handing:
            if self._tells_again:
                self._tells_again = False
                self._announcer.tell_again()
            if len(self._handed) < _HANDED_MAX:
                events = self._announcer.take(_TURN_BLOCKS)
                self._handed.extend(events)
                self.counters["events"] += len(events)
        return self._announcer.has_work and len(self._handed) < _HANDED_MAX

    def _take_facts(self) -> None:
        for _ in range(_BATCHES_A_TURN):
            if not self._learned:
                break
            for name, facts in self._learned.popleft().facts():
                packed = self._announcer.learn(name, facts)
                if packed is not None:
                    self._note(name, packed)
        now = time.monotonic()
        if self._book is None and self._settings.book is not None and now >= self._open_book_at:
            self._open_again(self._settings.book)
        if self._book is None or now < self._read_others_at:
            return
        self._read_others_at = now + _READ_OTHERS_EVERY_S
        try:
            for name, packed in self._book.read_others():
                if not self._announcer.knows(name):
                    self._announcer.learn_packed(name, packed)
            self._book.flush(self._announcer.packed(), self._announcer.known_count)
        except OSError as error:
            self._end_book("kept", error)
            return
        if self._book_trouble is not None:
            self._logger.info("terrace: the book of kv events in %s is kept again",
                              self._settings.book)
            self._book_trouble = None

    def _note(self, name: int, packed: bytes) -> None:
        if self._book is None:
            return
        try:
            self._book.add(name, packed)
        except OSError as error:
            self._end_book("kept", error)

    def _end_book(self, what: str, error: OSError) -> None:
        """A full disk, or a directory of somebody else's, is no reason to tell routers nothing.
        what: cannot be done. Said once."""
        if self._book_trouble != str(error):
            self._book_trouble = str(error)
            self._logger.warning(
                "terrace: the book of kv events in %s cannot be %s: %s. Events go on without it, "
                "and it is tried again every %.0f s. What is learned until then is announced after "
                "a restart as requests bring it: have the directory be this user's, on a disk that "
                "has room", self._settings.book, what, error, _BOOK_AGAIN_S)
        self._open_book_at = time.monotonic() + _BOOK_AGAIN_S
        book, self._book = self._book, None
        if book is not None:
            with contextlib.suppress(OSError):
                book.close()
