"""Which stores may still copy from which blocks, and when they have to be through."""
from typing import AbstractSet, Any, Dict, Iterable, List, Sequence, Set

from .messages import NO_BLOCK


class Fences:
    """Of one scheduler. A store is named once: as a fence, behind which the engine waits for it, or
    as lost, where the engine wrote before it could wait.

    hooks_come_first: vLLM calls the connector before it overwrites anything in a step. has_states:
    some KV cache group has states, which vLLM's model runner v2 moves between blocks early, too.
    keeps_blocks: a request that runs gives none of its blocks back.
    """

    def __init__(self, hooks_come_first: bool, has_states: bool, keeps_blocks: bool = True):
        self._hooks_come_first = hooks_come_first
        self._keeps_blocks = keeps_blocks
        self._has_states = has_states
        self._copied_ids: Dict[int, Set[int]] = {}  # by store
        self._fresh: List[Sequence[int]] = []  # blocks that this step, or a load of it, writes to
        self._written: Set[int] = set()  # of those the first _seen_count
        self._seen_count = 0
        self._freed: Set[int] = set()  # stores whose blocks their request has given back
        self._unordered: List[Sequence[int]] = []  # blocks that no fence keeps somebody off
        self.is_any_written = False  # this step a load begins into blocks that nobody has named

    def begin(self, number: int, table: Iterable[Sequence[int]]) -> None:
        """Store `number` copies from these blocks."""
        self._copied_ids[number] = {b for ids in table for b in ids if b != NO_BLOCK}

    def end(self, number: int) -> None:
        """It copies no more."""
        self._copied_ids.pop(number, None)
        self._freed.discard(number)

    def freed(self, number: int) -> None:
        """Its blocks may be given to others."""
        self._freed.add(number)

    def load_beside(self, table: Sequence[Sequence[int]], first: int) -> None:
        """Another connector loads into these from this step on, in its own time: the engine's
        stream does not order its writes. Without any block: into some that were free."""
        if any(table):
            self._unordered += [block_ids[first:] for block_ids in table]
        else:
            self.is_any_written = True

    def spoil(self, block_ids: AbstractSet[int]) -> None:
        """They do not hold what was to be copied from them."""
        self._unordered.append(list(block_ids))

    def write(self, table: Iterable[Sequence[int]], first: int) -> None:
        """This step may write to the blocks of `table`, of each KV cache group, from `first` on."""
        self._fresh += [block_ids[first:] for block_ids in table]

    def written(self) -> Set[int]:
        """Blocks that this step may write to, as far as is known by now."""
        self._written.update(*self._fresh[self._seen_count:])
        self._seen_count = len(self._fresh)
        return self._written

    def take_lost(self, output: Any) -> List[int]:
        """Stores whose blocks vLLM's model runner v2 writes to before it calls any hook: it zeroes
        new ones, copies shared ones, and moves states to their requests' next blocks. And those
        that nothing keeps another connector's load off."""
        early = list(getattr(output, "new_block_ids_to_zero", None) or ())
        early += [copy.dst_block_id
                  for copy in getattr(output, "kv_cache_block_copies", None) or ()]
        self._fresh.append(early)  # also those whose request was preempted in this very step
        written, self._unordered = self._unordered, []
        if not self._hooks_come_first:
            written += self._fresh if self._has_states else [early]
        lost = self._take_copied(written)
        if self.is_any_written:
            lost += self._take([number for number in self._copied_ids
                                if number in self._freed or not self._keeps_blocks])
        return lost

    def take_fences(self) -> List[int]:
        """Stores whose blocks are written to from here on, because vLLM has given them away."""
        fresh, self._fresh = self._fresh, []
        self._written, self._seen_count = set(), 0
        self.is_any_written = False
        return self._take_copied(fresh)

    def _take_copied(self, written: Sequence[Sequence[int]]) -> List[int]:
        if not self._copied_ids:
            return []
        ids: Set[int] = set().union(*written)
        return self._take([number for number, copied in self._copied_ids.items()
                           if not copied.isdisjoint(ids)])

    def _take(self, numbers: List[int]) -> List[int]:
        for number in numbers:
            del self._copied_ids[number]
        return numbers
