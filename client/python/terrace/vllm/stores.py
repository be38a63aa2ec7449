"""Blocks on their way into the store: offered once they are full and computed, reserved, copied by
the workers, through when all workers have said so.

A block whose request ended in one step may be stored in the very next one, and after that until
vLLM gives it to another request: a daemon that answers late loses no store of an engine that is
idle. What vLLM's model runner v2 overwrites before it calls any hook is not stored. Of a KV cache
group with a window, what is stored lacks what had been freed before the step in which it is stored;
of a group of states are stored blocks that have the state after exactly their last token, which
vLLM hands over by id once a step has run.
"""
import dataclasses
import itertools
import time
from typing import AbstractSet, Any, Dict, FrozenSet, Iterable, List, NamedTuple

from ..calls import Hints
from ..requests import Pending
from .adapters import Adapters
from .doubts import Doubts, first_of
from .drafts import Drafts
from .endings import Endings
from .fences import Fences
from .hints import EngineHints
from .messages import NO_BLOCK, Store
from .questions import Questions
from .tables import CacheGroups, Table
from .tracked import RETRY_PAUSE_S, Tracked

# Of an answer, that many tokens are stored at once: a store costs a step some hundred microseconds
# whatever its size, and with many requests some block of an answer fills in every step.
_ANSWER_TOKENS = 256
_RETRY_PAUSE_S_MAX = 1.0


@dataclasses.dataclass
class _Storing:
    """Blocks that the daemon has been asked for room for."""
    reserve: Pending
    first: int
    table: Table  # from block `first` on
    tracked: Tracked
    rests_on: FrozenSet[int]  # blocks up to its last one that others load into, as it was offered
    is_spoiled: bool = False  # a load did not fill them: not before they have been computed
    is_last_chance: bool = False  # its blocks have been freed: before somebody writes to them


class _InWorkers(NamedTuple):
    """A store that the workers have."""
    lease: Any
    tracked: Tracked


