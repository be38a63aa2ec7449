"""Blocks on their way to DRAM. One thread looks after all that is waited for, so that what a slow
tier brings holds up nothing that is there.

THREADING: WaitingRoom any thread.
"""
import dataclasses
import threading
import time
from typing import Any, Callable, List, Tuple

from .errors import Busy, TerraceError
from .leases import ReadLease
from .threads import Pool

_LOOK_S, _LOOK_S_MAX = 0.001, 0.016


def left_s(deadline: float) -> float:
    """Until then, of the monotonic clock."""
    return max(0.0, deadline - time.monotonic())


@dataclasses.dataclass(eq=False)
class Awaited:
    """Leading blocks of leases, so many of each. go_on: what is done once they have come, will not
    come, or are late; it must not wait."""
    blocks: List[Tuple[ReadLease, int]]
    deadline: float
    go_on: Callable[[], Any]

    @property
    def has_come(self) -> bool:
        """Nothing is to be waited for: all are there, or have been lost with their leases."""
        return all(lease.ready_count >= count or not lease.is_valid
                   for lease, count in self.blocks)

    def is_decided(self, wait_s: float) -> bool:
        """Whether it is known, within so long, what comes of all."""
        until = time.monotonic() + wait_s
        while self.blocks:
            lease, count = self.blocks[-1]
            try:
                lease.wait_ready(count, left_s(until))
            except Busy:
                return False
            except TerraceError:
                pass  # no more will come
            self.blocks.pop()
        return True


class WaitingRoom:
    """See the page."""

    def __init__(self) -> None:
        self._watcher = Pool(1, "terrace-await")
        self._lock = threading.Lock()
        self._awaited: List[Awaited] = []
        self._is_watched = False

    def enter(self, awaited: Awaited) -> bool:
        """False if there is nothing to wait for, and once it is closed: the caller goes on."""
        if awaited.has_come or awaited.deadline <= time.monotonic():
            return False
        with self._lock:
            if self.is_closed:
                return False
            if not self._is_watched:
                try:
                    self._watcher.submit(self._watch)
                except RuntimeError:  # the process ends
                    return False
                self._is_watched = True
            self._awaited.append(awaited)
        return True

    def _watch(self) -> None:
        turn, look_s = 0, _LOOK_S
        while True:
            with self._lock:
                present = list(self._awaited)
                self._is_watched = bool(present)
            if not present:
                return
            # Whoever waits reads what the daemon says of all of them. Each has its turn, as nothing
            # else tells that its blocks will not come.
            turn += 1
            chosen = present[turn % len(present)]
            wait_s = min(look_s, left_s(min(each.deadline for each in present)))
            decided = chosen if chosen.is_decided(wait_s) else None
            now = time.monotonic()
            over = [each for each in present if each is decided or each.has_come
                    or each.deadline <= now or self.is_closed]
            with self._lock:
                self._awaited = [each for each in self._awaited if each not in over]
            for each in over:
                each.go_on()
            # A slow tier needs no look each millisecond, in which the engine has the interpreter.
            look_s = _LOOK_S if over else min(1.25 * look_s, _LOOK_S_MAX)

    @property
    def is_closed(self) -> bool:
        """Nobody waits any more."""
        return self._watcher.is_closed

    def close(self) -> None:
        """All have gone on when it comes back."""
        self._watcher.shutdown()
