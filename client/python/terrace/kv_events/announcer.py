"""What an engine's topic says of blocks, and what has still to be said.

Two tell it: the engine what a block is (facts), the daemon where it is (places). A block is
announced when both are known, in each medium where it is, behind its parent. What is said is
always the difference between what should be and what was said before, so that whatever piles up
while nobody takes it is bounded by the number of blocks.

THREADING: one thread.
LIMITS: blocks_max facts, the oldest are forgotten first, and their blocks taken back; as many
blocks that the daemon tells of and nobody here knows.
"""
import array
from collections import OrderedDict
from typing import (AbstractSet, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple,
                    Union)

from .wire import Event, pack, unpack

PLACES = ("HBM", "CPU", "STORAGE", "REDIS")
# Of what the daemon's own events call a medium where that is another word.
_PLACE_OF_MEDIUM = {"EXTERNAL": "REDIS"}
_TOPIC_SHIFT = len(PLACES)
_PLACES_MASK = (1 << _TOPIC_SHIFT) - 1
_RUN_BLOCKS_MAX = 64
_ROUND_SHIFT = len(PLACES)  # a medium is of a place at least
_MEDIA_MASK = (1 << _ROUND_SHIFT) - 1

Hash = Union[int, bytes]


Adapter = Tuple[str, str]  # of which weights, and its name


class Facts(NamedTuple):
    """What an engine knows of a block. block_hash, parent_hash: as its own events have them.
    parent_name: 0: it begins a prompt. token_ids: u32, little endian. lora_id: as the engine that
    wrote this numbers its adapters. extra_keys: empty: none, where others of its prompt have some.
    """
    block_hash: Hash
    parent_hash: Optional[Hash]
    parent_name: int
    token_ids: bytes
    block_size: int
    lora_id: Optional[int] = None
    lora_name: Optional[str] = None
    extra_keys: Optional[List[Any]] = None
    group_idx: Optional[int] = None
    spec_kind: Optional[str] = None
    weights: str = ""  # which it was computed with: blocks of others are not announced


