"""A worker's half of the vLLM connector: copies between vLLM's KV cache and leased slots.

Stores run where they are asked for, before the step's forward pass; loads run on threads, into
blocks that nobody else touches until they have been reported.
"""
import concurrent.futures
import threading
import time
from typing import Any, Dict, List, Sequence, Set

from .client import Group, Token
from .errors import Busy, TerraceError, Unavailable
from .pages import Pages
from .vllm_messages import Load, Store

_THREADS = 2


class WorkerHalf:
    """See the page. member: this worker's place in the SpaceGroup."""

    def __init__(self, group: Group, pages: Pages, *, member: int, is_writer: bool = True,
                 timeout_s: float = 0.05, load_timeout_s: float = 10.0):
        self.group = group
        self.pages = pages
        self.member = member
        self.is_writer = is_writer
        self.timeout_s = timeout_s
        self.load_timeout_s = load_timeout_s
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "terrace-load")
        self._lock = threading.Lock()
        self._loaded: Set[str] = set()
        self._bad_blocks: Set[int] = set()
        self._reports: Dict[int, int] = {}

    # ---- stores ----

    def store(self, stores: Sequence[Store]) -> None:
        """Copies and commits this worker's share of each. The step waits: not twice for a daemon
        that does not answer."""
        is_stuck = False
        for store in stores:
            try:
                if self.is_writer and not is_stuck:
                    self._store(store)
            except Busy:
                is_stuck = True
            except Unavailable:
                pass  # it will be missed, not wrong
            finally:
                self._reports[store.number] = 1

    def _store(self, store: Store) -> None:
        with self.group.join_write(Token(*store.token), 1 << self.member) as lease:
            for first, count in _ranges(lease.reserved):
                block_ids = store.block_ids[first:first + count]
                lease.write(self.pages.addresses(block_ids), first_key=first, key_count=count,
                            member=self.member)
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
            with self._lock:
                self._bad_blocks.update(load.block_ids[good_count:])
                self._loaded.add(load.request_id)

    def _copy(self, load: Load, wait_s: float) -> int:
        """How many blocks are in place and right."""
        count = len(load.block_ids)
        with self.group.join_read(Token(*load.token), 1 << self.member) as lease:
            try:
                lease.wait_ready(count, wait_s)
            except Unavailable:
                count = min(count, lease.ready_count)
            if count > 0:
                lease.copy_into(self.pages.addresses(load.block_ids[:count]), block_count=count,
                                member=self.member)
        return count

    def take_loaded(self) -> Set[str]:
        """Requests whose load has ended since the last call."""
        with self._lock:
            loaded, self._loaded = self._loaded, set()
            return loaded

    def take_bad_blocks(self) -> Set[int]:
        """Blocks that a load did not fill, since the last call."""
        with self._lock:
            bad, self._bad_blocks = self._bad_blocks, set()
            return bad

    def close(self) -> None:
        """Waits for the loads on their way: they write into vLLM's memory."""
        self._threads.shutdown(wait=True)


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
