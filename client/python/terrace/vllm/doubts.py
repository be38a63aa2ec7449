"""Blocks of which it is not certain that they hold what their keys say, because another connector
loads into them, or because a load of anybody's did not fill them."""
import itertools
from typing import AbstractSet, Dict, FrozenSet, Iterable, Optional, Sequence, Set

# A vLLM that tells of no step's end has not more than that many under way.
_STEPS_UNDER_WAY_MAX = 64


class Steps:
    """Of one engine: how many were scheduled, and of how many the results have been seen."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    def begin(self) -> None:
        self.begun += 1

    def end(self) -> None:
        self.ended = min(self.ended + 1, self.begun)


class Doubts:
    """Of one scheduler. A load that is part of a step is known to have failed with that step's
    results, and not before."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._loading: Dict[int, int] = {}  # by block the step that its load is part of
        self._unfilled: Set[int] = set()  # and not computed since

    def load(self, block_ids: Iterable[int]) -> None:
        """Somebody else loads into these in the step that is being scheduled, if it did not before.
        """
        for block_id in block_ids:
            if block_id != 0:  # vLLM's null block
                self._loading[block_id] = self._steps.begun

    def written(self, table: Sequence[Sequence[int]], first: int, last: Optional[int] = None
                ) -> None:
        """Blocks [first, last) of `table` are given to somebody else, or computed."""
        if not self._loading and not self._unfilled:
            return  # mostly
        for block_id in itertools.chain(*(block_ids[first:last] for block_ids in table)):
            self._loading.pop(block_id, None)
            self._unfilled.discard(block_id)

    def fail(self, block_ids: AbstractSet[int]) -> None:
        """A load did not fill them."""
        self._unfilled |= block_ids
        for block_id in block_ids:
            self._loading.pop(block_id, None)

    def spoil(self, table: Sequence[Sequence[int]], first: int) -> Set[int]:
        """What was, or is, computed behind such a block is not right, either."""
        block_ids = {b for ids in table for b in ids[first:] if b != 0}
        self.fail(block_ids)
        return block_ids

    def first_unfilled(self, table: Sequence[Sequence[int]]) -> Optional[int]:
        """The place in a request's table from which on nothing in it is right."""
        return first_of(table, self._unfilled)

    def awaited(self, table: Sequence[Sequence[int]], last: int) -> FrozenSet[int]:
        """Those of the first `last` blocks of `table` whose loads may still be told to have failed.
        """
        self._forget_ended()
        if not self._loading:
            return frozenset()
        return frozenset(self._loading.keys() & {b for ids in table for b in ids[:last]})

    def are_awaited(self, block_ids: AbstractSet[int]) -> bool:
        """Whether any of these is still one of those."""
        if not block_ids:
            return False
        self._forget_ended()
        return not self._loading.keys().isdisjoint(block_ids)

    def _forget_ended(self) -> None:
        ended = max(self._steps.ended, self._steps.begun - _STEPS_UNDER_WAY_MAX)
        if self._loading and min(self._loading.values()) <= ended:
            self._loading = {block_id: step for block_id, step in self._loading.items()
                             if step > ended}


def first_of(table: Sequence[Sequence[int]], block_ids: AbstractSet[int]) -> Optional[int]:
    """The first place in a table that has one of them."""
    if not block_ids:
        return None
    return min((i for ids in table for i, block_id in enumerate(ids) if block_id in block_ids),
               default=None)