class Announcer:
    """media: of each place the medium that routers are told; a place without one is not told of."""

    def __init__(self, media: Mapping[str, str], blocks_max: int):
        self._media = tuple(dict.fromkeys(media[place] for place in PLACES if media.get(place)))
        self._blocks_max = blocks_max
        # Of all hosts: as seen from here, elsewhere.
        self._remote = {medium for medium in self._media
                        if all(place == "REDIS" for place in PLACES if media.get(place) == medium)}
        self._media_of = [sum(1 << bit for bit, medium in enumerate(self._media)
                              if any(places >> i & 1 and media.get(place) == medium
                                     for i, place in enumerate(PLACES)))
                          for places in range(1 << len(PLACES))]
        # Plain dictionaries look for their first entry where all were that have gone.
        self._facts: OrderedDict[int, bytes] = OrderedDict()  # packed; the oldest first
        self._places: Dict[int, int] = {}  # of blocks whose facts are known: bits, and the topic
        self._strangers: OrderedDict[int, int] = OrderedDict()  # of others
        # Media bits, none is 0, and the round in which it was told last: those that are to be told
        # again stand in front.
        self._told: OrderedDict[int, int] = OrderedDict()
        self._round = 0
        self._dirty: OrderedDict[int, None] = OrderedDict()
        self._orphans: Dict[int, Dict[int, None]] = {}  # by parent that is not told: who waits
        self._untold: List[Tuple[int, Hash]] = []  # of forgotten blocks: media, still to be said
        self._weights: AbstractSet[str] = frozenset(("",))
        self._lora_ids: Mapping[Adapter, int] = {}

    # ---- what is known ----

    def knows(self, name: int) -> bool:
        """Its facts are here."""
        return name in self._facts

    def learn(self, name: int, facts: Facts) -> Optional[bytes]:
        """The facts, packed, if they are new."""
        if name in self._facts:
            self._facts.move_to_end(name)
            return None
        packed = pack(list(facts))
        self.learn_packed(name, packed)
        return packed

    def learn_packed(self, name: int, packed: bytes) -> None:
        """As a book has them."""
        self._facts.pop(name, None)
        self._facts[name] = packed
        places = self._strangers.pop(name, 0)
        if places:
            self._places[name] = places
            self._dirty[name] = None
        while len(self._facts) > self._blocks_max:
            self._forget(next(iter(self._facts)))

    def _forget(self, name: int) -> None:
        facts = self._facts_of(name)
        if name in self._told:
            self._untold.append((self._told.pop(name) & _MEDIA_MASK, facts.block_hash))
        siblings = self._orphans.get(facts.parent_name, {})
        siblings.pop(name, None)
        if not siblings:
            self._orphans.pop(facts.parent_name, None)
        self._places.pop(name, None)
        self._dirty.pop(name, None)
        del self._facts[name]

    def use(self, weights: AbstractSet[str], lora_ids: Mapping[Adapter, int]) -> None:
        """The weights that the engine has: it can use blocks of these, and of no others. lora_ids:
        its own numbers of its adapters, whoever has written of their blocks; one that has none here
        is told by its name alone."""
        self._lora_ids = lora_ids
        if weights != self._weights:
            self._weights = weights
            for name in list(self._places):  # one by one: in one call no other thread would run
                self._dirty[name] = None

    @property
    def known_count(self) -> int:
        """Blocks whose facts are here."""
        return len(self._facts)

    def packed(self) -> Iterable[Tuple[int, bytes]]:
        """All facts, the oldest first."""
        return self._facts.items()

    # ---- where blocks are ----

    def place(self, names: Iterable[int], topic: int, medium: str, is_there: bool) -> None:
        """The daemon has said so, under that topic of its own."""
        place = _PLACE_OF_MEDIUM.get(medium, medium)
        if place not in PLACES:
            return
        bit = 1 << PLACES.index(place)
        for name in names:
            rows = self._places if name in self._facts else self._strangers
            before = rows.get(name, 0) & _PLACES_MASK
            after = before | bit if is_there else before & ~bit
            if after == before:
                continue
            if rows is self._places:
                self._dirty[name] = None
            if after:
                rows[name] = after | topic << _TOPIC_SHIFT
            else:
                rows.pop(name)
        while len(self._strangers) > self._blocks_max:
            del self._strangers[next(iter(self._strangers))]

    def clear(self, topic: Optional[int] = None) -> None:
        """Nothing is anywhere, of that topic; None: of any."""
        for rows in (self._places, self._strangers):
            gone = [name for name, places in rows.items()
                    if topic is None or places >> _TOPIC_SHIFT == topic]
            for name in gone:
                del rows[name]
                if rows is self._places:
                    self._dirty[name] = None

    # ---- what is said ----

    def tell_again(self) -> None:
        """Behind AllBlocksCleared, which whoever calls this says first: routers count how often a
        block was announced, and forget it when it was taken back as often."""
        self._round += 1

    def _is_again(self, name: int) -> bool:
        """It was told, and not yet in this round."""
        return self._told.get(name, self._round << _ROUND_SHIFT) >> _ROUND_SHIFT != self._round

    @property
    def _next_again(self) -> Optional[int]:
        name = next(iter(self._told), None)
        return name if name is not None and self._is_again(name) else None

    @property
    def has_work(self) -> bool:
        """take() has something."""
        return bool(self._dirty or self._untold) or self._next_again is not None

    @property
    def told_count(self) -> int:
        """Blocks that were announced and not taken back."""
        return len(self._told)

    def take(self, blocks_max: int) -> List[Event]:
        """The next events, of some blocks_max blocks."""
        runs = _Runs(self._media, self._remote)
        while self._untold:
            bits, block_hash = self._untold.pop()
            runs.removed(bits, block_hash)
        while self._dirty and runs.count < blocks_max:
            name = next(iter(self._dirty))
            del self._dirty[name]
            self._tell(name, runs)
        while runs.count < blocks_max and (again := self._next_again) is not None:
            self._tell_once_more(again, runs)
        return runs.events

    def _facts_of(self, name: int) -> Facts:
        facts = Facts(*unpack(self._facts[name]))
        if facts.lora_name is None:
            return facts
        return facts._replace(lora_id=self._lora_ids.get((facts.weights, facts.lora_name)))

    def _tell(self, name: int, runs: "_Runs") -> None:
        """What of the block has changed; a block that was not told behind its parent."""
        before = self._told.get(name, 0) & _MEDIA_MASK
        after = self._media_of[self._places.get(name, 0) & _PLACES_MASK]
        if before == after == 0 or name not in self._facts:
            return
        facts = self._facts_of(name)
        after = after if facts.weights in self._weights else 0
        if before == after:
            return
        if before == 0 and facts.parent_name and facts.parent_name not in self._told:
            self._orphans.setdefault(facts.parent_name, {})[name] = None
            return
        self._tell_once_more(name if self._is_again(name) else facts.parent_name, runs)
        runs.removed(before & ~after, facts.block_hash)
        runs.stored(after & ~before, name, facts)
        if after:
            self._told[name] = after | self._round << _ROUND_SHIFT
        else:
            del self._told[name]
        if before == 0:
            self._dirty.update(self._orphans.pop(name, {}))

    def _tell_once_more(self, name: int, runs: "_Runs") -> None:
        """A block that is to be told again, behind those before it that are, too."""
        chain = []
        while self._is_again(name):
            self._told[name] = self._told[name] & _MEDIA_MASK | self._round << _ROUND_SHIFT
            self._told.move_to_end(name)
            facts = self._facts_of(name)
            chain.append((name, facts))
            name = facts.parent_name
        for name, facts in reversed(chain):
            runs.stored(self._told[name] & _MEDIA_MASK, name, facts)


