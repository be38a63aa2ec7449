"""A worker's half of the vLLM connector: copies between vLLM's KV cache and leased slots.

Stores begin where they are asked for, before the step's forward pass, and are committed when their
copies have ended: at once where the step itself makes them, else on a thread, some steps later.
Those of a LoRA adapter are when it is known, too, that its files are what they were.
Loads run on threads, into blocks that nobody else touches until they have been reported; those
whose blocks are still on their way wait aside.
"""
import concurrent.futures
import dataclasses
import functools
import logging
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ..calls import Token
from ..errors import Busy, TerraceError, Unavailable
from ..group import Group
from ..leases import ReadLease, WriteLease
from ..paged import Copy
from ..threads import Pool
from ..waiting import Awaited, WaitingRoom
from .kv_memory import KvMemory
from .looks import Look, Looks
from .messages import MARKER_BYTES, NO_BLOCK, Load, Share, Step, Store

logger = logging.getLogger("vllm.terrace")
_LOAD_THREADS = 2
IDLE_WAIT_S = 0.001  # what vLLM's own loop sleeps after a step that computed nothing
# On their way; further ones are dropped. A fence may have to wait for all that are.
_STORES_MAX = 1024
_STORE_BYTES_MAX = 512 << 20
_MAKE_PAUSE_S = 5.0  # between two attempts to make what copies
_LOOK_S_MAX = 1.0  # a store waits no longer for what an adapter's files are


class _Storing(NamedTuple):
    """A store whose copies are under way, or the look at its adapter's files."""
    lease: WriteLease
    copies: List[Copy]
    byte_count: int
    look: Optional[Look]

    @property
    def awaits_look(self) -> bool:
        return (self.look is not None and self.look.is_unchanged is None
                and not self.look.is_overdue(_LOOK_S_MAX))

    @property
    def is_sure(self) -> bool:
        return self.look is None or self.look.is_unchanged is True


@dataclasses.dataclass(eq=False)
class _Loading:
    """A load that has begun. free: comes back when whoever had its pages before is through.
    lease: None while it has not been joined, or where none of it is this worker's."""
    load: Load
    began: float
    deadline: float  # blocks that are not there by then are computed
    free: Callable[[], None]
    lease: Optional[ReadLease] = None

    @property
    def block_count(self) -> int:
        return len(self.load.block_ids[0])


