"""The scheduler's half of the vLLM connector: what is loaded and stored, when, into which blocks.

It never waits longer than lookup_wait_s at a time, and holds a lease from the moment it promises
tokens until the workers have copied them, so that a promised block cannot be evicted.

Of a KV cache group with a window vLLM frees the blocks behind it while a request runs. What is
promised ends where the daemon has the window; what is stored lacks what had been freed before the
step in which it is stored.

With chunked local attention a window begins with the next token's chunk, so that nothing is needed
where a chunk begins.

A group of states (Mamba, linear attention) is one with a window of a token: the block that ends
where a hit does has all that is needed. Which blocks have the state after exactly their last token,
once a step has run, vLLM hands over by id; no other is stored.

Order of a step: get_num_new_matched_tokens and update_state_after_alloc a request, then
build_connector_meta; the workers run its stores before anything overwrites a block, its loads in
the background. So a block whose request ended in one step may be stored in the very next one, and
after that until vLLM gives it to another request: a daemon that answers late loses no store of an
engine that is idle. What vLLM's model runner v2 overwrites before it calls any hook is not stored.

What a request asks for its blocks goes with its stores, and is said of those that were there before
when it has ended and its stores are through: together with why it ended, of its last block.
"""
import dataclasses
import itertools
import time
from typing import (TYPE_CHECKING, AbstractSet, Any, Container, Dict, List, NamedTuple, Optional,
                    Sequence, Set, Tuple)

from ..calls import Hints, Keys
from ..epochs import Weights
from ..errors import Unavailable
from ..group import Group
from ..requests import Asker, Pending
from .adapters import Adapters
from .arrivals import Promise, Prompt, worth
from .drafts import Drafting, Drafts
from .fences import Fences
from .hints import EngineHints, Said
from .messages import NO_BLOCK, Load, Step, Store
from .questions import PromptKeys, Questions

if TYPE_CHECKING:
    from .events import KvEvents

_IDLE_WAITS = 10
# Of an answer, that many tokens are stored at once: a store costs a step some hundred microseconds
# whatever its size, and with many requests some block of an answer fills in every step.
_ANSWER_TOKENS = 256
_RETRY_PAUSE_S, _RETRY_PAUSE_S_MAX = 0.02, 1.0


Table = List[List[int]]  # of each KV cache group the block ids, in prompt order


@dataclasses.dataclass
class _Tracked:
    """A request vLLM has told us of."""
    request: Any
    table: Table
    keys: PromptKeys = dataclasses.field(default_factory=PromptKeys)
    computed_tokens: int = 0  # when its last step began
    stored_count: int = 0  # blocks that were offered to the store, or came from it
    noted_count: int = 0  # of which a draft's book has that they were computed, or were there
    skip_count: int = 0  # of the lookup: blocks vLLM has itself
    fresh_from: int = 0  # blocks behind those that vLLM has itself, or we have loaded
    lookup: Optional[Pending] = None
    promise: Optional[Promise] = None  # of the lookup, once it has been answered
    states: Dict[int, Dict[int, int]] = dataclasses.field(default_factory=dict)  # handed over: of
    # each state group the block ids, by their place in the prompt
    is_lost: bool = False  # a load of it failed: it is computed, whatever is there
    retry_at: float = 0.0  # blocks that found no room are offered again, not before then,
    retry_pause_s: float = _RETRY_PAUSE_S  # and then after this
    retry_until: float = 0.0  # 0: none has found no room
    is_stale: bool = False  # the weights have changed since it began: nothing of it is stored
    passed_at: Optional[int] = None  # the daemon has blocks that are likelier to be asked for than
    # this one and those behind it: they are not offered
    drafted_tokens: Optional[int] = None  # a step has left out the draft from there on; None: none
    said: Said = Said()
    store_count: int = 0  # reserved, or in the workers
    endings: List[Tuple[Keys, Hints]] = dataclasses.field(default_factory=list)  # to be said when
    # all of them have ended


@dataclasses.dataclass
class _Loading:
    """A load that was promised."""
    lookup: Pending
    request: Any
    block_ids: Table
    good_count: int  # blocks, as far as anybody has said

    @property
    def block_count(self) -> int:
        return len(self.block_ids[0])


