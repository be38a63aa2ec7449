"""An inference engine without a model: vLLM's scheduler and workers as far as a KV connector can
see them, with every rule of the connector's contract checked at every step.

A block's right bytes follow from the hash of the tokens up to its end and from the weights of the
request's LoRA adapter, so every step can tell whether what attention would read is right, whoever
put it there. A worker keeps two adapters by their ids, and reads the files of one it does not have.
KV cache groups with a window give their blocks back once it has passed them, and have block 0 in
their place, as in vLLM. A group of states has one block that requests still need, with the state
after the tokens so far; a step starts from it and leaves its own in the block where it ends, steps
of a prompt end with blocks, and what will then have the state at its end is handed over, but for
some; so is what has one within it.

As vLLM does with asynchronous scheduling and with a pipeline, it schedules up to `depth` steps
before the first of them has been computed; every worker takes the steps in order, in its own time.
"""
import collections
import pickle
import time
import types
import typing

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm_engine_drafts import Drafted
from vllm_engine_pauses import Pauses
from vllm_engine_request import FINISHED, LOADING, RUNNING, WAITING, Request
from vllm_engine_siblings import Siblings
from vllm_engine_worker import (NULL, ChunkedLocalAttentionSpec, FullAttentionSpec, HostMemory,
                                MambaSpec, MLAAttentionSpec, SlidingWindowMLASpec,
                                SlidingWindowSpec, Worker, require)

STATE = "state"  # in place of a group's window


class Chunk(typing.NamedTuple):
    """In place of a group's window: the next token attends to its own chunk of so many tokens."""
    tokens: int


def _layers_of(kv_cache, kernels):
    """As vLLM's compilation knows them: what reads a layer's pages."""
    layer = types.SimpleNamespace(get_attn_backend=lambda: types.SimpleNamespace(
        get_name=lambda: kernels))
    return {name: layer for group in kv_cache.kv_cache_groups for name in group.layer_names}


def _spec_of(window, is_latent, **named):
    """Of a KV cache group."""
    if window == STATE:
        return MambaSpec(**named, mamba_cache_mode="align", num_speculative_blocks=0)
    if isinstance(window, Chunk):
        return ChunkedLocalAttentionSpec(**named, attention_chunk_size=window.tokens)
    if window:
        kind = SlidingWindowMLASpec if is_latent else SlidingWindowSpec
        return kind(**named, sliding_window=window)
    return (MLAAttentionSpec if is_latent else FullAttentionSpec)(**named)


def _window_of(window):
    if isinstance(window, Chunk):
        return window.tokens
    return 1 if window == STATE else window - 1 if window else 0