class WorkerHalf:
    """See the page. make_copies: what copies, made at the first copy. shares: this worker's places
    in the SpaceGroup. marker: the member of which it writes that a block was
    computed; None: no such is needed, or it is another worker's."""

    def __init__(self, group: Group, make_copies: Callable[[], Any], *,
                 shares: Sequence[Share],
                 timeout_s: float = 0.05, load_timeout_s: float = 10.0, read_flags: int = 0,
                 kv_memory: Optional[KvMemory] = None, marker: Optional[int] = None):
        self.group = group
        self._marker = marker
        self._read_flags = read_flags
        self.shares = shares
        self._stores = any(share.is_ours for share in shares)
        self.timeout_s = timeout_s
        self.load_timeout_s = load_timeout_s
        self._looks = Looks()
        self._make_copies = make_copies
        self._copies: Any = None
        self._next_make = 0.0
        self._kv_memory = kv_memory or KvMemory()
        self._waiting = WaitingRoom()
        self._loaders = Pool(_LOAD_THREADS, "terrace-load")
        self._closer = Pool(1, "terrace-copied")
        self._closing: "Set[concurrent.futures.Future[None]]" = set()
        self._committer = Pool(1, "terrace-store")
        self._storing: Dict[int, _Storing] = {}
        self._lock = threading.Lock()
        self._load_ended = threading.Condition(self._lock)
        self._load_count = 0  # begun, and not ended
        self._loaded: Set[str] = set()
        self._failed: Set[str] = set()
        self._bad_blocks: Set[int] = set()
        self._reports: Set[int] = set()
        self._counters = {"loads": 0, "load_seconds": 0.0, "loaded_bytes": 0, "stored_bytes": 0,
                          "dropped_stores": 0}

    @property
    def counters(self) -> Dict[str, float]:
        """Since the beginning; stats.COUNTERS says what they are."""
        with self._lock:
            return dict(self._counters)

    def _count(self, **more: float) -> None:
        with self._lock:
            for name, amount in more.items():
                self._counters[name] += amount

    def _bytes_of(self, counts: Dict[int, int]) -> int:
        """Of so many blocks of each member."""
        return sum(count * self.group.spec.members[member].block_bytes
                   for member, count in counts.items())

    @property
    def copies(self) -> Any:
        if self._copies is None:
            now = time.monotonic()
            if now < self._next_make:
                raise Unavailable("nothing copies yet")
            self._next_make = now + _MAKE_PAUSE_S
            try:
                self._copies = self._make_copies()
            except Unavailable as error:
                logger.warning("terrace: %s; vLLM serves without the cache, and it is tried again",
                               error)
                raise
        return self._copies

    # ---- stores ----

    def store(self, step: Step) -> None:
        """Begins this worker's share of each, and keeps the engine off the blocks of the step's
        fences. It waits: not twice for a daemon that does not answer."""
        if step.fences is None:
            self.give_up_stores()  # nobody says which blocks are used again
        for number in step.lost:
            if number in self._storing:
                self._end(number, is_good=False)
        is_stuck = False
        for store in step.stores:
            begun = None
            is_dropped = self._stores
            try:
                may_store = self._stores and not self.group.client.is_reader
                if may_store and not is_stuck and self._has_room():
                    begun = self._store(store)
                    is_dropped = False
            except Busy:
                is_stuck = True
            except Unavailable:
                pass  # it will be missed, not wrong
            finally:
                self._count(dropped_stores=int(is_dropped))
                if begun is None:
                    self._report(store.number)
                else:
                    self._storing[store.number] = begun
        for number in step.fences or ():
            if number in self._storing:
                self._fence(number)

    def _has_room(self) -> bool:
        return (len(self._storing) < _STORES_MAX
                and sum(s.byte_count for s in self._storing.values()) < _STORE_BYTES_MAX)

    def _store(self, store: Store) -> Optional[_Storing]:
        """None: it has ended."""
        look = None if store.adapter is None else self._looks.look(store.adapter)
        if look is not None and look.is_overdue(_LOOK_S_MAX):
            raise Unavailable("nobody knows what its adapter's files are")
        ours = [(share.member, store.block_ids[share.group]) for share in self.shares
                if share.is_ours]
        mask = sum(1 << member for member, _ in ours)
        mask |= 0 if self._marker is None else 1 << self._marker
        lease = self.group.join_write(Token(*store.token), mask)
        copies: List[Copy] = []
        is_begun = False
        try:
            reserved = lease.reserved
            if self._marker is not None:
                lease.write(bytes(MARKER_BYTES * len(lease)), member=self._marker)
            counts: Dict[int, int] = {}
            for member, block_ids in ours:
                copies += self.copies.store(lease, member, block_ids, reserved)
                absent = [key for key in reserved if block_ids[key] == NO_BLOCK]
                for key in absent:
                    lease.mark_absent(key, member)
                counts[member] = len(reserved) - len(absent)
            byte_count = self._bytes_of(counts)
            is_begun = bool(copies) or look is not None
            if not is_begun:
                lease.commit(self.timeout_s)
                self._count(stored_bytes=byte_count)
        finally:
            if not is_begun:
                for copy in copies:
                    copy.close()
                lease.abort()
        return _Storing(lease, copies, byte_count, look) if is_begun else None

    @property
    def stores_under_way(self) -> int:
        """Whose copies have not been seen to end."""
        return len(self._storing)

    def _fence(self, number: int) -> None:
        try:
            for copy in self._storing[number].copies:
                self.copies.fence(copy)
        except TerraceError:
            self._end(number, is_good=False)  # its bytes may be the next prompt's by now

    def give_up_stores(self) -> None:
        for number in list(self._storing):
            self._end(number, is_good=False)

    def _end(self, number: int, is_good: bool) -> None:
        until = time.monotonic() + self.load_timeout_s  # waiting for the others counts
        self._closing = {each for each in self._closing if not each.done()}
        self._closing.add(
            self._closer.submit(self._close, number, self._storing.pop(number), is_good, until))

    def _close(self, number: int, storing: _Storing, is_good: bool, until: float) -> None:
        """What was not seen to end is waited for, and not committed."""
        try:
            for copy in storing.copies:
                copy.close()
        finally:
            self._committer.submit(self._commit, number, storing, is_good, until)

    def _commit(self, number: int, storing: _Storing, is_good: bool, until: float) -> None:
        is_dropped = True
        try:
            left_s = until - time.monotonic()
            if is_good and storing.is_sure and left_s > 0:
                storing.lease.commit(left_s)
                self._count(stored_bytes=storing.byte_count)
                is_dropped = False
        except TerraceError:
            pass
        finally:
            self._count(dropped_stores=int(is_dropped))
            storing.lease.abort()
            self._report(number)

    def poll_stores(self) -> None:
        """Has those committed whose copies have ended, if they are sure."""
        for number, storing in list(self._storing.items()):
            try:
                if not all([copy.poll() for copy in storing.copies]) or storing.awaits_look:
                    continue
                is_good = True
            except TerraceError:
                is_good = False
            self._end(number, is_good)

    def end_copies(self) -> None:
        """vLLM takes the memory of its KV caches away: comes back when nothing copies from it. What
        was on its way is committed. Whatever copies is made anew at the next copy."""
        for number, storing in list(self._storing.items()):
            is_good = True
            for copy in storing.copies:
                try:
                    copy.wait(self.load_timeout_s)
                except TerraceError:
                    is_good = False
                copy.close()
            self._end(number, is_good)
        concurrent.futures.wait(self._closing)  # those that were given up before may copy still
        if self._copies is not None:
            self._copies.close()
            self._copies, self._next_make = None, 0.0

    def _report(self, number: int) -> None:
        with self._lock:
            self._reports.add(number)

    def take_reports(self) -> Set[int]:
        """Stores this worker is through with since the last call."""
        with self._lock:
            reports, self._reports = self._reports, set()
            return reports

    # ---- loads ----

    def load(self, loads: Sequence[Load]) -> None:
        """Begins them; every one is reported by take_loaded, whatever becomes of it."""
        began = time.monotonic()  # waiting for a thread counts
        # Of the blocks: whoever had them before is through.
        free = self.copies.mark() if self._kv_memory.is_there else lambda: None
        with self._lock:
            self._load_count += len(loads)
        for load in loads:
            wait_s = self.load_timeout_s if load.wait_s is None else load.wait_s
            loading = _Loading(load, began, began + min(wait_s, self.load_timeout_s), free)
            self._loaders.submit(self._begin_load, loading)

    def _begin_load(self, loading: _Loading) -> None:
        is_lost = True
        try:
            # It waited for a thread: joins of a daemon that hangs take as long as their timeouts.
            if self._waiting.is_closed or loading.deadline <= time.monotonic():
                return
            with self._kv_memory.used():  # a process does not end in the midst of a GPU's wait
                loading.free()
            loading.lease = self._join(loading.load)
            is_lost = False
        except TerraceError:
            return
        finally:
            if is_lost:
                self._end_load(loading, 0)
        blocks = [] if loading.lease is None else [(loading.lease, loading.block_count)]
        if not self._waiting.enter(Awaited(blocks, loading.deadline, functools.partial(
                self._loaders.submit, self._load, loading))):
            self._load(loading)

    def _join(self, load: Load) -> Optional[ReadLease]:
        """None: all of it is other stages'."""
        mask = sum(1 << share.member for share in self.shares)
        if mask == 0:
            return None
        return self.group.join_read(Token(*load.token), mask, flags=self._read_flags)

    def _load(self, loading: _Loading) -> None:
        good_count = 0
        try:
            good_count = self._copy(loading)
        except TerraceError:
            pass
        finally:
            if loading.lease is not None:
                loading.lease.release()
            self._end_load(loading, good_count)

    def _end_load(self, loading: _Loading, good_count: int) -> None:
        load = loading.load
        self._count(loads=1, load_seconds=time.monotonic() - loading.began)
        bad_blocks = blocks_of(load, good_count)
        with self._lock:
            self._bad_blocks.update(bad_blocks)
            self._loaded.add(load.request_id)
            if bad_blocks:
                self._failed.add(load.request_id)
            self._load_count -= 1
            self._load_ended.notify()

    def _copy(self, loading: _Loading) -> int:
        """How many blocks are in place and right."""
        load, lease, count = loading.load, loading.lease, loading.block_count
        if lease is None:
            return count
        try:
            lease.wait_ready(count, 0.0)
        except Unavailable:
            count = min(count, lease.ready_count)
        ours = [(share.member, load.block_ids[share.group]) for share in self.shares]
        with self._kv_memory.used():
            for member, block_ids in ours:
                if count > 0:
                    self.copies.load(lease, member, block_ids[:count], self.load_timeout_s)
        self._count(loaded_bytes=self._bytes_of({
            member: sum(block != NO_BLOCK for block in block_ids[:count])
            for member, block_ids in ours}))
        return count

    def wait_loaded(self) -> None:
        """Until a load has ended, for a moment; not at all if none is under way."""
        with self._load_ended:
            if self._load_count > 0 and not self._loaded:
                self._load_ended.wait(IDLE_WAIT_S)

    def take_loaded(self) -> Tuple[Set[str], Set[str]]:
        """Requests whose load has ended since the last call, and those of them that failed."""
        with self._lock:
            loaded, self._loaded = self._loaded, set()
            failed, self._failed = self._failed, set()
            return loaded, failed

    def take_bad_blocks(self) -> Set[int]:
        """Blocks that a load did not fill, since the last call."""
        with self._lock:
            bad, self._bad_blocks = self._bad_blocks, set()
            return bad

    def close(self) -> None:
        """Waits for the copies on their way: they are vLLM's memory."""
        self._waiting.close()
        self._loaders.shutdown()
        self.give_up_stores()
        self._closer.shutdown()  # it has something for the next one
        self._committer.shutdown()
        self._looks.close()
        if self._copies is not None:
            self._copies.close()


def blocks_of(load: Load, first: int = 0) -> Set[int]:
    """Blocks it fills, from the lease's block `first` on."""
    return {b for block_ids in load.block_ids for b in block_ids[first:] if b != NO_BLOCK}


def describe(value: Any) -> str:
    """For a layout's name: torch's prefix says nothing."""
    return str(value).replace("torch.", "")
