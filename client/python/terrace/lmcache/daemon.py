"""What the LMCache adapter asks of the daemon: rows of objects, one verb at a time."""
import functools
import hashlib
import logging
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ..buffers import Addresses
from ..errors import Invalid, NoSpace, Unsupported
from ..group import KEYS_FLAT, Group
from ..requests import STORE_TIMEOUT_S
from ..shelf import Shelf
from ..space import Space
from ..threads import LentMemory
from ..waiting import left_s
from .loads import Loading
from .locks import Held, Locks
from .objects import Kind, Layout, Row

# What one reserve takes at most: the arena need not hold a whole batch at once.
_SLICE_BYTES = 256 << 20
_NO_ROOM_PAUSE_S = 0.005
_LAYOUTS_MAX = 64  # of one kind
_SWEEP_S = 10.0
_REFUSED_S = 30.0  # what a daemon takes may change while it runs


class Daemon:
    """Its verbs on rows. Threads of the adapter's own call it, at once.

    said: what decides bytes beside the model, its revision and layouts.
    """

    def __init__(self, shelf: Shelf, *, revision: str, said: str, chunk_tokens: int,
                 timeout_s: float, load_timeout_s: float, logger: logging.Logger):
        self.shelf = shelf
        self._revision = revision
        self._said = said
        self._chunk_tokens = chunk_tokens
        self._timeout_s = timeout_s
        self._store_timeout_s = max(timeout_s, STORE_TIMEOUT_S)
        self._load_timeout_s = load_timeout_s
        self._logger = logger
        self._refused: Dict[Any, float] = {}  # until when nobody asks again
        self._seen: Dict[Kind, Dict[Layout, None]] = {}  # the last one last
        self._seeing = threading.Lock()
        self._next_sweep = time.monotonic() + _SWEEP_S
        self._memory = LentMemory("LMCache's memory")
        self.locks = Locks()

    # ---- layouts ----

    def space(self, kind: Kind, layout: Layout) -> Space:
        """Everything that decides what an object's bytes are."""
        digest = hashlib.sha256(f"{self._said}\0{layout.text}".encode()).hexdigest()
        return Space(model=kind.model, revision=self._revision, dtype=layout.dtypes,
                     layout=f"lmcache-{digest[:32]}", layers=1, kv_heads=1, head_size=1,
                     block_tokens=self._chunk_tokens, part_bytes=(layout.byte_count,),
                     attention_group=kind.object_group)

    def see(self, kind: Kind, layout: Layout) -> None:
        """Objects of that kind have this layout, lately."""
        with self._seeing:
            seen = self._seen.setdefault(kind, {})
            seen.pop(layout, None)
            seen[layout] = None
            while len(seen) > _LAYOUTS_MAX:
                del seen[next(iter(seen))]

    def _layouts(self, kind: Kind, said: Optional[Layout]) -> List[Layout]:
        """Where to look: as LMCache says, then as this process has seen them. What is stored
        through a serde is of another layout than LMCache says."""
        with self._seeing:
            seen = list(reversed(self._seen.get(kind, {})))
        return ([] if said is None else [said]) + [each for each in seen[:2] if each != said]

    def _is_refused(self, kind: Kind, layout: Layout) -> bool:
        return time.monotonic() < self._refused.get((kind, layout), 0.0)

    def _group(self, kind: Kind, layout: Layout, timeout_s: Optional[float] = None
               ) -> Optional[Group]:
        """None, and a word in the log once, where the daemon does not take such objects."""
        if self._is_refused(kind, layout):
            return None
        try:
            return self.shelf.group(self.space(kind, layout), timeout_s)
        except (Invalid, Unsupported) as error:
            is_told = (kind, layout) in self._refused
            self._refused[kind, layout] = time.monotonic() + _REFUSED_S
            if not is_told:
                self._logger.warning("terrace: objects of %s are not served: %s", layout.text,
                                     error)
            return None

    @staticmethod
    def _place(group: Group, row: Row) -> Dict[str, Any]:
        if row.position < 0:
            return {"flags": KEYS_FLAT}
        return {"parent": row.parent_in(group), "first_position": row.position}

    # ---- lookups ----

    def lock(self, row: Row, said: Optional[Layout], found: Set[int]) -> None:
        """Locks what is there, and begins to fetch it from below. Adds to `found` the indexes of
        what it locks, as it does: they are right whatever is raised."""
        self._sweep()
        for layout in self._layouts(row.kind, said):
            left = [i for i, index in enumerate(row.indexes) if index not in found]
            for first, last in _runs(left):
                self.shelf.guarded(functools.partial(
                    self._lock_in, layout, row.part(first, last), found), None)

    def _lock_in(self, layout: Layout, row: Row, found: Set[int]) -> None:
        """Adds to `found` what it locks, as it does."""
        group = self._group(row.kind, layout)
        if group is None:
            return
        count = self._lock_run(group, layout, row, found)
        # Behind a hole: windows of other object groups, and requests that take any chunk.
        if count + 1 < len(row.digests):
            rest = row.part(count + 1, len(row.digests))
            states = group.query(rest.keys(group), self._timeout_s)
            for first, last in _runs([i for i, block in enumerate(states)
                                      if block.state == "sealed"]):
                self._lock_run(group, layout, rest.part(first, last)._replace(position=-1), found)

    def _lock_run(self, group: Group, layout: Layout, row: Row, found: Set[int]) -> int:
        """Of leading objects; how many."""
        lease = group.acquire(row.keys(group), self._timeout_s,
                              load_timeout_s=self._load_timeout_s, **self._place(group, row))
        count = lease.block_count
        if count == 0:
            lease.release()
        else:
            self.locks.add(lease, (layout, row.mask), row.digests[:count])
            found.update(row.indexes[:count])
        return count

    def _sweep(self) -> None:
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_S
            self.locks.sweep(now)

    # ---- loads ----

    def loading(self) -> Loading:
        """A load that begins now: waiting for a thread counts."""
        return Loading(self._memory, time.monotonic() + self._load_timeout_s)

    def begin_load(self, loading: Loading, row: Row, layout: Layout, addresses: Any) -> None:
        """Adds objects to a load, one an address: under their locks, or else under new leases."""
        others: List[int] = []
        for held, blocks, numbers in self._held_runs(row, layout):
            if held is None:
                others += numbers
            else:
                loading.add(held.lease, blocks[0], [row.indexes[i] for i in numbers],
                            addresses[numbers],
                            functools.partial(self.locks.leave, held, len(numbers)))
        for first, last in _runs(others):
            self.shelf.guarded(functools.partial(
                self._acquire_in, loading, row.part(first, last), layout, addresses[first:last]),
                None)

    def _held_runs(self, row: Row, layout: Layout
                   ) -> List[Tuple[Optional[Held], List[int], List[int]]]:
        """Successive blocks of one lease each, with their numbers in the row; None: no lease."""
        runs: List[Tuple[Optional[Held], List[int], List[int]]] = []
        for number, digest in enumerate(row.digests):
            place = self.locks.take(digest, (layout, row.mask))
            held, block = (None, 0) if place is None else place
            if not runs or runs[-1][0] is not held or (
                    held is not None and runs[-1][1][-1] + 1 != block):
                runs.append((held, [], []))
            runs[-1][1].append(block)
            runs[-1][2].append(number)
        return runs

    def _acquire_in(self, loading: Loading, row: Row, layout: Layout, addresses: Any) -> None:
        deadline = loading.deadline
        if left_s(deadline) == 0:
            return
        group = self._group(row.kind, layout, min(self._timeout_s, left_s(deadline)))
        if group is None:
            return
        lease = group.acquire(row.keys(group), min(self._timeout_s, left_s(deadline)),
                              load_timeout_s=left_s(deadline), **self._place(group, row))
        loading.add(lease, 0, row.indexes[:lease.block_count], addresses, lease.release)

    # ---- stores ----

    def store(self, row: Row, layout: Layout, addresses: Any) -> Tuple[Set[int], Set[int]]:
        """Copies the objects that nobody has. Indexes of those that are there now, or about to be
        by somebody else's hand; and of those that were stored here."""
        there: Set[int] = set()
        stored: Set[int] = set()
        if self.shelf.is_reader:
            return there, stored
        deadline = time.monotonic() + self._store_timeout_s
        step = max(1, _SLICE_BYTES // layout.byte_count)
        first, pause_s = 0, _NO_ROOM_PAUSE_S
        while first < len(row.digests):
            last = min(first + step, len(row.digests))
            part = row.part(first, last)
            now, new, is_passed_by = self.shelf.guarded(functools.partial(
                self._write, part, layout, addresses[first:last]), (set(), set(), False))
            there |= now
            stored |= new
            if is_passed_by:
                break  # nor what hangs on it
            if there.issuperset(part.indexes):
                first = last
            elif self._is_refused(row.kind, layout) or not self.shelf.is_there \
                    or time.monotonic() > deadline:
                break
            else:  # there may be room in a moment: memory comes, and is given back
                time.sleep(pause_s)
                pause_s *= 2
        return there, stored

    def _write(self, row: Row, layout: Layout, addresses: Any
               ) -> Tuple[Set[int], Set[int], bool]:
        """As `store`; and whether the rest is less wanted than all that the daemon has."""
        group = self._group(row.kind, layout)
        if group is None:
            return set(), set(), False
        try:
            with group.reserve(row.keys(group), self._store_timeout_s, row.hints,
                               **self._place(group, row)) as lease:
                answers, is_passed_by = lease.statuses, lease.is_passed_by
                ours = {i for i, answer in zip(row.indexes, answers) if answer == "ok"}
                others = {i for i, answer in zip(row.indexes, answers)
                          if answer in ("exists", "busy")}
                if ours:
                    with self._memory.used():
                        lease.write(Addresses(addresses))
                    if lease.commit(self._store_timeout_s) < len(ours):
                        ours = set()
                return ours | others, ours, is_passed_by
        except NoSpace:
            return set(), set(), False

    def erase(self, row: Row) -> None:
        """From every tier, in the layouts that this process knows; a reader's stay."""
        if self.shelf.is_reader:
            return
        for layout in self._layouts(row.kind, None):
            self.shelf.guarded(functools.partial(self._erase_in, layout, row), None)

    def _erase_in(self, layout: Layout, row: Row) -> None:
        group = self._group(row.kind, layout)
        if group is not None:
            group.evict(row.keys(group), timeout_s=self._store_timeout_s)

    def size_of(self, kind: Kind) -> int:
        """Bytes of an object of that kind; 0: none was seen."""
        layouts = self._layouts(kind, None)
        return layouts[0].byte_count if layouts else 0


def _runs(numbers: Sequence[int]) -> List[Tuple[int, int]]:
    """[first, last) of successive numbers."""
    runs: List[Tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