class Stores:
    """Of one scheduler. worker_count: that have to be through with each. retry_s: how long blocks
    that found no room are offered again. counters: the scheduler's."""

    def __init__(self, groups: CacheGroups, questions: Questions, *, adapters: Adapters,
                 hints: EngineHints, drafts: Drafts, fences: Fences, endings: Endings,
                 doubts: Doubts, worker_count: int, retry_s: float, counters: Dict[str, int]):
        self._groups = groups
        self._questions = questions
        self._asker = questions.asker
        self._adapters = adapters
        self._hints = hints
        self._drafts = drafts
        self._fences = fences
        self._endings = endings
        self._doubts = doubts
        self._worker_count = worker_count
        self._retry_s = retry_s
        self._counters = counters
        self._storing: List[_Storing] = []
        self._in_workers: Dict[int, _InWorkers] = {}  # by number
        self._reports: Dict[int, int] = {}
        self._number = 0
        self._is_any_spoiled = False  # of those that wait

    # ---- offers ----

    def offer(self, tracked: Tracked, computed_tokens: int, is_last: bool = False) -> None:
        """Reserves the blocks that are full and computed by now and were not offered yet, of an
        answer many together; all of them if its blocks are being freed."""
        tracked.computed_tokens = computed_tokens
        self._note_computed(tracked)
        if tracked.is_stale or tracked.passed_at is not None:
            return
        last = self._groups.full_count(
            tracked.table, self._questions.block_count(tracked.request, computed_tokens))
        last = self._questions.published_count(tracked.request, last)
        if tracked.drafted_tokens is not None:
            last = min(last, tracked.drafted_tokens // self._groups.block_tokens)
        if tracked.spoiled_from is not None:
            last = min(last, tracked.spoiled_from)
        self._note_drafted(tracked, last)
        first = tracked.stored_count
        if last <= first or not (is_last or self._is_due(tracked, first, last)):
            return
        tracked.stored_count = last
        block_tokens = self._groups.block_tokens
        for begin, end, retained in self._hints.runs(tracked.said, tracked.request, first, last,
                                                     block_tokens):
            self._reserve(tracked, begin, end, self._hints.of_store(
                tracked.said, begin * block_tokens, end * block_tokens, retained))

    def _note_drafted(self, tracked: Tracked, last: int) -> None:
        """What it has computed up to block `last`, but what is another request's by now."""
        first, tracked.noted_count = tracked.noted_count, max(tracked.noted_count, last)
        if self._drafts.keep_book and last > first:
            self._drafts.computed(
                self._groups.kept(tracked.table, first, last, tracked.computed_tokens), first,
                tracked.request, self._fences.written())

    def _reserve(self, tracked: Tracked, first: int, last: int, hints: Hints) -> None:
        pending = self._questions.ask(tracked.request, tracked.keys, first, last, hints,
                                      is_store=True)
        self._questions.tell(tracked.request, tracked.keys, last)
        tracked.store_count += 1
        self._storing.append(_Storing(
            pending, first, self._groups.blocks(tracked.table, tracked.states, first, last),
            tracked, self._doubts.awaited(tracked.table, last)))

    def _is_due(self, tracked: Tracked, first: int, last: int) -> bool:
        """Whether blocks [first, last) are worth a store before the request ends."""
        request, block_tokens = tracked.request, self._groups.block_tokens
        if tracked.retry_at > time.monotonic():
            return False
        return (not self._groups.are_whole  # later they are gone
                or first < getattr(request, "num_prompt_tokens", last * block_tokens)
                // block_tokens
                or (last - first) * block_tokens >= _ANSWER_TOKENS)

    def blocks_freed(self, tracked: Tracked) -> None:
        """Its request has ended, or lost its turn."""
        for storing in self._storing:
            if storing.tracked is tracked:
                storing.is_last_chance = True
        if self._is_any_spoiled:
            self._give_up_spoiled()
        for number, in_workers in self._in_workers.items():
            if in_workers.tracked is tracked:
                self._fences.freed(number)
        tracked.table, tracked.states = self._groups.empty(), {}
        tracked.drafted_tokens, tracked.spoiled_from, tracked.stored_count = None, None, 0

    def spoil(self, block_ids: AbstractSet[int], tracked: Iterable[Tracked]) -> None:
        """A load did not fill these: nothing of `tracked`, the requests that run or wait, is stored
        from the first of them on until it was computed, nor what others have left behind it."""
        spoiled = set(block_ids)
        for each in tracked:
            first = first_of(each.table, block_ids)
            if first is not None:
                each.spoiled_from = (first if each.spoiled_from is None
                                     else min(first, each.spoiled_from))
                each.noted_count = min(each.noted_count, each.spoiled_from)
                spoiled |= self._doubts.spoil(each.table, first)
        for storing in self._storing:
            storing.is_spoiled = storing.is_spoiled or _is_spoiled(storing, spoiled)
            self._is_any_spoiled |= storing.is_spoiled
        self._give_up_spoiled()
        self._fences.spoil(spoiled)

    def _give_up_spoiled(self) -> None:
        """Those whose blocks will not be computed: their request has given them back."""
        self._give_up([storing for storing in self._storing
                       if storing.is_spoiled and storing.is_last_chance])

    def _note_computed(self, tracked: Tracked) -> None:
        """Of what was spoiled, too, by the request's last step."""
        if not self._is_any_spoiled:
            return
        for storing in self._storing:
            if storing.is_spoiled and storing.tracked is tracked and tracked.spoiled_from is None:
                last = storing.first + len(storing.table[0])
                storing.is_spoiled = last * self._groups.block_tokens > tracked.computed_tokens

    # ---- answers ----

    def take(self, wait_s: float) -> List[Store]:
        """Those that got room, for the workers."""
        stores, kept = [], []
        until = time.monotonic() + wait_s
        for storing in self._storing:
            if storing.is_spoiled or self._doubts.are_awaited(storing.rests_on):
                kept.append(storing)
                continue
            # What is behind a window in the next step could not be stored any more. Of what was
            # freed a store is the sooner done the better: vLLM writes to it next.
            if not storing.reserve.is_done and (storing.is_last_chance
                                                or not self._groups.are_whole):
                self._asker.wait(storing.reserve, max(0.0, until - time.monotonic()))
            if not storing.reserve.is_done:
                kept.append(storing)
                continue
            if storing.reserve.is_passed_by:
                self._passed_by(storing)
            if storing.reserve.lease is not None:
                stores.append(self._begun(storing))
            else:
                self._endings.store_ended(storing.tracked)
            if storing.reserve.no_room_count > 0 and not storing.reserve.is_passed_by:
                self._found_no_room(storing)
            else:
                storing.tracked.retry_until, storing.tracked.retry_pause_s = 0.0, RETRY_PAUSE_S
        self._storing = kept
        self._is_any_spoiled = any(storing.is_spoiled for storing in kept)
        return stores

    def _passed_by(self, storing: _Storing) -> None:
        tracked = storing.tracked
        at = storing.first + storing.reserve.no_room_first
        tracked.passed_at = at if tracked.passed_at is None else min(at, tracked.passed_at)
        self._counters["passed_blocks"] += storing.reserve.no_room_count

    def _found_no_room(self, storing: _Storing) -> None:
        """Memory may be on its way, or the daemon: what its request still has is offered again."""
        tracked, now = storing.tracked, time.monotonic()
        is_there = not (storing.is_last_chance or tracked.is_stale or tracked.has_ended
                        or not self._groups.are_whole)
        if tracked.retry_until == 0:
            tracked.retry_until = now + self._retry_s
        if is_there and now < tracked.retry_until:
            tracked.stored_count = min(tracked.stored_count,
                                       storing.first + storing.reserve.no_room_first)
            tracked.retry_at = now + tracked.retry_pause_s
            tracked.retry_pause_s = min(2 * tracked.retry_pause_s, _RETRY_PAUSE_S_MAX)
        else:
            self._count_dropped(storing)

    def _begun(self, storing: _Storing) -> Store:
        self._number += 1
        lease = storing.reserve.lease
        self._in_workers[self._number] = _InWorkers(lease, storing.tracked)
        self._reports[self._number] = 0
        self._counters["stored_blocks"] += storing.reserve.reserved_count
        token = lease.token
        # What the step before this one freed may have been overwritten in it.
        held = self._held(storing)
        self._fences.begin(self._number, held)
        if storing.is_last_chance:
            self._fences.freed(self._number)
        return Store(self._number, (token.high, token.low), held,
                     self._adapters.files_of(storing.tracked.request))

    def _held(self, storing: _Storing) -> Table:
        first, count = storing.first, len(storing.table[0])
        whole = [[NO_BLOCK] * first + block_ids for block_ids in storing.table]
        return self._groups.kept(whole, first, first + count, storing.tracked.computed_tokens)

    # ---- ends ----

    def drop_overwritten(self) -> None:
        """Blocks that were freed keep what they hold until vLLM gives them away: of what is written
        from this step on, a store that the daemon has not answered yet is given up."""
        if not any(storing.is_last_chance for storing in self._storing):
            return
        fresh = self._fences.written()
        self._give_up([
            storing for storing in self._storing if storing.is_last_chance
            and (self._fences.is_any_written
                 or not fresh.isdisjoint(itertools.chain(*storing.table)))])

    def _give_up(self, storings: List[_Storing]) -> None:
        if not storings:
            return
        self._storing = [each for each in self._storing if not any(each is s for s in storings)]
        for storing in storings:
            storing.reserve.give_up()
            self._count_dropped(storing)
            self._endings.store_ended(storing.tracked)

    def _count_dropped(self, storing: _Storing) -> None:
        self._counters["dropped_stores"] += 1
        self._counters["dropped_blocks"] += storing.reserve.no_room_count

    def drop(self, number: int) -> None:
        """One of this step's, of which the workers need not hear."""
        del self._reports[number]
        self._counters["dropped_stores"] += 1
        self._end(number)

    def done(self, reports: Dict[int, int]) -> None:
        """How many workers are through with each."""
        for number, count in reports.items():
            if number not in self._reports:
                continue
            self._reports[number] += count
            if self._reports[number] >= self._worker_count:
                del self._reports[number]
                self._fences.end(number)
                self._end(number)

    def _end(self, number: int) -> None:
        """All that could be committed has been."""
        lease, tracked = self._in_workers.pop(number)
        lease.abort()
        self._endings.store_ended(tracked)

    def forget(self) -> None:
        """Those that the workers do not have: the weights have changed."""
        for storing in self._storing:
            storing.reserve.give_up()
            storing.tracked.endings = []
            storing.tracked.store_count -= 1
        self._storing = []

    @property
    def count(self) -> int:
        """Asked for, or with the workers."""
        return len(self._storing) + len(self._in_workers)

    def close(self) -> None:
        """Gives up everything."""
        for storing in self._storing:
            storing.reserve.give_up()
        for lease, _ in self._in_workers.values():
            lease.abort()
        self._storing, self._in_workers = [], {}


def _is_spoiled(storing: _Storing, block_ids: AbstractSet[int]) -> bool:
    """Whether it is of blocks that a load did not fill, or of what was computed behind them."""
    spoiled_from = storing.tracked.spoiled_from
    return (not block_ids.isdisjoint(storing.rests_on)
            or not block_ids.isdisjoint(itertools.chain(*storing.table))
            or spoiled_from is not None
            and storing.first + len(storing.table[0]) > spoiled_from)
