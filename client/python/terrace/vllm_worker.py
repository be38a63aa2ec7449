"""A worker's half of the vLLM connector: copies between vLLM's KV cache and leased slots.

Stores run where they are asked for, before the step's forward pass; loads run on threads, into
blocks that nobody else touches until they have been reported.
"""
import concurrent.futures
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .calls import Token
from .client import Group
from .errors import Busy, TerraceError, Unavailable
from .pages import Pages
from .vllm_messages import NO_BLOCK, Load, Store

_THREADS = 2


class WorkerHalf:
    """See the page. Of each KV cache group: its pages; members, this worker's place in the
    SpaceGroup, None where its stage has no layer; writes, whether it is this worker who stores."""

    def __init__(self, group: Group, pages: Sequence[Pages], *, members: Sequence[Optional[int]],
                 writes: Sequence[bool], timeout_s: float = 0.05, load_timeout_s: float = 10.0):
        self.group = group
        self.pages = pages
        self.members = members
        self.writes = writes
        self.timeout_s = timeout_s
        self.load_timeout_s = load_timeout_s
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "terrace-load")
        self._lock = threading.Lock()
        self._loaded: Set[str] = set()
        self._failed: Set[str] = set()
        self._bad_blocks: Set[int] = set()
        self._reports: Dict[int, int] = {}

    # ---- stores ----

    def store(self, stores: Sequence[Store]) -> None:
        """Copies and commits this worker's share of each. The step waits: not twice for a daemon
        that does not answer."""
        is_stuck = False
        for store in stores:
            try:
                if any(self.writes) and not is_stuck:
                    self._store(store)
            except Busy:
                is_stuck = True
            except Unavailable:
                pass  # it will be missed, not wrong
            finally:
                self._reports[store.number] = 1

    def _store(self, store: Store) -> None:
        ours = [(pages, member, block_ids) for pages, member, is_ours, block_ids
                in zip(self.pages, self.members, self.writes, store.block_ids) if is_ours]
        mask = sum(1 << member for _, member, _ in ours)
        with self.group.join_write(Token(*store.token), mask) as lease:
            reserved = lease.reserved
            for pages, member, block_ids in ours:
                there = [i for i in reserved if block_ids[i] != NO_BLOCK]
                for first, count in _ranges(there):
                    lease.write(pages.addresses(block_ids[first:first + count]), first_key=first,
                                key_count=count, member=member)
                for index in set(reserved).difference(there):
                    lease.mark_absent(index, member)
            lease.commit(self.timeout_s)

    def take_reports(self) -> Dict[int, int]:
        """Stores this worker is through with since the last call."""
        reports, self._reports = self._reports, {}
        return reports

    # ---- loads ----

    def load(self, loads: Sequence[Load]) -> None:
        """Begins them; every one is reported by take_loaded, whatever becomes of it."""
        deadline = time.monotonic() + self.load_timeout_s  # of waiting for a thread, too
        for load in loads:
            self._threads.submit(self._load, load, deadline)

    def _load(self, load: Load, deadline: float) -> None:
        good_count = 0
        try:
            good_count = self._copy(load, max(0.0, deadline - time.monotonic()))
        except TerraceError:
            pass
        finally:
            bad_blocks = blocks_of(load, good_count)
            with self._lock:
                self._bad_blocks.update(bad_blocks)
                self._loaded.add(load.request_id)
                if bad_blocks:
                    self._failed.add(load.request_id)

    def _copy(self, load: Load, wait_s: float) -> int:
        """How many blocks are in place and right."""
        count = len(load.block_ids[0])
        ours = [(pages, member, block_ids) for pages, member, block_ids
                in zip(self.pages, self.members, load.block_ids) if member is not None]
        if not ours:
            return count  # all of it is other stages'
        mask = sum(1 << member for _, member, _ in ours)
        with self.group.join_read(Token(*load.token), mask) as lease:
            try:
                lease.wait_ready(count, wait_s)
            except Unavailable:
                count = min(count, lease.ready_count)
            for pages, member, block_ids in ours:
                wanted = [i for i in range(count) if block_ids[i] != NO_BLOCK]
                for first, length in _ranges(wanted):
                    lease.copy_into(pages.addresses(block_ids[first:first + length]),
                                    first_block=first, block_count=length, member=member)
        return count

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
        """Waits for the loads on their way: they write into vLLM's memory."""
        self._threads.shutdown(wait=True)


def blocks_of(load: Load, first: int = 0) -> Set[int]:
    """Blocks it fills, from the lease's block `first` on."""
    return {b for block_ids in load.block_ids for b in block_ids[first:] if b != NO_BLOCK}


def _ranges(indexes: Sequence[int]) -> List[List[int]]:
    """[first, count] of every run of successive indexes."""
    found: List[List[int]] = []
    for index in indexes:
        if found and sum(found[-1]) == index:
            found[-1][1] += 1
        else:
            found.append([index, 1])
    return found


def describe(value: Any) -> str:
    """For a layout's name: torch's prefix says nothing."""
    return str(value).replace("torch.", "")
