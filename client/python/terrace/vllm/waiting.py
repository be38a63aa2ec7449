"""Loads whose blocks are on their way to DRAM. One thread looks after all of them, so that what a
slow tier brings holds up nothing that is there.

THREADING: WaitingRoom any thread; a Loading is one thread's at a time.
"""
import dataclasses
import threading
import time
from typing import Any, Callable, List, Optional

from ..errors import Busy, TerraceError
from ..leases import ReadLease
from ..threads import started_pool
from .messages import Load

_LOOK_S, _LOOK_S_MAX = 0.001, 0.016


@dataclasses.dataclass(eq=False)
class Loading:
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

    @property
    def has_come(self) -> bool:
        """Nothing is to be waited for: all are there, or have been lost with the lease."""
        return (self.lease is None or self.lease.ready_count >= self.block_count
                or not self.lease.is_valid)

    def is_decided(self, wait_s: float) -> bool:
        """Whether it is known, within so long, what comes of its blocks."""
        assert self.lease is not None
        try:
            self.lease.wait_ready(self.block_count, wait_s)
        except Busy:
            return False
        except TerraceError:
            pass  # no more will come
        return True


class WaitingRoom:
    """See the page. go_on: what is done with each once its blocks have come, will not come, or are
    late; it must not wait."""

    def __init__(self, go_on: Callable[[Loading], Any]) -> None:
        self._go_on = go_on
        self._watcher = started_pool(1, "terrace-await")
        self._lock = threading.Lock()
        self._loads: List[Loading] = []
        self._is_watched = False
        self._is_closed = False

    def enter(self, loading: Loading) -> bool:
        """False if there is nothing to wait for: the caller goes on with it."""
        if loading.has_come or loading.deadline <= time.monotonic():
            return False
        with self._lock:
            if self._is_closed:
                return False
            self._loads.append(loading)
            if not self._is_watched:
                self._is_watched = True
                self._watcher.submit(self._watch)
        return True

    def _watch(self) -> None:
        turn, look_s = 0, _LOOK_S
        while True:
            with self._lock:
                loads = list(self._loads)
                self._is_watched = bool(loads)
            if not loads:
                return
            # Whoever waits reads what the daemon says of all of them. Each has its turn, as nothing
            # else tells that its blocks will not come.
            turn += 1
            chosen = loads[turn % len(loads)]
            left_s = min(each.deadline for each in loads) - time.monotonic()
            decided = chosen if chosen.is_decided(max(0.0, min(look_s, left_s))) else None
            now = time.monotonic()
            over = [each for each in loads if each is decided or each.has_come
                    or each.deadline <= now or self._is_closed]
            with self._lock:
                self._loads = [each for each in self._loads if each not in over]
            for each in over:
                self._go_on(each)
            # A slow tier needs no look each millisecond, in which the engine has the interpreter.
            look_s = _LOOK_S if over else min(1.25 * look_s, _LOOK_S_MAX)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Nobody waits any more: all have gone on when it comes back."""
        with self._lock:
            self._is_closed = True
        self._watcher.shutdown(wait=True)
