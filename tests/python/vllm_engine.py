"""An inference engine without a model: vLLM's scheduler and workers as far as a KV connector can
see them, with every rule of the connector's contract checked at every step.

A block's right bytes follow from the hash of the tokens up to its end, so every step can tell
whether what attention would read is right, whoever put it there.
"""
import collections
import hashlib
import time
import types

import numpy
import torch

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

WAITING, LOADING, RUNNING, FINISHED = "waiting", "loading", "running", "finished"


class FullAttentionSpec(types.SimpleNamespace):
    """By its name vLLM's own: connectors tell the kinds apart."""


class Violation(AssertionError):
    """The connector broke its contract, or served wrong bytes."""


def require(condition, what):
    if not condition:
        raise Violation(what)


class Request:
    """As connectors see vLLM's."""

    def __init__(self, request_id, tokens, output_count, block_tokens):
        self.request_id = request_id
        self.tokens = list(tokens)
        self.output_count = output_count
        self.prompt_count = len(self.tokens)
        self.block_tokens = block_tokens
        self.block_hashes = []
        self.num_computed_tokens = 0
        self.state = WAITING
        self.block_ids = []
        self.cached_count = 0  # blocks entered into the prefix cache
        self.was_scheduled = False
        self.is_aborted = False
        self.loading_ids = []
        self.update_hashes()

    @property
    def num_tokens(self):
        return len(self.tokens)

    def update_hashes(self):
        while (len(self.block_hashes) + 1) * self.block_tokens <= len(self.tokens):
            first = len(self.block_hashes) * self.block_tokens
            parent = self.block_hashes[-1] if self.block_hashes else b"root"
            chunk = numpy.array(self.tokens[first:first + self.block_tokens], "<u4").tobytes()
            self.block_hashes.append(hashlib.sha256(parent + chunk).digest())


