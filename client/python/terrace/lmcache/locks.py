"""Leases that stand for LMCache's locks: an object that was found stays until it is unlocked."""
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence

# Whoever has not unlocked by then has forgotten it. LMCache's own locks last as long.
_LOCK_S_MAX = 300.0


class Held:
    """A read lease, and how many of its blocks are locked. bytes_of: what the bytes are, beside the
    digest. user_count: blocks that loads wait for or copy."""

    def __init__(self, lease: Any, bytes_of: Any, count: int):
        self.lease = lease
        self.bytes_of = bytes_of
        self.locked_count = count
        self.user_count = 0
        self.until = time.monotonic() + _LOCK_S_MAX

    @property
    def is_over(self) -> bool:
        """Nobody has locked it, and nobody reads."""
        return self.locked_count == 0 and self.user_count == 0


class Place(NamedTuple):
    """A locked object: which block of which lease."""
    held: Held
    block: int


class Locks:
    """By digest; an object may be locked several times. Any thread calls it, and none waits."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._places: Dict[bytes, Deque[Place]] = {}

    @property
    def count(self) -> int:
        """Objects that are locked now."""
        return len(self._places)

    def add(self, lease: Any, bytes_of: Any, digests: Sequence[bytes]) -> None:
        """A lease's blocks, in its order."""
        held = Held(lease, bytes_of, len(digests))
        with self._guard:
            for block, digest in enumerate(digests):
                self._places.setdefault(digest, deque()).append(Place(held, block))

    def take(self, digest: bytes, bytes_of: Any) -> Optional[Place]:
        """If these bytes are locked: its lease stays until it is left."""
        with self._guard:
            for place in self._places.get(digest, ()):
                if place.held.bytes_of == bytes_of:
                    place.held.user_count += 1
                    return place
        return None

    def leave(self, held: Held, count: int) -> None:
        """As often as it was taken."""
        with self._guard:
            held.user_count -= count
            is_over = held.is_over
        if is_over:
            held.lease.release()

    def unlock(self, digests: Sequence[bytes]) -> None:
        """Once each; what is not locked is passed over."""
        over: List[Held] = []
        with self._guard:
            for digest in digests:
                places = self._places.get(digest)
                if places is None:
                    continue
                held = places.popleft().held
                if not places:
                    del self._places[digest]
                held.locked_count -= 1
                if held.is_over:
                    over.append(held)
        for held in over:
            held.lease.release()

    def sweep(self, now: float) -> None:
        """Unlocks what nobody has unlocked in time."""
        with self._guard:
            late = [digest for digest, places in self._places.items()
                    for place in places if place.held.until <= now]
        self.unlock(late)  # the first of a digest's places is the oldest

    def close(self) -> None:
        """Unlocks all."""
        self.sweep(float("inf"))
