"""Loads of LMCache's: objects on their way to its memory, and the leases under which they come."""
from typing import Any, Callable, List, NamedTuple, Set, Tuple

import numpy

from ..buffers import Addresses
from ..errors import Unavailable
from ..leases import ReadLease
from ..threads import LentMemory


class _Part(NamedTuple):
    """Successive blocks of a lease: what they are to the task, and where they are wanted."""
    lease: ReadLease
    first: int
    indexes: List[int]
    addresses: Any
    leave: Callable[[], None]


class Loading:
    """Of one task. memory: LMCache's, in which all addresses are. deadline: what has not come by
    then is lost. THREADING: one thread at a time."""

    def __init__(self, memory: LentMemory, deadline: float):
        self.deadline = deadline
        self._memory = memory
        self._parts: List[_Part] = []

    def add(self, lease: ReadLease, first: int, indexes: List[int], addresses: Any,
            leave: Callable[[], None]) -> None:
        """The lease's blocks from `first` on, one an index. leave: once they are not needed."""
        self._parts.append(_Part(lease, first, indexes, addresses, leave))

    @property
    def blocks(self) -> List[Tuple[ReadLease, int]]:
        """What it waits for: of each lease so many leading ones."""
        return [(part.lease, part.first + len(part.indexes)) for part in self._parts]

    def finish(self) -> Set[int]:
        """Copies what has come; indexes of objects whose bytes are right. The daemon is not asked.
        """
        loaded: Set[int] = set()
        try:
            for part in self._parts:
                loaded.update(part.indexes[:self._copy(part)])
        finally:
            self.leave()
        return loaded

    def _copy(self, part: _Part) -> int:
        count = min(len(part.indexes), max(0, part.lease.ready_count - part.first))
        if count == 0:
            return 0
        try:
            with self._memory.used():
                part.lease.copy_into(Addresses(numpy.ascontiguousarray(part.addresses[:count])),
                                     first_block=part.first, block_count=count)
        except Unavailable:
            return 0
        return count

    def leave(self) -> None:
        """Nothing of it is needed any more."""
        parts, self._parts = self._parts, []
        for part in parts:
            part.leave()