class Worker:
    """One rank: its KV cache and its half of the connector."""

    def __init__(self, make_connector, config, kv_cache_config, rank, layers, page_shape):
        self.rank = rank
        self.blocks = kv_cache_config.num_blocks
        self.caches = {f"layer.{i}": torch.zeros((self.blocks, *page_shape), dtype=torch.int16)
                       for i in range(layers)}
        config = types.SimpleNamespace(**vars(config))
        config.parallel_config = types.SimpleNamespace(**vars(config.parallel_config), rank=rank)
        self.connector = make_connector(config, KVConnectorRole.WORKER, kv_cache_config)
        self.connector.register_kv_caches(self.caches)

    def right_bytes(self, block_hash, layer):
        seed = hashlib.sha256(block_hash + bytes([layer, self.rank])).digest()
        page = self.caches[f"layer.{layer}"][0]
        count = page.numel() * 2
        return numpy.frombuffer((seed * (count // 32 + 1))[:count], numpy.int16)

    def write(self, block_id, block_hash):
        for layer in range(len(self.caches)):
            page = self.caches[f"layer.{layer}"][block_id]
            if block_hash is None:  # not full yet
                page.fill_(-1)
            else:
                page.copy_(torch.from_numpy(self.right_bytes(block_hash, layer).copy())
                           .view(page.shape))

    def is_right(self, block_id, block_hash):
        return all(numpy.array_equal(
            self.caches[f"layer.{layer}"][block_id].reshape(-1).numpy(),
            self.right_bytes(block_hash, layer)) for layer in range(len(self.caches)))


class Engine:
    """One instance. `random` decides what a real one would leave to chance."""

    def __init__(self, make_connector, random, *, socket, tp_size=1, block_count=40,
                 block_tokens=8, layers=2, page_shape=(2, 8, 16), chunk_tokens=24, running_max=6,
                 **extra):
        self.random = random
        self.block_tokens = block_tokens
        self.chunk_tokens = chunk_tokens
        self.running_max = running_max
        spec = FullAttentionSpec(block_size=block_tokens, num_kv_heads=2, head_size=16)
        group = types.SimpleNamespace(layer_names=[f"layer.{i}" for i in range(layers)],
                                      kv_cache_spec=spec)
        kv_cache = types.SimpleNamespace(num_blocks=block_count, kv_cache_groups=[group])
        config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(tensor_parallel_size=tp_size),
            cache_config=types.SimpleNamespace(cache_dtype="auto",
                                               prefix_caching_hash_algo="sha256"),
            model_config=types.SimpleNamespace(model="stand-in", hf_config=None, revision=None),
            load_config=types.SimpleNamespace(load_format="auto"),
            kv_transfer_config=types.SimpleNamespace(
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"socket": socket, "revision": "1", **extra}))
        self.connector = make_connector(config, KVConnectorRole.SCHEDULER, kv_cache)
        self.workers = [Worker(make_connector, config, kv_cache, rank, layers, page_shape)
                        for rank in range(tp_size)]
        self.connector.set_xfer_handshake_metadata(
            {w.rank: w.connector.get_handshake_metadata() for w in self.workers})
        self.free = collections.deque(range(1, block_count))  # block 0 is vLLM's null block
        self.users = [0] * block_count
        self.hash_of = [None] * block_count
        self.cached = {}
        self.waiting = collections.deque()
        self.running = []
        self.requests = {}
        self.reported = collections.Counter()  # finished_recving, by how many ranks
        self.promoted = {}
        self.counts = collections.Counter()

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
            self.users[block_id] -= 1
            if self.users[block_id] == 0:
                self.free.append(block_id)

    def local_hit(self, request):
        found = []
        for block_hash in request.block_hashes[:(request.num_tokens - 1) // self.block_tokens]:
            if block_hash not in self.cached:
                break
            found.append(self.cached[block_hash])
        return found

    def cache_full_blocks(self, request, scheduled_count=0):
        """As vLLM does, also before what is scheduled has been computed."""
        tokens = min(request.num_computed_tokens + scheduled_count, request.num_tokens)
        full = tokens // self.block_tokens
        for i in range(request.cached_count, full):
            if request.block_hashes[i] not in self.cached:
                self.cached[request.block_hashes[i]] = request.block_ids[i]
                self.hash_of[request.block_ids[i]] = request.block_hashes[i]
        request.cached_count = max(request.cached_count, full)

    # ---- requests ----

    def add(self, request):
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
        delay, _ = self.connector.request_finished(request, list(request.block_ids))
        require(not delay, "request_finished asked to keep the blocks and never reports")
        request.state = FINISHED
        if not is_loading:  # else until its load has been reported
            self.give(request.block_ids)
            del self.requests[request.request_id]

    @property
    def has_work(self):
        return bool(self.requests) or self.connector.has_pending_push_work()

    # ---- a step ----

    def step(self):
        output = types.SimpleNamespace(
            scheduled_new_reqs=[], preempted_req_ids=set(), num_scheduled_tokens={},
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[]))
        self.schedule_running(output)
        self.schedule_waiting(output)
        metadata = self.connector.build_connector_meta(output)
        results = [self.run_worker(worker, metadata, output) for worker in self.workers]
        self.update(output, results)
        if not output.num_scheduled_tokens:
            time.sleep(0.0005)  # nothing to compute: the loads' threads may go on

    def schedule_running(self, output):
        for request in list(self.running):
            if request not in self.running:
                continue
            count = min(request.num_tokens - request.num_computed_tokens, self.chunk_tokens)
            grown = self.grow(request, count, output)
            if grown is not None:
                self.record(request, count, grown, output)

    def grow(self, request, count, output):
        need = -(-(request.num_computed_tokens + count) // self.block_tokens)
        while True:
            new = self.take(max(0, need - len(request.block_ids)))
            if new is not None:
                request.block_ids += new
                return new
            victim = self.running[-1]
            self.preempt(victim, output)
            if victim is request:
                return None

    def preempt(self, request, output):
        self.running.remove(request)
        self.forget_schedule(request, output)
        self.give(request.block_ids)
        request.block_ids, request.num_computed_tokens, request.cached_count = [], 0, 0
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
                req_id=request.request_id, block_ids=(list(request.block_ids),),
                num_computed_tokens=request.num_computed_tokens))
            request.was_scheduled = True
            return
        is_resumed = request.state != RUNNING
        cached.req_ids.append(request.request_id)
        if is_resumed:
            cached.resumed_req_ids.add(request.request_id)
        ids = list(request.block_ids) if is_resumed else list(new_ids)
        cached.new_block_ids.append((ids,) if ids else None)
        cached.num_computed_tokens.append(request.num_computed_tokens)

    def schedule_waiting(self, output):
        skipped = []
        while self.waiting and len(self.running) < self.running_max and \
                not output.preempted_req_ids:
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
        local, tokens, is_async = [], 0, False
        if request.state == LOADING:
            request.num_computed_tokens = self.promoted[request.request_id]
            if request.num_computed_tokens == request.num_tokens:
                request.num_computed_tokens -= 1
        elif request.num_computed_tokens == 0:
            local = self.local_hit(request)
            tokens, is_async = self.ask(request, len(local) * self.block_tokens)
            if tokens is None:
                return "later"
        held = len(request.block_ids) or len(local)
        start = request.num_computed_tokens or (len(local) * self.block_tokens + tokens)
        count = 0 if is_async else min(request.num_tokens - start, self.chunk_tokens)
        need = -(-(start + count) // self.block_tokens)
        for block_id in local:
            self.share(block_id)
        new = self.take(max(0, need - held))
        if new is None:
            self.give(local)
            return "full"
        if request.state != LOADING:
            request.block_ids = local + new
            request.cached_count = len(local)
        else:
            request.block_ids += new
        blocks = types.SimpleNamespace(get_block_ids=lambda: (list(request.block_ids),))
        self.connector.update_state_after_alloc(request, blocks, tokens)
        if is_async:
            request.state = LOADING
            first = len(local)
            request.loading_ids = request.block_ids[first:first + tokens // self.block_tokens]
            request.num_computed_tokens = start
            self.counts["loaded_tokens"] += tokens
            return "loading"
        self.promoted.pop(request.request_id, None)
        request.num_computed_tokens = start
        self.record(request, count, new, output)
        request.state = RUNNING
        self.running.append(request)
        return "run"

    def ask(self, request, local_tokens):
        tokens, is_async = self.connector.get_num_new_matched_tokens(request, local_tokens)
        if self.random.random() < 0.1:  # it may be asked any number of times
            again = self.connector.get_num_new_matched_tokens(request, local_tokens)
            require(tokens is None or again == (tokens, is_async),
                    "asking twice changed the answer")
        if tokens is None:
            self.counts["asked_again"] += 1
            return None, False
        require(tokens % self.block_tokens == 0, f"{tokens} tokens are not whole blocks")
        require(not (is_async and tokens == 0), "an asynchronous load of nothing")
        require(tokens == 0 or is_async, "a synchronous load")
        require(local_tokens + tokens <= request.num_tokens, "more tokens than the request has")
        return tokens, is_async

    def run_worker(self, worker, metadata, output):
        connector = worker.connector
        connector.handle_preemptions(metadata)
        connector.bind_connector_metadata(metadata)
        loads_first = self.random.random() < 0.5
        if loads_first:
            connector.start_load_kv(None)
        for request_id, count in output.num_scheduled_tokens.items():
            self.forward(worker, self.requests[request_id], count)
        if not loads_first:
            connector.start_load_kv(None)
        connector.wait_for_save()
        sent, received = connector.get_finished(set())
        require(not sent, "finished_sending of a request that was not kept")
        bad = connector.get_block_ids_with_load_errors()
        reports = connector.build_connector_worker_meta()
        connector.clear_connector_metadata()
        return received or set(), bad, reports

    def forward(self, worker, request, count):
        start, end = request.num_computed_tokens, request.num_computed_tokens + count
        for i in range(start // self.block_tokens):
            require(worker.is_right(request.block_ids[i], request.block_hashes[i]),
                    f"{request.request_id}: wrong bytes in block {i} of rank {worker.rank}")
        for i in range(start // self.block_tokens, -(-end // self.block_tokens)):
            is_full = (i + 1) * self.block_tokens <= end
            worker.write(request.block_ids[i], request.block_hashes[i] if is_full else None)

    def update(self, output, results):
        bad = set().union(*(result[1] for result in results))
        finished = set()
        for received, _, _ in results:
            for request_id in received:
                self.reported[request_id] += 1
                require(request_id in self.requests, f"{request_id} was reported and is unknown")
                require(self.reported[request_id] <= len(self.workers), "reported too often")
                if self.reported[request_id] == len(self.workers):
                    del self.reported[request_id]
                    finished.add(request_id)
        for request in list(self.requests.values()):
            if request.state == LOADING and bad.intersection(request.loading_ids):
                first = next(i for i, b in enumerate(request.block_ids) if b in bad)
                request.num_computed_tokens = min(request.num_computed_tokens,
                                                  first * self.block_tokens)
                self.counts["lost_loads"] += 1
        for request_id, count in output.num_scheduled_tokens.items():
            self.advance(self.requests[request_id], count)
        reports = [result[2] for result in results if result[2] is not None]
        merged = reports[0] if reports else None
        for report in reports[1:]:
            merged = merged.aggregate(report)
        self.connector.update_connector_output(types.SimpleNamespace(
            finished_recving=finished, finished_sending=None, invalid_block_ids=bad,
            kv_connector_worker_meta=merged))
        for request_id in finished:
            request = self.requests[request_id]
            require(request.state in (LOADING, FINISHED), f"{request_id} was not loading")
            if request.state == FINISHED:
                self.give(request.block_ids)
                del self.requests[request_id]
                continue
            if request.num_computed_tokens == 0:  # all lost: it begins anew, and asks anew
                self.give(request.block_ids)
                request.block_ids, request.cached_count = [], 0
                request.state = WAITING
                continue
            self.promoted[request_id] = request.num_computed_tokens
            self.cache_full_blocks(request)

    def advance(self, request, count):
        request.num_computed_tokens += count
        self.cache_full_blocks(request)
        if request.num_computed_tokens < request.num_tokens:
            return
        request.tokens.append(self.random.randrange(1000) if self.random.random() < 0.3 else 7)
        request.update_hashes()
        if request.num_tokens >= request.prompt_count + request.output_count:
            self.running.remove(request)
            self.finish(request)
            self.counts["finished"] += 1

    def close(self):
        for worker in self.workers:
            worker.connector.shutdown()
        self.connector.shutdown()
