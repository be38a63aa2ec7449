"""The scheduler's half of the vLLM connector: what is loaded and stored, when, into which blocks.

It never waits longer than lookup_wait_s at a time, and holds a lease from the moment it promises
tokens until the workers have copied them, so that a promised block cannot be evicted.

Of a KV cache group with a window what is promised ends where the daemon has the window.

Order of a step: get_num_new_matched_tokens and update_state_after_alloc a request, then
build_connector_meta; the workers run its stores before anything overwrites a block, its loads in
the background.
"""
import dataclasses
from typing import (TYPE_CHECKING, AbstractSet, Any, Container, Dict, List, Optional, Sequence, Set,
                    Tuple)

from ..epochs import Weights
from ..group import Group
from ..requests import Asker, Pending
from .adapters import Adapters
from .arrivals import Promise, Prompt, worth
from .doubts import Doubts, Steps
from .drafts import Drafting, Drafts
from .endings import Endings
from .fences import Fences
from .hints import EngineHints
from .messages import Load, Step
from .questions import Questions
from .stores import Stores
from .tables import CacheGroups, Table
from .tracked import Tracked

if TYPE_CHECKING:
    from .events import KvEvents

_IDLE_WAITS = 10


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


class SchedulerHalf:
    """See the page. lookup_wait_s: how long one question may hold the scheduler up."""

    def __init__(self, group: Group, *, block_tokens: int, adapters: Adapters, weights: Weights,
                 windows: Sequence[int] = (0,), chunked_groups: Container[int] = (),
                 state_groups: Container[int] = (),
                 hashes_per_block: int = 1, drafting: Drafting = Drafting(), worker_count: int = 1,
                 timeout_s: float = 0.05, load_timeout_s: float = 10.0,
                 lookup_wait_s: float = 0.0005, hooks_come_first: bool = True,
                 hints: Optional[EngineHints] = None, may_give_up: bool = True,
                 events: Optional["KvEvents"] = None, steps: Optional[Steps] = None):
        self.adapters = adapters
        self.hints = hints or EngineHints()
        self._may_give_up = may_give_up  # a load that fails is computed, and fails no request
        self.block_tokens = block_tokens
        self.lookup_wait_s = lookup_wait_s
        self._groups = CacheGroups(block_tokens, windows, chunked_groups, state_groups)
        self._asker = Asker(group, timeout_s, load_timeout_s)
        self._questions = Questions(self._asker, adapters, weights, block_tokens=block_tokens,
                                    hashes_per_block=hashes_per_block,
                                    looks_ahead=drafting.looks_ahead, events=events)
        self._drafts = Drafts(drafting, block_tokens)
        self._fences = Fences(hooks_come_first, bool(state_groups), self._groups.are_whole)
        self._doubts = Doubts(steps or Steps())
        self._allocated: List[Tracked] = []  # since the last step, and nothing for us to load
        self._tracked: Dict[str, Tracked] = {}
        self._loading: Dict[str, _Loading] = {}  # also of requests that have ended since
        self._new_loads: List[Load] = []
        self.counters = {"lookups": 0, "hit_tokens": 0, "lost_tokens": 0, "stored_blocks": 0,
                         "dropped_stores": 0, "dropped_blocks": 0, "passed_blocks": 0,
                         "failed_loads": 0, "left_tokens": 0}
        self._endings = Endings(self._questions, self.hints, lookup_wait_s, block_tokens)
        self._stores = Stores(self._groups, self._questions, adapters=adapters, hints=self.hints,
                              drafts=self._drafts, fences=self._fences, endings=self._endings,
                              doubts=self._doubts, worker_count=worker_count,
                              retry_s=load_timeout_s, counters=self.counters)

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
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0  # vLLM would drop the answer
        if request.request_id in self._loading:
            return None  # its last load has not been reported yet
        if tracked.is_lost:
            return 0
        awaited = None if tracked.is_look_late else tracked.look
        tracked.look = self.adapters.look(request, awaited, self.lookup_wait_s)
        if tracked.look is not None:
            return self._without_a_look(tracked)
        last = self._questions.block_count(request, request.num_tokens - 1)
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

    def _without_a_look(self, tracked: Tracked) -> Optional[int]:
        """Nobody knows what its adapter is: it waits for that as long as for the daemon."""
        assert tracked.look is not None
        if not tracked.is_look_late and not tracked.look.is_overdue(self._asker.timeout_s):
            return None
        tracked.is_look_late = True  # asked again, it does not wait anew
        return 0

    def _promise_of(self, request: Any, lease: Any, first: int, last: int) -> Promise:
        promise = worth(lease.spans, min(lease.block_count, last - first),
                        Prompt(first * self.block_tokens, request.num_tokens, self.block_tokens),
                        self.hints.cost, is_whole=not self._groups.are_whole)
        return promise if self._may_give_up else promise._replace(wait_s=None)

    def _with_what_has_come(self, promise: Promise, lease: Any, count_max: int) -> Promise:
        """A request that waits for its turn is asked about again and again: nobody computes what
        is there by then, or waits for what has been lost."""
        found = min(lease.block_count, count_max)
        ready_count = min(lease.ready_count, found)
        if ready_count > promise.block_count and (ready_count == found or self._groups.are_whole):
            return Promise(ready_count)
        return promise._replace(block_count=min(promise.block_count, found))

    def _track(self, request: Any) -> Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            self._questions.check_hashes(request)
            tracked = Tracked(request, self._groups.empty(), said=self.hints.of_request(request))
            self._tracked[request.request_id] = tracked
        tracked.request = request
        return tracked

    def allocated(self, request: Any, table: Sequence[Sequence[int]], external_tokens: int
                  ) -> None:
        """vLLM has taken blocks for the request; external_tokens of them are ours to load."""
        tracked = self._track(request)
        tracked.table = [list(block_ids) for block_ids in table]
        # Of a table that was given anew in the step of its preemption only what vLLM found itself
        # is computed.
        tracked.computed_tokens = min(tracked.computed_tokens,
                                      tracked.fresh_from * self.block_tokens)
        lookup, tracked.lookup = tracked.lookup, None
        if lookup is not None and lookup.lease is not None:
            found_tokens = lookup.lease.block_count * self.block_tokens
            self.counters["left_tokens"] += max(0, found_tokens - external_tokens)
        # We load into them, or a connector beside this one, or they are computed.
        self._write(tracked.table, tracked.fresh_from)
        tracked.awaits_step = True
        if external_tokens == 0:
            self._allocated.append(tracked)
            if lookup is not None:
                lookup.give_up()
            return
        assert lookup is not None, "tokens of no lookup"
        first, count = tracked.skip_count, external_tokens // self.block_tokens
        tracked.fresh_from = first + count
        tracked.stored_count = max(tracked.stored_count, first + count)
        tracked.computed_tokens = (first + count) * self.block_tokens
        wanted = self._groups.kept(tracked.table, first, first + count, tracked.computed_tokens)
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
                self._stores.offer(tracked, tracked.computed_tokens, is_last=True)
                self._stores.blocks_freed(tracked)
        self._asker.collect()
        # A step without tokens is there for the stores, and has time for them.
        wait_s = self.lookup_wait_s * (1 if output.num_scheduled_tokens else _IDLE_WAITS)
        stores = self._stores.take(wait_s)
        # Offered after the stores were taken: a hit on blocks of a request of this very step counts
        # as computed already, and is not before this step's forward pass.
        self._follow(output)
        self._note_loads_beside()
        lost = self._fences.take_lost(output)
        self._stores.drop_overwritten()
        unsaid = {store.number for store in stores}.intersection(lost)
        for number in unsaid:
            self._stores.drop(number)
        return Step(loads=self.take_loads(),
                    stores=[store for store in stores if store.number not in unsaid],
                    fences=self._fences.take_fences(),
                    lost=[number for number in lost if number not in unsaid])

    def _write(self, table: Sequence[Sequence[int]], first: int) -> None:
        """vLLM, or a load, writes to these blocks from now on."""
        self._fences.write(table, first)
        self._drafts.written(table, first)
        self._doubts.written(table, first)

    def _note_loads_beside(self) -> None:
        """What has blocks by now and was not scheduled waits for another connector's load. Older
        versions of vLLM's MultiConnector name none of its blocks until then."""
        allocated, self._allocated = self._allocated, []
        for tracked in allocated:
            if tracked.awaits_step:
                self._fences.load_beside(tracked.table, tracked.fresh_from)

    def take_loads(self) -> List[Load]:
        """What was allocated and is not with the workers yet."""
        loads, self._new_loads = self._new_loads, []
        return loads

    def _follow(self, output: Any) -> None:
        """Learns the blocks of what is scheduled, and offers the full ones that are computed."""
        chunks: List[Tuple[int, int]] = []
        self._note_undrafted(output)
        for new in output.scheduled_new_reqs:
            tracked = self._tracked.get(new.req_id)
            self._begin_blocks(tracked, new.block_ids, new.num_computed_tokens)
            if tracked is not None:
                tracked.table = [list(block_ids) for block_ids in new.block_ids]
                self._begin_drafted(tracked, new.num_computed_tokens)
                self._stores.offer(tracked, new.num_computed_tokens)
                self._note_prefill(tracked, output, chunks)
        cached = output.scheduled_cached_reqs
        for i, request_id in enumerate(cached.req_ids):
            more = cached.new_block_ids[i]
            is_resumed = request_id in (getattr(cached, "resumed_req_ids", None) or ())
            computed_tokens = cached.num_computed_tokens[i]
            tracked = self._tracked.get(request_id)
            if is_resumed:
                self._begin_blocks(tracked, more or (), computed_tokens)
            else:
                self._write(more or (), 0)
            if tracked is None:
                continue
            if is_resumed:
                tracked.table = self._groups.empty()
            for block_ids, new_ids in zip(tracked.table, more or ()):
                block_ids += new_ids
            if is_resumed:
                self._begin_drafted(tracked, computed_tokens)
            else:
                self._go_on(tracked, computed_tokens,
                            output.num_scheduled_tokens.get(request_id, 0))
            self._stores.offer(tracked, computed_tokens)
            self._note_prefill(tracked, output, chunks)
        self._take_states(output)
        self.hints.clock.begin(chunks, sum(output.num_scheduled_tokens.values()))

    def _begin_blocks(self, tracked: Optional[Tracked], table: Sequence[Sequence[int]],
                      computed_tokens: int) -> None:
        """A request is scheduled with these blocks. What neither vLLM had nor we have loaded, and
        is computed all the same, another connector has loaded, or loads in this step."""
        first = computed_tokens // self.block_tokens
        if tracked is None:
            self._write(table, first)
            return
        tracked.awaits_step = False
        self._write(table, min(first, tracked.fresh_from))
        last = -(-computed_tokens // self.block_tokens)
        for block_ids in table:
            self._doubts.load(block_ids[tracked.fresh_from:last])
        tracked.spoiled_from = self._doubts.first_unfilled(table)
        if tracked.spoiled_from is not None:
            self._doubts.spoil(table, tracked.spoiled_from)

    def _go_on(self, tracked: Tracked, computed_tokens: int, count: int) -> None:
        """A request that runs computes `count` more tokens; or again, where vLLM has heard that a
        load of its blocks failed."""
        first = computed_tokens // self.block_tokens
        if computed_tokens <= tracked.computed_tokens:
            self._fences.write(tracked.table, first)
            self._drafts.written(tracked.table, first)
            tracked.noted_count = min(tracked.noted_count, first)
        if (tracked.spoiled_from is not None
                and computed_tokens <= tracked.spoiled_from * self.block_tokens):
            tracked.spoiled_from = None
        if tracked.spoiled_from is not None:
            self._doubts.spoil(tracked.table, first)
            return
        self._doubts.written(tracked.table, first, (computed_tokens + count) // self.block_tokens)

    def _begin_drafted(self, tracked: Tracked, computed_tokens: int) -> None:
        """Of blocks that vLLM has itself some may not be what their keys say."""
        count = computed_tokens // self.block_tokens
        tracked.noted_count = count
        if not self._drafts.are_right(tracked.table, count, tracked.request):
            tracked.stored_count = max(tracked.stored_count, count)

    def _note_undrafted(self, output: Any) -> None:
        for request_id, begin in self._drafts.undrafted(output).items():
            tracked = self._tracked.get(request_id)
            if tracked is not None and tracked.drafted_tokens is None:
                tracked.drafted_tokens = min(begin, tracked.request.num_tokens - 1)

    @staticmethod
    def _note_prefill(tracked: Tracked, output: Any, chunks: List[Tuple[int, int]]) -> None:
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
                if index in self._groups.state_groups and token_count % self.block_tokens == 0:
                    tracked.states.setdefault(index, {})[token_count // self.block_tokens - 1] = \
                        block_id

    # ---- ends ----

    def stores_done(self, reports: Dict[int, int]) -> None:
        """How many workers are through with each store."""
        self._stores.done(reports)

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
        tracked.has_ended = True
        if tracked.lookup is not None:
            tracked.lookup.give_up()
        if request.request_id not in self._loading:
            tracked.table = [list(block_ids) for block_ids in table]
            computed_before = tracked.computed_tokens
            computed_tokens = request.num_computed_tokens
            if tracked.awaits_step:  # vLLM counts what a load is to bring before it has
                computed_tokens = min(computed_tokens, tracked.fresh_from * self.block_tokens)
            self._stores.offer(tracked, computed_tokens, is_last=True)
            tracked.computed_tokens = computed_before
            self._endings.begin(tracked, computed_tokens)
        self._stores.blocks_freed(tracked)

    def loads_failed(self, block_ids: Set[int],
                     request_ids: AbstractSet[str] = frozenset()) -> None:
        """What was taken for loaded, by us or by others, will be computed, and may be stored then.
        Of ours it is not loaded again: vLLM asks anew for a request that lost all, for as long as
        its loads fail. request_ids: of those that lost all."""
        if not block_ids and not request_ids:
            return  # nothing was lost: loads of long prompts have thousands of blocks each
        self._doubts.fail(block_ids)
        self._stores.spoil(block_ids, self._tracked.values())
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
        self._stores.forget()
        for tracked in self._tracked.values():
            tracked.is_stale = any(tracked.table)  # it has begun
            if tracked.lookup is not None:
                tracked.lookup.give_up()
                tracked.lookup = None

    @property
    def has_work(self) -> bool:
        """Something waits for the next step, even if nothing else does."""
        return self._stores.count > 0 or bool(self._new_loads)

    @property
    def held_count(self) -> int:
        """Leases, and requests on their way."""
        lookups = sum(t.lookup is not None for t in self._tracked.values())
        return lookups + len(self._loading) + self._stores.count + self._asker.pending_count

    def close(self) -> None:
        """Gives up everything."""
        for tracked in self._tracked.values():
            if tracked.lookup is not None:
                tracked.lookup.give_up()
        for loading in self._loading.values():
            loading.lookup.give_up()
        self._stores.close()
        self._tracked, self._loading = {}, {}


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
