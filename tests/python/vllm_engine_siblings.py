"""A connector beside ours in the engine without a model, as far as ours can see it: vLLM's
MultiConnector has the first one load that has something, and tells the others of no tokens."""
import types

from vllm_engine_worker import require

RUNNING, LOADING = "running", "loading"


class Sibling:
    """Comes before ours. hit: (request, local blocks) -> blocks beyond these that it has. is_async:
    it loads aside from the steps, in so many of them. fails: how many blocks of a load, from its
    end, it does not fill. hides_tables: as MultiConnector once did, others get no block ids."""

    def __init__(self, hit, is_async=False, fails=lambda request: 0, hides_tables=False,
                 load_steps=3):
        self.hit, self.is_async, self.fails = hit, is_async, fails
        self.hides_tables, self.load_steps = hides_tables, load_steps


class Load:
    """One of its. Blocks [first, end) of a request."""

    def __init__(self, request, table, first, end, fail_count):
        self.request, self.table, self.first, self.end = request, list(table), first, end
        self.bad_ids = set(self.table[end - fail_count:end]) if fail_count else set()
        self.steps_left = 0

    def begin(self, worker):
        """Aside from the steps: what its blocks hold until it ends is nothing."""
        for block_id in self.table[self.first:self.end]:
            worker.write(block_id, 0, None, worker.base)

    def run(self, worker):
        weights = worker.weights_of(self.request.lora_request)
        for i in range(self.first, self.end):
            is_bad = self.table[i] in self.bad_ids
            worker.write(self.table[i], 0, None if is_bad else self.request.block_hashes[i],
                         weights)
            (worker.bad_ids.add if is_bad else worker.bad_ids.discard)(self.table[i])


class Siblings:
    """Of an Engine: of one KV cache group. loads of a step are in its output."""

    def begin_siblings(self, sibling):
        self.sibling = sibling
        self.its_hits = {}  # blocks that it is to load, by request
        self.its_loads = []  # under way, aside from the steps
        self.new_loads = []  # of the step that is being scheduled
        self.our_ids = set()  # blocks that ours loads into from then on
        for worker in self.workers:
            worker.bad_ids = set()  # that hold what nobody should read

    def choose(self, request, local_tokens, ours):
        """Who loads: the sibling's answer in place of ours, if it has any."""
        self.its_hits.pop(request.request_id, None)
        if self.sibling is None or ours[0] is None:
            return ours
        most = (request.num_tokens - 1 - local_tokens) // self.block_tokens
        count = min(most, self.sibling.hit(request, local_tokens // self.block_tokens))
        if count <= 0:
            return ours
        self.its_hits[request.request_id] = count
        return count * self.block_tokens, self.sibling.is_async

    def tell_allocated(self, request, tokens, local):
        """Ours of the request's blocks; whether the sibling loads `tokens` behind the first `local`
        blocks."""
        count = self.its_hits.pop(request.request_id, 0) if tokens else 0
        tables = request.tables
        if self.sibling is not None and self.sibling.hides_tables and (count or not tokens):
            tables = [[] for _ in tables]
        self.connector.update_state_after_alloc(request, types.SimpleNamespace(
            get_block_ids=lambda: tuple(list(table) for table in tables)), 0 if count else tokens)
        if tokens and not count:
            self.our_ids.update(request.tables[0][local:local + tokens // self.block_tokens])
        if count:
            load = Load(request, request.tables[0], local, local + count,
                        min(count, self.sibling.fails(request)))
            self.new_loads.append(load)
            if self.sibling.is_async:
                load.steps_left = self.sibling.load_steps
                self.its_loads.append(load)
            self.counts["its_tokens"] += tokens
        return count > 0

    def run_its_loads(self, worker, output):
        """Those that the step begins."""
        worker.bad_ids -= output.our_ids
        for load in output.its_loads:
            (load.begin if self.sibling.is_async else load.run)(worker)

    def ended_of_its_loads(self, output):
        """(requests whose loads have ended, blocks that they did not fill) by the end of a step."""
        ended, bad = set(), set()
        for load in output.its_loads:
            if not self.sibling.is_async:
                bad |= load.bad_ids
        for load in list(self.its_loads):
            load.steps_left -= 1
            if load.steps_left <= 0:
                self.its_loads.remove(load)
                for worker in self.workers:
                    load.run(worker)
                ended.add(load.request.request_id)
                bad |= load.bad_ids
        return ended, bad

    def rewind(self, bad):
        """As vLLM does with what runs on blocks that were not filled: it is computed again from the
        first of them on, and what was computed of it meanwhile is dropped. They stay in its own
        cache: whoever hits them there before that reads what they hold."""
        for request in self.requests.values():
            if request.state != RUNNING or bad.isdisjoint(request.tables[0]):
                continue
            first = next(i for i, b in enumerate(request.tables[0]) if b in bad)
            if first * self.block_tokens >= request.num_computed_tokens:
                continue
            request.num_computed_tokens = first * self.block_tokens
            request.preemptions += 1  # results under way are another time's
            self.counts["rewound"] += 1

    def reads_bad(self, worker, work):
        """Whether a step's attention reads blocks that were not filled, or computed so."""
        full = work.start // self.block_tokens
        return not worker.bad_ids.isdisjoint(work.tables[0][:full])

    def write_computed(self, worker, block_id, group, content, weights, is_wrong):
        require(group == 0 or not is_wrong, "a sibling beside several groups")
        worker.write(block_id, group, None if is_wrong else content, weights)
        (worker.bad_ids.add if is_wrong else worker.bad_ids.discard)(block_id)