@dataclasses.dataclass
class _Storing:
    """Blocks on their way into the store."""
    reserve: Pending
    first: int
    table: Table  # from block `first` on
    tracked: _Tracked
    is_last_chance: bool = False  # its blocks have been freed: before somebody writes to them


class _InWorkers(NamedTuple):
    """A store that the workers have."""
    lease: Any
    tracked: _Tracked


class SchedulerHalf:
    """See the page. lookup_wait_s: how long one question may hold the scheduler up."""

    def __init__(self, group: Group, *, block_tokens: int, adapters: Adapters, weights: Weights,
                 windows: Sequence[int] = (0,), chunked_groups: Container[int] = (),
                 state_groups: Container[int] = (),
                 hashes_per_block: int = 1, drafting: Drafting = Drafting(), worker_count: int = 1,
                 timeout_s: float = 0.05, load_timeout_s: float = 10.0,
                 lookup_wait_s: float = 0.0005, hooks_come_first: bool = True,
                 hints: Optional[EngineHints] = None, may_give_up: bool = True,
                 events: Optional["KvEvents"] = None):
        self.adapters = adapters
        self.hints = hints or EngineHints()
        self._may_give_up = may_give_up  # a load that fails is computed, and fails no request
        self.block_tokens = block_tokens
        self.windows = windows  # tokens before the next one that each KV cache group keeps; 0: all
        self._chunked_groups = chunked_groups  # of which the window is the next token's chunk
        self.state_groups = state_groups
        self.worker_count = worker_count
        self.lookup_wait_s = lookup_wait_s
        self._load_timeout_s = load_timeout_s
        self._asker = Asker(group, timeout_s, load_timeout_s)
        self._questions = Questions(self._asker, adapters, weights, block_tokens=block_tokens,
                                    hashes_per_block=hashes_per_block,
                                    looks_ahead=drafting.looks_ahead, events=events)
        self._drafts = Drafts(drafting, block_tokens)
        self._fences = Fences(hooks_come_first, bool(state_groups))
        self._tracked: Dict[str, _Tracked] = {}
        self._loading: Dict[str, _Loading] = {}  # also of requests that have ended since
        self._new_loads: List[Load] = []
        self._storing: List[_Storing] = []
        self._in_workers: Dict[int, _InWorkers] = {}  # stores, by number
        self._reports: Dict[int, int] = {}
        self._number = 0
        self.counters = {"lookups": 0, "hit_tokens": 0, "lost_tokens": 0, "stored_blocks": 0,
                         "dropped_stores": 0, "dropped_blocks": 0, "passed_blocks": 0,
                         "failed_loads": 0, "left_tokens": 0}

    # ---- lookups ----

    def begin(self, request: Any) -> None:
        """vLLM has been given a request: what its first lookup needs is made ready."""
        tracked = self._track(request)
        count = self._questions.block_count(request, request.num_tokens - 1)
        if count > 0:
            self._questions.keys(request, tracked.keys, 0, count)

    def matched_tokens(self, request: Any, local_tokens: int) -> Optional[int]:
        """Tokens beyond `local_tokens` that a load would bring; None: ask again next step."""
        tracked = self._track(request)
        first = tracked.fresh_from = local_tokens // self.block_tokens
        last = self._questions.block_count(request, request.num_tokens - 1)
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0  # vLLM would drop the answer
        if request.request_id in self._loading:
            return None  # its last load has not been reported yet
        if tracked.is_lost:
            return 0
        if tracked.lookup is not None and tracked.skip_count != first:
            tracked.lookup.give_up()
            tracked.lookup = None
        if last <= first:
            return 0
        if tracked.lookup is None:
            self.counters["lookups"] += 1
            tracked.skip_count = first
            hints = self.hints.of_lookup(tracked.said, first * self.block_tokens,
                                         last * self.block_tokens, request.num_tokens)
            tracked.lookup = self._questions.ask(request, tracked.keys, first, last, hints,
                                                  is_store=False)
            tracked.promise = None
        lookup = tracked.lookup
        if not lookup.is_done and not self._asker.wait(lookup, self.lookup_wait_s):
            return None
        if lookup.lease is None:
            return 0
        if tracked.promise is None:
            tracked.promise = self._promise_of(request, lookup.lease, first, last)
            self._questions.tell(request, tracked.keys, first + lookup.lease.block_count)
        tracked.promise = self._with_what_has_come(tracked.promise, lookup.lease, last - first)
        return tracked.promise.block_count * self.block_tokens

    def _promise_of(self, request: Any, lease: Any, first: int, last: int) -> Promise:
        promise = worth(lease.spans, min(lease.block_count, last - first),
                        Prompt(first * self.block_tokens, request.num_tokens, self.block_tokens),
                        self.hints.cost, is_whole=any(self.windows))
        return promise if self._may_give_up else promise._replace(wait_s=None)

    def _with_what_has_come(self, promise: Promise, lease: Any, count_max: int) -> Promise:
        """A request that waits for its turn is asked about again and again: nobody computes what
        is there by then, or waits for what has been lost."""
        found = min(lease.block_count, count_max)
        ready_count = min(lease.ready_count, found)
        if ready_count > promise.block_count and (ready_count == found or not any(self.windows)):
            return Promise(ready_count)
        return promise._replace(block_count=min(promise.block_count, found))

    def _track(self, request: Any) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            self._questions.check_hashes(request)
            tracked = _Tracked(request, self._empty(), said=self.hints.of_request(request))
            self._tracked[request.request_id] = tracked
        tracked.request = request
        return tracked

    def _empty(self) -> Table:
        return [[] for _ in self.windows]

    def _kept(self, table: Table, first: int, last: int, next_token: int) -> Table:
        """Blocks [first, last) of `table`, but those that vLLM frees, or has no need of, when
        `next_token` is computed."""
        kept = []
        for index, (block_ids, window) in enumerate(zip(table, self.windows)):
            begin = self._first_kept(index, next_token)
            # vLLM puts block 0, its null block, where a window has passed.
            kept.append([b if i >= begin and (b != 0 or not window) else NO_BLOCK
                         for i, b in enumerate(block_ids[first:last], first)])
        return kept

    def _first_kept(self, group: int, next_token: int) -> int:
        """The first block of a KV cache group that computing `next_token` needs."""
        window = self.windows[group]
        if window == 0:
            return 0
        if group in self._chunked_groups:
            return next_token // window * window // self.block_tokens
        return max(0, next_token - window) // self.block_tokens

    def allocated(self, request: Any, table: Sequence[Sequence[int]], external_tokens: int
                  ) -> None:
        """vLLM has taken blocks for the request; external_tokens of them are ours to load."""
        tracked = self._track(request)
        tracked.table = [list(block_ids) for block_ids in table]
        lookup, tracked.lookup = tracked.lookup, None
        if lookup is not None and lookup.lease is not None:
            found_tokens = lookup.lease.block_count * self.block_tokens
            self.counters["left_tokens"] += max(0, found_tokens - external_tokens)
        # We load into them, or a connector beside this one, or they are computed.
        self._write(tracked.table, tracked.fresh_from)
        if external_tokens == 0:
            if lookup is not None:
                lookup.give_up()
            return
        assert lookup is not None, "tokens of no lookup"
        first, count = tracked.skip_count, external_tokens // self.block_tokens
        tracked.fresh_from = first + count
        tracked.stored_count = max(tracked.stored_count, first + count)
        tracked.computed_tokens = (first + count) * self.block_tokens
        wanted = self._kept(tracked.table, first, first + count, tracked.computed_tokens)
        if self._drafts.keep_book:
            self._drafts.computed(wanted, first, request)
        self._loading[request.request_id] = _Loading(lookup, request, wanted, count)
        token = lookup.lease.token
        wait_s = tracked.promise.wait_s if tracked.promise is not None else None
        self._new_loads.append(Load(request.request_id, (token.high, token.low), wanted, wait_s))

    def tokens_by_tier(self, request_id: str) -> Dict[str, int]:
        """Of a load that has been allocated: where its tokens lay when they were promised."""
        loading = self._loading.get(request_id)
        if loading is None or loading.lookup.lease is None:
            return {}
        found: Dict[str, int] = {}
        for span in loading.lookup.lease.spans:
            count = min(span.first_block + span.block_count, loading.block_count) - span.first_block
            if count > 0:
                found[span.tier] = found.get(span.tier, 0) + count * self.block_tokens
        return found

    # ---- steps ----

    def step(self, output: Any) -> Step:
        """What the workers do this step."""
        for request_id in getattr(output, "preempted_req_ids", None) or ():
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                self._offer(tracked, tracked.computed_tokens, is_last=True)
                self._blocks_freed(tracked)
        self._asker.collect()
        # A step without tokens is there for the stores, and has time for them.
        wait_s = self.lookup_wait_s * (1 if output.num_scheduled_tokens else _IDLE_WAITS)
        stores = self._take_stores(wait_s)
        # Offered after the stores were taken: a hit on blocks of a request of this very step counts
        # as computed already, and is not before this step's forward pass.
        self._follow(output)
        lost = self._fences.take_lost(output)
        self._drop_overwritten()
        stores = [store for store in stores if not self._is_dropped(store.number, lost)]
        return Step(loads=self.take_loads(), stores=stores, fences=self._fences.take_fences(),
                    lost=lost)

    def _is_dropped(self, number: int, lost: List[int]) -> bool:
        """A store of this step, of which the workers need not hear."""
        if number not in lost:
            return False
        lost.remove(number)
        del self._reports[number]
        self.counters["dropped_stores"] += 1
        self._end_in_workers(number)
        return True

    def _write(self, table: Sequence[Sequence[int]], first: int) -> None:
        """vLLM, or a load, writes to these blocks from now on."""
        self._fences.write(table, first)
        self._drafts.written(table, first)

    def take_loads(self) -> List[Load]:
        """What was allocated and is not with the workers yet."""
        loads, self._new_loads = self._new_loads, []
        return loads

    def _follow(self, output: Any) -> None:
        """Learns the blocks of what is scheduled, and offers the full ones that are computed."""
        chunks: List[Tuple[int, int]] = []
        self._note_undrafted(output)
        for new in output.scheduled_new_reqs:
            self._write(new.block_ids, new.num_computed_tokens // self.block_tokens)
            tracked = self._tracked.get(new.req_id)
            if tracked is not None:
                tracked.table = [list(block_ids) for block_ids in new.block_ids]
                self._begin_drafted(tracked, new.num_computed_tokens)
                self._offer(tracked, new.num_computed_tokens)
                self._note_prefill(tracked, output, chunks)
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            more = cached.new_block_ids[i]
            is_resumed = request_id in (getattr(cached, "resumed_req_ids", None) or ())
            computed_tokens = cached.num_computed_tokens[i] if is_resumed else 0
            self._write(more or (), computed_tokens // self.block_tokens)
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            if is_resumed:
                tracked.table = self._empty()
            for block_ids, new_ids in zip(tracked.table, more or ()):
                block_ids += new_ids
            if is_resumed:
                self._begin_drafted(tracked, computed_tokens)
            self._offer(tracked, cached.num_computed_tokens[i])
            self._note_prefill(tracked, output, chunks)
        self._take_states(output)
        self.hints.clock.begin(chunks, sum(output.num_scheduled_tokens.values()))

    def _begin_drafted(self, tracked: _Tracked, computed_tokens: int) -> None:
        """Of blocks that vLLM has itself some may not be what their keys say."""
        count = computed_tokens // self.block_tokens
        tracked.noted_count = count
        if not self._drafts.are_right(tracked.table, count, tracked.request):
            tracked.stored_count = max(tracked.stored_count, count)

    def _note_drafted(self, tracked: _Tracked, last: int) -> None:
        """What it has computed up to block `last`, but what is another request's by now."""
        first, tracked.noted_count = tracked.noted_count, max(tracked.noted_count, last)
        if self._drafts.keep_book and last > first:
            self._drafts.computed(
                self._kept(tracked.table, first, last, tracked.computed_tokens), first,
                tracked.request, self._fences.written())

    def _note_undrafted(self, output: Any) -> None:
        for request_id, begin in self._drafts.undrafted(output).items():
            tracked = self._tracked.get(request_id)
            if tracked is not None and tracked.drafted_tokens is None:
                tracked.drafted_tokens = min(begin, tracked.request.num_tokens - 1)

    @staticmethod
    def _note_prefill(tracked: _Tracked, output: Any, chunks: List[Tuple[int, int]]) -> None:
        """Adds what of its prompt the step computes."""
        first = tracked.computed_tokens
        left = tracked.request.num_prompt_tokens - first
        if left > 0:
            count = output.num_scheduled_tokens.get(tracked.request.request_id, 0)
            chunks.append((first, min(left, count)))

    def _take_states(self, output: Any) -> None:
        """Blocks that will have the state after their last token when this step has run."""
        handed = getattr(output, "kv_connector_block_state", None)
        for request_id, entries in (handed.boundary_state_offloads if handed else {}).items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            for index, block_id, token_count in entries:
                if index in self.state_groups and token_count % self.block_tokens == 0:
                    tracked.states.setdefault(index, {})[token_count // self.block_tokens - 1] = \
                        block_id

    def _blocks(self, tracked: _Tracked, first: int, last: int) -> Table:
        """Blocks [first, last); of states those that were handed over, and else the null block."""
        return [[tracked.states.get(index, {}).get(i, 0) for i in range(first, last)]
                if index in self.state_groups else block_ids[first:last]
                for index, block_ids in enumerate(tracked.table)]

    def _offer(self, tracked: _Tracked, computed_tokens: int, is_last: bool = False) -> None:
        """Reserves the blocks that are full and computed by now and were not offered yet, of an
        answer many together; all of them if its blocks are being freed."""
        tracked.computed_tokens = computed_tokens
        if tracked.is_stale or tracked.passed_at is not None:
            return
        last = min([self._questions.block_count(tracked.request, computed_tokens),
                    *(len(block_ids) for index, block_ids in enumerate(tracked.table)
                      if index not in self.state_groups)])
        last = self._questions.published_count(tracked.request, last)
        if tracked.drafted_tokens is not None:
            last = min(last, tracked.drafted_tokens // self.block_tokens)
        self._note_drafted(tracked, last)
        first = tracked.stored_count
        if last <= first or not (is_last or self._is_due(tracked, first, last)):
            return
        tracked.stored_count = last
        for begin, end, retained in self.hints.runs(tracked.said, tracked.request, first, last,
                                                    self.block_tokens):
            self._reserve(tracked, begin, end, self.hints.of_store(
                tracked.said, begin * self.block_tokens, end * self.block_tokens, retained))

    def _reserve(self, tracked: _Tracked, first: int, last: int, hints: Hints) -> None:
        pending = self._questions.ask(tracked.request, tracked.keys, first, last, hints,
                                      is_store=True)
        self._questions.tell(tracked.request, tracked.keys, last)
        tracked.store_count += 1
        self._storing.append(_Storing(pending, first, self._blocks(tracked, first, last), tracked))

    def _is_due(self, tracked: _Tracked, first: int, last: int) -> bool:
        """Whether blocks [first, last) are worth a store before the request ends."""
        request = tracked.request
        if tracked.retry_at > time.monotonic():
            return False
        return (any(self.windows)  # later they are gone
                or first < getattr(request, "num_prompt_tokens", last * self.block_tokens)
                // self.block_tokens
                or (last - first) * self.block_tokens >= _ANSWER_TOKENS)

    def _blocks_freed(self, tracked: _Tracked) -> None:
        for storing in self._storing:
            if storing.tracked is tracked:
                storing.is_last_chance = True
        tracked.table, tracked.states, tracked.drafted_tokens = self._empty(), {}, None
        tracked.stored_count = 0

    def _drop_overwritten(self) -> None:
        """Blocks that were freed keep what they hold until vLLM gives them away: of what is written
        from this step on, a store that the daemon has not answered yet is given up."""
        if not any(storing.is_last_chance for storing in self._storing):
            return
        fresh, kept = self._fences.written(), []
        for storing in self._storing:
            if storing.is_last_chance and not fresh.isdisjoint(itertools.chain(*storing.table)):
                storing.reserve.give_up()
                self._count_dropped(storing)
                self._store_ended(storing.tracked)
            else:
                kept.append(storing)
        self._storing = kept

    def _count_dropped(self, storing: _Storing) -> None:
        self.counters["dropped_stores"] += 1
        self.counters["dropped_blocks"] += storing.reserve.no_room_count

    def _take_stores(self, wait_s: float) -> List[Store]:
        stores, kept = [], []
        until = time.monotonic() + wait_s
        for storing in self._storing:
            # What is behind a window in the next step could not be stored any more. Of what was
            # freed a store is the sooner done the better: vLLM writes to it next.
            if not storing.reserve.is_done and (storing.is_last_chance or any(self.windows)):
                self._asker.wait(storing.reserve, max(0.0, until - time.monotonic()))
            if not storing.reserve.is_done:
                kept.append(storing)
                continue
            if storing.reserve.is_passed_by:
                self._passed_by(storing)
            if storing.reserve.lease is not None:
                stores.append(self._store(storing))
            else:
                self._store_ended(storing.tracked)
            if storing.reserve.no_room_count > 0 and not storing.reserve.is_passed_by:
                self._found_no_room(storing)
            else:
                storing.tracked.retry_until, storing.tracked.retry_pause_s = 0.0, _RETRY_PAUSE_S
        self._storing = kept
        return stores

    def _passed_by(self, storing: _Storing) -> None:
        tracked = storing.tracked
        at = storing.first + storing.reserve.no_room_first
        tracked.passed_at = at if tracked.passed_at is None else min(at, tracked.passed_at)
        self.counters["passed_blocks"] += storing.reserve.no_room_count

    def _found_no_room(self, storing: _Storing) -> None:
        """Memory may be on its way, or the daemon: what its request still has is offered again."""
        tracked, now = storing.tracked, time.monotonic()
        is_there = (not storing.is_last_chance and not tracked.is_stale and not any(self.windows)
                    and self._tracked.get(tracked.request.request_id) is tracked)
        if tracked.retry_until == 0:
            tracked.retry_until = now + self._load_timeout_s
        if is_there and now < tracked.retry_until:
            tracked.stored_count = min(tracked.stored_count,
                                       storing.first + storing.reserve.no_room_first)
            tracked.retry_at = now + tracked.retry_pause_s
            tracked.retry_pause_s = min(2 * tracked.retry_pause_s, _RETRY_PAUSE_S_MAX)
        else:
            self._count_dropped(storing)

    def _store(self, storing: _Storing) -> Store:
        self._number += 1
        lease = storing.reserve.lease
        self._in_workers[self._number] = _InWorkers(lease, storing.tracked)
        self._reports[self._number] = 0
        self.counters["stored_blocks"] += storing.reserve.reserved_count
        token = lease.token
        # What the step before this one freed may have been overwritten in it.
        held = self._held(storing)
        self._fences.begin(self._number, held)
        return Store(self._number, (token.high, token.low), held,
                     self.adapters.files_of(storing.tracked.request))

    def _held(self, storing: _Storing) -> Table:
        first, count = storing.first, len(storing.table[0])
        whole = [[NO_BLOCK] * first + block_ids for block_ids in storing.table]
        return self._kept(whole, first, first + count, storing.tracked.computed_tokens)

    # ---- ends ----

    def stores_done(self, reports: Dict[int, int]) -> None:
        """How many workers are through with each store."""
        for number, count in reports.items():
            if number not in self._reports:
                continue
            self._reports[number] += count
            if self._reports[number] >= self.worker_count:
                del self._reports[number]
                self._fences.end(number)
                self._end_in_workers(number)

    def _end_in_workers(self, number: int) -> None:
        """All that could be committed has been."""
        lease, tracked = self._in_workers.pop(number)
        lease.abort()
        self._store_ended(tracked)

    def _store_ended(self, tracked: _Tracked) -> None:
        tracked.store_count -= 1
        self._tell_end(tracked)

    def _tell_end(self, tracked: _Tracked) -> None:
        """Of a request that has ended, once its blocks are there."""
        if not tracked.endings or tracked.store_count > 0:
            return
        endings, tracked.endings = tracked.endings, []
        if tracked.passed_at is not None and not tracked.said.request.is_of_blocks:
            endings = self._ending_before(tracked, tracked.passed_at, endings)
        for keys, hints in endings:
            self._asker.touch(keys, hints, self.lookup_wait_s)

    def _ending_before(self, tracked: _Tracked, passed_at: int,
                       endings: List[Tuple[Keys, Hints]]) -> List[Tuple[Keys, Hints]]:
        """The last block that is there has the request's reason; none without a daemon."""
        if passed_at == 0:
            return []
        try:
            keys = self._questions.keys(tracked.request, tracked.keys, passed_at - 1, passed_at)
        except Unavailable:
            return []
        return [(keys, hints) for _, hints in endings]

    def _end(self, tracked: _Tracked, computed_tokens: int) -> None:
        """What is to be said of its blocks: why it ended, of the last one, and of all of them what
        it asked for."""
        hints = self.hints.of_end(tracked.said, tracked.request)
        is_of_all = tracked.said.request.is_of_blocks
        last = self._questions.block_count(tracked.request, computed_tokens)
        if tracked.is_stale or last == 0 or not (is_of_all or hints.end_reason != "unknown"):
            return
        runs = self.hints.runs(tracked.said, tracked.request, 0 if is_of_all else last - 1, last,
                               self.block_tokens)
        try:
            tracked.endings = [
                (self._questions.keys(tracked.request, tracked.keys, begin, end),
                 self.hints.of_end(tracked.said, tracked.request, retained))
                for begin, end, retained in runs]
        except Unavailable:
            return
        self._tell_end(tracked)

    def loads_done(self, request_ids: Set[str]) -> None:
        """All workers have reported these."""
        for request_id in request_ids:
            loading = self._loading.pop(request_id, None)
            if loading is None:
                continue
            loading.lookup.give_up()
            lost_tokens = (loading.block_count - loading.good_count) * self.block_tokens
            self.counters["hit_tokens"] += loading.good_count * self.block_tokens
            self.counters["lost_tokens"] += lost_tokens
            if lost_tokens > 0:
                _tell_lost(loading.request, lost_tokens)

    def finished(self, request: Any, table: Sequence[Sequence[int]]) -> None:
        """The request ends; its blocks are freed after this step."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return
        if tracked.lookup is not None:
            tracked.lookup.give_up()
        if request.request_id not in self._loading:
            tracked.table = [list(block_ids) for block_ids in table]
            computed_before = tracked.computed_tokens
            self._offer(tracked, request.num_computed_tokens, is_last=True)
            tracked.computed_tokens = computed_before
            self._end(tracked, request.num_computed_tokens)
        self._blocks_freed(tracked)

    def loads_failed(self, block_ids: Set[int],
                     request_ids: AbstractSet[str] = frozenset()) -> None:
        """What was taken for loaded will be computed, and may be stored. Not loaded again: vLLM
        asks anew for a request that lost all, for as long as its loads fail. request_ids: of
        those that lost all."""
        for request_id, loading in self._loading.items():
            good_count = 0
            if request_id not in request_ids:
                good_count = next((index for index, ids in enumerate(zip(*loading.block_ids))
                                   if not block_ids.isdisjoint(ids)), loading.block_count)
            if good_count >= loading.good_count:
                continue  # said before, or none of its own
            loading.good_count = good_count
            self.counters["failed_loads"] += 1
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.is_lost = True
                tracked.stored_count = 0 if request_id in request_ids else tracked.skip_count

    def forget(self) -> None:
        """What was found and is not being loaded yet, and what requests that have begun would still
        store: the weights have changed. Stores that the workers have are of the epoch they were
        reserved in."""
        for storing in self._storing:
            storing.reserve.give_up()
            storing.tracked.endings = []
            storing.tracked.store_count -= 1
        self._storing = []
        for tracked in self._tracked.values():
            tracked.is_stale = any(tracked.table)  # it has begun
            if tracked.lookup is not None:
                tracked.lookup.give_up()
                tracked.lookup = None

    @property
    def has_work(self) -> bool:
        """Something waits for the next step, even if nothing else does."""
        return bool(self._storing or self._in_workers or self._new_loads)

    @property
    def held_count(self) -> int:
        """Leases, and requests on their way."""
        lookups = sum(t.lookup is not None for t in self._tracked.values())
        return (lookups + len(self._loading) + len(self._in_workers) + len(self._storing)
                + self._asker.pending_count)

    def close(self) -> None:
        """Gives up everything."""
        for tracked in self._tracked.values():
            if tracked.lookup is not None:
                tracked.lookup.give_up()
        for pending in [*(loading.lookup for loading in self._loading.values()),
                        *(storing.reserve for storing in self._storing)]:
            pending.give_up()
        for lease, _ in self._in_workers.values():
            lease.abort()
        self._tracked, self._loading, self._storing, self._in_workers = {}, {}, [], {}


def _tell_lost(request: Any, lost_tokens: int) -> None:
    """vLLM says of a request how many of its tokens were cached, and set that when they were
    promised. Older versions have no such record."""
    stats = getattr(request, "prefill_stats", None)
    if stats is None:
        return
    external = max(0, stats.num_external_cached_tokens - lost_tokens)
    stats.set(num_prompt_tokens=stats.num_prompt_tokens,
              num_local_cached_tokens=stats.num_local_cached_tokens,
              num_external_cached_tokens=external)