class Engine(Pauses, Drafted, Siblings):
    """One instance. `random` decides what a real one would leave to chance. stages: how many layers
    of each KV cache group each pipeline stage has; None: one stage with `layers` of each. shards:
    tensor parallel ranks that share out the tokens of a block; a spec has one shard's. beside: the
    connector is one of a MultiConnector's, whose handshake this is; False: it has none. draft_*:
    see Drafted. sibling: see Siblings. kv_heads: the model's, which tensor parallel ranks share
    out; None: 2 a rank."""

    def __init__(self, make_connector, random, *, socket, tp_size=1, block_count=40,
                 block_tokens=8, layers=2, page_shape=(2, 8, 16), chunk_tokens=24, running_max=6,
                 windows=(0,), stages=None, depth=1, shards=1, is_latent=False,
                 memory=HostMemory, zeroes=None, beside=None, worker=Worker, kernels=None,
                 cache_dtype="auto", publishes=False, draft_groups=(), draft_max=None,
                 draft_method="eagle", kv_heads=None, sibling=None, **extra):
        self.publishes, self.events = publishes, []  # KV events
        self.zeroes, self.to_zero = zeroes, []  # new attention blocks, "v1" or "v2": when
        stages = stages or [[layers] * len(windows)]
        self.random, self.depth = random, depth
        self.block_tokens = block_tokens
        self.chunk_tokens = chunk_tokens
        self.running_max = running_max
        # Tokens before the next one that a group keeps; 0: all. Of chunks all of its own.
        self.windows = [_window_of(window) for window in windows]
        self.is_state = [window == STATE for window in windows]
        self.is_chunked = [isinstance(window, Chunk) for window in windows]
        self.takes_failed = len(windows) > 1 or any(self.windows)  # requests, and no block ids
        kv_heads = kv_heads or 2 * tp_size
        named = {"block_size": block_tokens // shards,
                 "num_kv_heads": max(1, kv_heads // tp_size), "head_size": 16}
        specs = [_spec_of(window, is_latent, **named) for window in windows]
        kv_cache = types.SimpleNamespace(num_blocks=block_count, kv_cache_groups=[
            types.SimpleNamespace(kv_cache_spec=spec, layer_names=[
                f"g{g}.layer.{i}" for i in range(sum(stage[g] for stage in stages))])
            for g, spec in enumerate(specs)])
        config = types.SimpleNamespace(
            use_v2_model_runner=zeroes == "v2",
            kv_events_config=types.SimpleNamespace(enable_kv_cache_events=publishes),
            parallel_config=types.SimpleNamespace(tensor_parallel_size=tp_size,
                                                  pipeline_parallel_size=len(stages),
                                                  decode_context_parallel_size=shards),
            compilation_config=types.SimpleNamespace(static_forward_context={} if kernels is None
                                                     else _layers_of(kv_cache, kernels)),
            cache_config=types.SimpleNamespace(cache_dtype=cache_dtype,
                                               prefix_caching_hash_algo="sha256"),
            model_config=types.SimpleNamespace(model="stand-in", hf_config=None, revision=None,
                                               get_total_num_kv_heads=lambda: kv_heads),
            load_config=types.SimpleNamespace(load_format="auto"),
            kv_transfer_config=types.SimpleNamespace(
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"socket": socket, "revision": "1", **extra}))
        self.begin_drafts(kv_cache, config, draft_groups, draft_max, draft_method)
        self.connector = make_connector(config, KVConnectorRole.SCHEDULER, kv_cache)
        self.workers = []
        for number, stage in enumerate(stages):
            firsts = [sum(before[g] for before in stages[:number]) for g in range(len(specs))]
            self.workers += [
                worker(make_connector, config, kv_cache, number * tp_size + tp_rank,
                       list(zip(firsts, stage)), page_shape, memory())
                for tp_rank in range(tp_size)]
        self._shake_hands(tp_size, beside)
        self.begin_siblings(sibling)
        self.is_asleep = False
        self.steps = []  # scheduled: what the workers get, and what becomes of it
        self.updated = 0  # steps whose results have been seen
        self.free = collections.deque(range(1, block_count))  # block 0 is vLLM's null block
        self.users = [0] * block_count
        self.hash_of = [None] * block_count
        self.cached = {}
        self.waiting = collections.deque()
        self.running = []
        self.requests = {}
        self.reported = collections.Counter()  # finished_recving, by how many ranks
        self.promoted, self.states_of_this_step = {}, set()
        self.handed = {}  # of this step, by request
        self.preempted_between = set()  # two steps
        self.counts = collections.Counter()
        self.sources = collections.Counter()  # of loaded tokens, by vLLM's names
        self.stats = None

    def _shake_hands(self, tp_size, beside):
        handshakes = {divmod(w.rank, tp_size): w.connector.get_handshake_metadata()
                      for w in self.workers}
        if beside is not None:  # a MultiConnector hands on what its first child says, if any does
            require(not any(handshakes.values()), "a child among others gave a handshake")
            if beside:
                self.connector.set_xfer_handshake_metadata_pp_aware(
                    {ranks: beside for ranks in handshakes})
        elif len(self.workers) > tp_size or self.random.random() < 0.5:
            self.connector.set_xfer_handshake_metadata_pp_aware(handshakes)
        else:  # as older versions do
            self.connector.set_xfer_handshake_metadata(
                {tp_rank: handshake for (_, tp_rank), handshake in handshakes.items()})

    # ---- blocks ----

    def take(self, count):
        if count > len(self.free):
            return None
        taken = []
        for _ in range(count):
            block_id = self.free.popleft()
            if self.hash_of[block_id] is not None:
                self.cached.pop(self.hash_of[block_id], None)
                self.hash_of[block_id] = None
            self.users[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_id):
        if self.users[block_id] == 0:
            self.free.remove(block_id)
        self.users[block_id] += 1

    def give(self, block_ids):
        for block_id in reversed(block_ids):
            if block_id == NULL:
                continue
            self.users[block_id] -= 1
            if self.users[block_id] == 0:
                self.free.append(block_id)

    def give_all(self, request):
        for table in request.tables:
            self.give(table)
        request.tables, request.cached_count = [[] for _ in self.windows], 0

    def first_kept(self, group, next_token):
        """The first block that `group` keeps for computing this token."""
        window = self.windows[group]
        if self.is_chunked[group]:
            return next_token // window * window // self.block_tokens
        return max(0, next_token - window) // self.block_tokens if window else 0

    def drop_behind(self, request, next_token):
        for group, table in enumerate(request.tables):
            for i in range(min(self.first_kept(group, next_token), len(table))):
                self.give(table[i:i + 1])
                table[i] = NULL

    def local_hit(self, request):
        """(blocks, tables): where every group has what it keeps."""
        limit = (request.num_tokens - 1) // self.block_tokens
        hashes, count = request.block_hashes[:limit], 0
        while count < len(hashes) and (hashes[count], 0) in self.cached:
            count += 1
        count = self.without_drafted(count)
        while any((hashes[i], group) not in self.cached for group in range(len(self.windows))
                  for i in range(self.first_kept(group, count * self.block_tokens), count)):
            count -= 1
        tables = []
        for group in range(len(self.windows)):
            first = self.first_kept(group, count * self.block_tokens)
            tables.append([NULL] * first
                          + [self.cached[(h, group)] for h in hashes[first:count]])
        return count, tables

    def cache_full_blocks(self, request, scheduled_count=0):
        """As vLLM does, also before what is scheduled has been computed."""
        tokens = min(request.num_computed_tokens + scheduled_count, request.num_tokens)
        full = tokens // self.block_tokens
        for group, table in enumerate(request.tables):
            for i in range(request.cached_count, full):
                key = (request.block_hashes[i], group)
                if table[i] != NULL and key not in self.cached:
                    self.cached[key] = table[i]
                    self.hash_of[table[i]] = key
                if table[i] != NULL and self.is_state[group]:
                    self.states_of_this_step.add(key)
                    if self.random.random() < 0.9:
                        self.hand(request, group, table[i], (i + 1) * self.block_tokens)
            if self.is_state[group] and tokens % self.block_tokens:
                self.hand(request, group, table[-1], tokens)
        request.cached_count = max(request.cached_count, full)

    def uncache_uncomputed(self, request):
        """What the step was to fill and will not. vLLM leaves it in its prefix cache: whoever hits
        it there reads what nobody computed, with a connector or without, and tells us nothing."""
        computed = request.num_computed_tokens // self.block_tokens
        for group, table in enumerate(request.tables):
            for block_hash, block_id in list(zip(request.block_hashes, table))[computed:]:
                if block_id != NULL and self.cached.get((block_hash, group)) == block_id:
                    del self.cached[(block_hash, group)]
                    self.hash_of[block_id] = None

    def hand(self, request, *what):
        self.handed.setdefault(request.request_id, []).append(what)

    # ---- requests ----

    def add(self, request):
        request.tables = [[] for _ in self.windows]
        if self.random.random() < 0.8:  # not every version tells of it
            self.connector.on_new_request(request)
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def abort(self, request):
        request.is_aborted = True
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        self.finish(request)

    def finish(self, request):
        is_loading = request.state == LOADING and request.request_id not in self.promoted
        self.promoted.pop(request.request_id, None)
        request.status.name = "FINISHED_ABORTED" if request.is_aborted else request.ends
        self.drop_behind(request, request.num_computed_tokens)
        delay, _ = self.connector.request_finished_all_groups(
            request, tuple(list(table) for table in request.tables))
        require(not delay, "request_finished asked to keep the blocks and never reports")
        request.state = FINISHED
        if not is_loading:  # else until its load has been reported
            self.give_all(request)
            del self.requests[request.request_id]

    @property
    def has_work(self):
        return (bool(self.requests) or self.updated < len(self.steps)
                or self.connector.has_pending_push_work())

    # ---- a step ----

    def step(self):
        output = types.SimpleNamespace(
            scheduled_new_reqs=[], preempted_req_ids=self.preempted_between,
            num_scheduled_tokens={}, work={},
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[]))
        # Whom a reset has preempted may run again in the very next step, which says both.
        self.preempted_before, self.preempted_between = set(self.preempted_between), set()
        self.states_of_this_step.clear()
        if not self.is_asleep:
            self.schedule_running(output)
            self.schedule_waiting(output)
        output.kv_connector_block_state = types.SimpleNamespace(boundary_state_offloads=self.handed)
        self.handed = {}
        output.its_loads, self.new_loads = self.new_loads, []
        output.our_ids, self.our_ids = self.our_ids, set()
        output.new_block_ids_to_zero = self.to_zero if self.zeroes else None
        self.to_zero = []
        self.steps.append((pickle.dumps(self.connector.build_connector_meta(output)), output))
        for request_id, count in output.num_scheduled_tokens.items():
            self.count_as_computed(self.requests[request_id], count, output)
        self.draft(output)
        for worker in self.workers:
            if self.random.random() < 0.5:  # the others are behind
                self.run_worker(worker, len(self.steps))
        ahead_max = self.depth - 1 if output.num_scheduled_tokens else 0
        while len(self.steps) - self.updated > ahead_max:
            self.finish_step()
        if not output.num_scheduled_tokens:
            time.sleep(0.0005)  # nothing to compute: the loads' threads may go on

    def finish_step(self):
        """Sees the results of the oldest step."""
        number, output = self.updated, self.steps[self.updated][1]
        self.updated += 1
        for worker in self.workers:
            self.run_worker(worker, self.updated)
        self.steps[number] = None
        for worker in self.workers:
            wrong = worker.results[number][3]()
            require(not wrong, "; ".join(wrong))
        self.update(output, [worker.results.pop(number) for worker in self.workers])

    def count_as_computed(self, request, count, output):
        """What is scheduled is, for the scheduler, as good as computed."""
        start = request.num_computed_tokens
        request.num_computed_tokens += count
        samples = request.num_computed_tokens == request.num_tokens
        output.work[request.request_id] = types.SimpleNamespace(
            request=request, start=start, count=count, samples=samples,
            preemptions=request.preemptions, tables=[list(table) for table in request.tables],
            sample=None)

    def schedule_running(self, output):
        for request in list(self.running):
            if request not in self.running:
                continue
            count = self.chunk(request, request.num_computed_tokens)
            if count == 0:
                continue  # its next token is on its way
            grown = self.grow(request, count, output)
            if grown is not None:
                self.record(request, count, grown, output)

    def chunk(self, request, start):
        """Tokens that a step computes of it. With states those of a prompt end with a block, and
        none runs past the last one that another request could start from."""
        count = min(request.num_tokens - start, self.chunk_tokens)
        prefill_end = max(request.prompt_count, request.num_tokens - 1)
        if not any(self.is_state) or start >= prefill_end:
            return count
        end = start + count
        if end < prefill_end:
            end = max(end // self.block_tokens * self.block_tokens, start + 1)
        stops = [(request.num_tokens - 1) // self.block_tokens * self.block_tokens]
        if start % self.block_tokens:
            stops.append((start // self.block_tokens + 1) * self.block_tokens)
        return min([stop for stop in stops if start < stop < end], default=end) - start

    def missing(self, tables, need, kept):
        """Of each group new blocks, so that it has `need`. Of states only the last one."""
        counts = [max(0, need - max(len(table), first)) for table, first in zip(tables, kept)]
        return [min(count, 1) if is_state else count
                for count, is_state in zip(counts, self.is_state)]

    def grow(self, request, count, output):
        need = -(-(request.num_computed_tokens + count) // self.block_tokens)
        self.drop_behind(request, request.num_computed_tokens)
        while True:
            missing = self.missing(request.tables, need, [0] * len(request.tables))
            new = self.take(sum(missing))
            if new is not None:
                return self.extend(request, need, missing, new)
            # By priority, vLLM preempts requests that it has scheduled in this very step.
            victim = self.random.choice(self.running) if self.zeroes else self.running[-1]
            self.preempt(victim, output)
            if victim is request:
                return None

    def extend(self, request, need, counts, new):
        """New blocks behind each table; which."""
        grown = []
        for table, count, is_state in zip(request.tables, counts, self.is_state):
            self.to_zero += [] if is_state else new[:count]
            behind = [NULL] * max(0, need - len(table) - count) + new[:count]
            grown.append(behind)
            table += behind
            new = new[count:]
        return grown

    def preempt(self, request, output):
        self.running.remove(request)
        if request.request_id in output.num_scheduled_tokens:
            self.uncache_uncomputed(request)
        self.forget_schedule(request, output)
        self.handed.pop(request.request_id, None)
        self.give_all(request)
        request.num_computed_tokens = 0
        request.preemptions += 1
        request.state = WAITING
        self.waiting.appendleft(request)
        output.preempted_req_ids.add(request.request_id)
        self.counts["preempted"] += 1

    @staticmethod
    def forget_schedule(request, output):
        if output.num_scheduled_tokens.pop(request.request_id, None) is None:
            return
        cached = output.scheduled_cached_reqs
        if request.request_id in cached.req_ids:
            at = cached.req_ids.index(request.request_id)
            for column in (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
                del column[at]

    def record(self, request, count, new_ids, output):
        output.num_scheduled_tokens[request.request_id] = count
        self.cache_full_blocks(request, count)
        cached = output.scheduled_cached_reqs
        if not request.was_scheduled:
            output.scheduled_new_reqs.append(types.SimpleNamespace(
                req_id=request.request_id,
                block_ids=tuple(list(table) for table in request.tables),
                num_computed_tokens=request.num_computed_tokens))
            request.was_scheduled = True
            return
        is_resumed = request.state != RUNNING
        cached.req_ids.append(request.request_id)
        if is_resumed:
            cached.resumed_req_ids.add(request.request_id)
        ids = tuple(list(ids) for ids in (request.tables if is_resumed else new_ids))
        cached.new_block_ids.append(ids if any(ids) else None)
        cached.num_computed_tokens.append(request.num_computed_tokens)

    def schedule_waiting(self, output):
        skipped = []
        while self.waiting and len(self.running) < self.running_max and \
                not output.preempted_req_ids - self.preempted_before:
            request = self.waiting.popleft()
            if request.state == LOADING and request.request_id not in self.promoted:
                skipped.append(request)
                continue
            verdict = self.admit(request, output)
            if verdict != "run":
                skipped.append(request)
            if verdict == "full":
                break
        self.waiting.extendleft(reversed(skipped))

    def admit(self, request, output):
        tokens, is_async = 0, False
        local, tables = len(request.tables[0]), request.tables
        if request.state == LOADING:
            request.num_computed_tokens = self.promoted[request.request_id]
            if request.num_computed_tokens == request.num_tokens:
                request.num_computed_tokens -= 1
        elif request.num_computed_tokens == 0:
            local, tables = self.local_hit(request)
            if local and any((request.block_hashes[local - 1], group) in self.states_of_this_step
                             for group in range(len(tables))):
                return "full"
            tokens, is_async = self.ask(request, local * self.block_tokens)
            if tokens is None:
                return "later"
        start = request.num_computed_tokens or (local * self.block_tokens + tokens)
        count = 0 if is_async else self.chunk(request, start)
        zeroed_count = len(self.to_zero)
        new = self.allocate(request, tables, start, -(-(start + count) // self.block_tokens))
        if new is None:
            return "full"
        if is_async:
            del self.to_zero[zeroed_count:]  # the load fills them
        if request.state != LOADING:
            request.cached_count = local
        is_its = self.tell_allocated(request, tokens, local)
        if is_async:
            request.state = LOADING
            end = local + tokens // self.block_tokens
            request.loading_ids = [b for table in request.tables for b in table[local:end]
                                   if b != NULL]
            request.num_computed_tokens = start
            self.draft_loaded(request, local, end)
            if is_its:
                return "loading"
            self.counts["loaded_tokens"] += tokens
            sources = self.connector.get_external_cache_hit_sources(request, tokens)
            require(sum(sources.values()) == tokens, f"sources of {tokens} tokens: {sources}")
            self.sources.update({source.value: count for source, count in sources.items()})
            return "loading"
        self.promoted.pop(request.request_id, None)
        request.num_computed_tokens = start
        self.record(request, count, new, output)
        request.state = RUNNING
        self.running.append(request)
        return "run"

    def allocate(self, request, tables, start, need):
        """Adopts the blocks of `tables`, as far as they are kept, and takes what is missing."""
        is_new = tables is not request.tables
        if is_new:
            for table in tables:
                for block_id in table:
                    if block_id != NULL:
                        self.share(block_id)
        kept = [self.first_kept(group, start) for group in range(len(tables))]
        missing = self.missing(tables, need, kept)
        new = self.take(sum(missing))
        if new is None:
            if is_new:
                for table in tables:
                    self.give(table)
            return None
        request.tables = tables
        for table, first in zip(tables, kept):
            table += [NULL] * (first - len(table))
        self.drop_behind(request, start)
        return self.extend(request, need, missing, new)

    def ask(self, request, local_tokens):
        tokens, is_async = self.connector.get_num_new_matched_tokens(request, local_tokens)
        if self.random.random() < 0.1:  # it may be asked any number of times
            again = self.connector.get_num_new_matched_tokens(request, local_tokens)
            require(tokens is None or again == (tokens, is_async),
                    "asking twice changed the answer")
        if tokens is None:
            self.counts["asked_again"] += 1
            return None, False
        tokens, is_async = self.choose(request, local_tokens, (tokens, is_async))
        require(tokens % self.block_tokens == 0, f"{tokens} tokens are not whole blocks")
        require(not (is_async and tokens == 0), "an asynchronous load of nothing")
        require(tokens == 0 or is_async or request.request_id in self.its_hits,
                "a synchronous load")
        require(local_tokens + tokens <= request.num_tokens, "more tokens than the request has")
        return tokens, is_async

    def run_worker(self, worker, step_count):
        """Has it take the steps, in order, up to the first `step_count`."""
        while worker.taken < step_count:
            worker.results[worker.taken] = self.take_step(worker, *self.steps[worker.taken])
            worker.taken += 1

    def take_step(self, worker, metadata, output):
        connector, metadata = worker.connector, pickle.loads(metadata)
        if self.zeroes == "v2":  # as vLLM's model runner v2: update_requests, then pre_forward
            worker.zero(output.new_block_ids_to_zero)
        connector.handle_preemptions(metadata)
        if self.zeroes == "v1":
            worker.zero(output.new_block_ids_to_zero)
        connector.bind_connector_metadata(metadata)
        self.run_its_loads(worker, output)
        loads_first = self.random.random() < 0.5
        if loads_first:
            connector.start_load_kv(None)
        for work in output.work.values():
            self.forward(worker, work)
        if not loads_first:
            connector.start_load_kv(None)
        connector.wait_for_save()
        results = connector.get_transfer_results(set())
        require(not results.finished_sending, "finished_sending of a request that was not kept")
        require(results.failed_recving <= results.finished_recving, "failed, and not finished")
        bad = connector.get_block_ids_with_load_errors()
        reports = connector.build_connector_worker_meta()
        self.observe(connector)
        connector.clear_connector_metadata()
        require(not bad or not self.takes_failed, "block ids of several groups, or a window")
        return results, bad, reports, worker.memory.end_step()

    def forward(self, worker, work):
        request, start, end = work.request, work.start, work.start + work.count
        full = start // self.block_tokens
        weights = worker.weights_of(request.lora_request)
        is_wrong = self.reads_bad(worker, work)
        for group, table in enumerate(work.tables):
            if self.is_state[group]:
                self.advance_state(worker, request, table, group, start, end)
                continue
            for i in range(self.first_kept(group, start), 0 if is_wrong else full):
                worker.check(table[i], group, self.content(work, group, i), weights,
                             f"{request.request_id}: wrong bytes in block {i} of group {group} of "
                             f"rank {worker.rank}")
            for i in range(full, -(-end // self.block_tokens)):
                is_full = (i + 1) * self.block_tokens <= end
                self.write_computed(worker, table[i], group, self.content(work, group, i)
                                    if is_full else None, weights, is_wrong)

    def advance_state(self, worker, request, table, group, start, end):
        weights = worker.weights_of(request.lora_request)
        if start > 0:
            i = (start - 1) // self.block_tokens
            worker.check(table[i], group, request.state_hash(start), weights,
                         f"{request.request_id}: wrong bytes of the state after {start} tokens of "
                         f"group {group} of rank {worker.rank}")
        worker.write(table[(end - 1) // self.block_tokens], group, request.state_hash(end), weights)

    def observe(self, connector):
        """As vLLM's log does."""
        stats = connector.get_kv_connector_stats()
        if stats is not None:
            stats = connector.build_kv_connector_stats(pickle.loads(pickle.dumps(stats.to_dict())))
            require(not stats.is_empty(), "statistics of nothing")
            self.stats = stats if self.stats is None else self.stats.aggregate(stats)

    def update(self, output, results):
        bad = set().union(*(result[1] for result in results))
        finished, its_bad = self.ended_of_its_loads(output)
        bad |= its_bad
        failed = set().union(*(result[0].failed_recving for result in results))
        for result in results:
            for request_id in result[0].finished_recving:
                self.reported[request_id] += 1
                require(request_id in self.requests, f"{request_id} was reported and is unknown")
                require(self.reported[request_id] <= len(self.workers), "reported too often")
                if self.reported[request_id] == len(self.workers):
                    del self.reported[request_id]
                    finished.add(request_id)
        for request in list(self.requests.values()):
            if request.state == LOADING and bad.intersection(request.loading_ids):
                first = next(i for i, b in enumerate(request.tables[0]) if b in bad)
                request.num_computed_tokens = min(request.num_computed_tokens,
                                                  first * self.block_tokens)
                self.counts["lost_loads"] += 1
            elif request.state == LOADING and request.request_id in failed and not bad:
                request.num_computed_tokens = 0
                self.counts["lost_loads"] += 1
        self.rewind(its_bad)
        for work in output.work.values():
            self.advance(work)
        reports = [result[2] for result in results if result[2] is not None]
        merged = reports[0] if reports else None
        for report in reports[1:]:
            merged = merged.aggregate(report)
        self.connector.update_connector_output(types.SimpleNamespace(
            finished_recving=finished, finished_sending=None, invalid_block_ids=bad,
            failed_recving=failed if self.takes_failed else set(),
            kv_connector_worker_meta=merged))
        self.observe(self.connector)
        events = list(self.connector.take_events())
        require(not events or self.publishes, "events, and nobody subscribes")
        self.events += events
        for request_id in finished:
            request = self.requests[request_id]
            require(request.state in (LOADING, FINISHED), f"{request_id} was not loading")
            if request.state == FINISHED:
                self.give_all(request)
                del self.requests[request_id]
                continue
            if request.num_computed_tokens == 0:  # all lost: it begins anew, and asks anew
                self.give_all(request)
                request.state = WAITING
                continue
            self.promoted[request_id] = request.num_computed_tokens
            self.cache_full_blocks(request)

    def sample(self):
        return self.random.randrange(1000) if self.random.random() < 0.3 else 7

    def advance(self, work):
        request = work.request
        if request.state == FINISHED or request.preemptions != work.preemptions:
            return  # its token comes too late
        if not work.samples:
            return
        request.tokens.append(self.sample() if work.sample is None else work.sample)
        request.update_hashes()
        if request.num_tokens >= request.prompt_count + request.output_count:
            self.running.remove(request)
            self.finish(request)
            self.counts["finished"] += 1

    def close(self):
        for worker in self.workers:
            worker.connector.shutdown()
        self.connector.shutdown()