class _Runs:
    """Events in order; blocks that follow each other in one medium are one."""

    def __init__(self, media: Tuple[str, ...], remote: AbstractSet[str]):
        self.events: List[Event] = []
        self.count = 0
        self._media = media
        self._remote = remote
        self._open: Dict[int, Tuple[Event, int, Tuple[Any, ...]]] = {}
        self._removals: Dict[int, Event] = {}

    def stored(self, bits: int, name: int, facts: Facts) -> None:
        """In each of these media."""
        for bit, medium in enumerate(self._media):
            if bits >> bit & 1:
                self._removals.pop(bit, None)
                self._add(bit, medium, name, facts)
                self.count += 1

    def _add(self, bit: int, medium: str, name: int, facts: Facts) -> None:
        alike = facts[4:7] + facts[8:10] + (facts.extra_keys is None,)
        tokens = array.array("I", facts.token_ids).tolist()
        if bit in self._open:
            event, last, of_run = self._open[bit]
            if (last == facts.parent_name and of_run == alike
                    and len(event["block_hashes"]) < _RUN_BLOCKS_MAX):
                event["block_hashes"].append(facts.block_hash)
                event["token_ids"] += tokens
                if facts.extra_keys is not None:
                    event["extra_keys"].append(facts.extra_keys or None)
                self._open[bit] = event, name, of_run
                return
        event = {"type": "BlockStored", "block_hashes": [facts.block_hash],
                 "parent_block_hash": facts.parent_hash, "token_ids": tokens,
                 "block_size": facts.block_size, "lora_id": facts.lora_id, "medium": medium,
                 "lora_name": facts.lora_name, "locality": self._locality_of(medium)}
        if facts.extra_keys is not None:
            event["extra_keys"] = [facts.extra_keys or None]
        if facts.group_idx is not None:
            event.update(group_idx=facts.group_idx, kv_cache_spec_kind=facts.spec_kind)
        self.events.append(event)
        self._open[bit] = event, name, alike

    def _locality_of(self, medium: str) -> str:
        return "REMOTE" if medium in self._remote else "LOCAL"

    def removed(self, bits: int, block_hash: Hash) -> None:
        """From each of these media."""
        for bit, medium in enumerate(self._media):
            if not bits >> bit & 1:
                continue
            self._open.pop(bit, None)
            self.count += 1
            if bit not in self._removals:
                self._removals[bit] = {"type": "BlockRemoved", "block_hashes": [],
                                       "medium": medium, "locality": self._locality_of(medium)}
                self.events.append(self._removals[bit])
            self._removals[bit]["block_hashes"].append(block_hash)
