"""vLLM's tiering manager as far as a secondary tier can see it, with the rules of the contract
checked, and a scheduler that drives it: this one, or vLLM's own.

A chunk's right bytes follow from its key, so whatever is loaded can be compared.
"""
import collections
import hashlib
import random
import time
import types

import numpy

from vllm.v1.kv_offload.base import LookupResult, ReqContext

CHUNK_TOKENS = 16


class Violation(AssertionError):
    """The tier broke its contract, or brought wrong bytes."""


def require(condition, what):
    if not condition:
        raise Violation(what)


def key_of(parent, token, group):
    return hashlib.sha256(parent[:32] + bytes([token % 256])).digest() + group.to_bytes(4, "big")


def right_bytes(key, count):
    return numpy.frombuffer(hashlib.sha256(key).digest() * (count // 32 + 1), numpy.uint8)[:count]


class StandIn:
    """The manager: an LRU of rows in front of one tier."""

    def __init__(self, make_tier, row_count, row_bytes, job_type):
        self.memory = numpy.full((row_count, row_bytes), 0xEE, numpy.uint8)
        self.view = memoryview(self.memory)
        self.tier = make_tier(self.view)
        self.job_type = job_type
        self.rows = collections.OrderedDict()  # key to row, the coldest first
        self.free = list(range(row_count))
        self.users = collections.Counter()  # keys that must stay
        self.filling = set()
        self.jobs, self.contexts = {}, {}
        self.wanted = {}
        self.number = 0

    def _make_room(self):
        if self.free:
            return self.free.pop()
        for key in self.rows:
            if self.users[key] == 0 and key not in self.filling:
                row = self.rows.pop(key)
                self.memory[row] = 0xEE
                return row
        return None

    def on_new_request(self, context):
        self.contexts[context.req_id] = context
        self.tier.on_new_request(context)

    def lookup(self, key, context):
        self._poll()
        if key in self.filling:
            return LookupResult.HIT_PENDING
        if key in self.rows:
            return LookupResult.HIT
        answer = self.tier.lookup(key, context)
        require(answer in (LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY), answer)
        if answer is not LookupResult.HIT:
            return answer
        row = self._make_room()
        if row is None:
            return LookupResult.MISS
        self.rows[key] = row
        self.filling.add(key)
        self.wanted.setdefault(context.req_id, []).append(key)
        return LookupResult.HIT_PENDING

    def prepare_load(self, keys, context):
        for key in keys:
            self.users[key] += 1
            self.rows.move_to_end(key)
        return types.SimpleNamespace(chunk_ids=[self.rows[key] for key in keys])

    def complete_load(self, keys, context):
        self.users.subtract(keys)

    def touch(self, keys, context):
        self.tier.touch(keys, context)

    def prepare_store(self, keys, context):
        new = [key for key in keys if key not in self.rows]
        for i, key in enumerate(new):
            row = self._make_room()
            if row is None:
                new = new[:i]
                break
            self.rows[key] = row
            self.filling.add(key)
        return types.SimpleNamespace(keys_to_store=new, store_spec=types.SimpleNamespace(
            chunk_ids=[self.rows[key] for key in new]))

    def complete_store(self, keys, context, success=True):
        self.filling.difference_update(keys)
        self.users.update(keys)
        self._submit(self.tier.submit_store, keys, context, False)

    def _submit(self, submit, keys, context, is_promotion):
        self.number += 1
        keys = random.Random(self.number).sample(list(keys), len(keys))  # in no order
        rows = numpy.array([self.rows[key] for key in keys], numpy.int64)
        job = self.job_type(self.number, tuple(keys), rows, is_promotion, context)
        self.jobs[self.number] = job
        submit(job)

    def _poll(self):
        for result in self.tier.get_finished_jobs():
            require(result.job_id in self.jobs, f"job {result.job_id} is unknown, or told twice")
            job = self.jobs.pop(result.job_id)
            if not job.is_promotion:
                self.users.subtract(job.keys)
                continue
            good = set(job.keys if result.success else result.successful_keys or ())
            require(good <= set(job.keys), "successful keys of another job")
            self.filling.difference_update(job.keys)
            for key in set(job.keys) - good:
                row = self.rows.pop(key)
                self.memory[row] = 0xEE
                self.free.append(row)

    def on_schedule_end(self, context):
        self._poll()
        wanted, self.wanted = self.wanted, {}
        for request_id, keys in wanted.items():
            self._submit(self.tier.submit_load, keys, self.contexts[request_id], True)
        self.tier.on_schedule_end(context)

    def has_pending_work(self):
        return bool(self.jobs)

    def on_request_finished(self, context):
        del self.contexts[context.req_id]
        self.tier.on_request_finished(context)

    def reset_cache(self):
        self.tier.drain_jobs()
        self._poll()
        require(not self.jobs, "drain_jobs left jobs")
        for key in self.wanted.pop(None, []):
            self.filling.discard(key)

    def shutdown(self):
        self.tier.shutdown()
        self.view.release()


class Driver:
    """A scheduler with a manager and its rows: looks up, loads what hits, computes the rest."""

    def __init__(self, manager, memory, groups=(0,)):
        self.manager = manager
        self.memory = memory
        self.groups = groups
        self.counts = collections.Counter()
        self.waiting = []
        self.number = 0

    def add(self, tokens, **said):
        """A prompt of one chunk a token."""
        self.number += 1
        context = ReqContext(req_id=f"r{self.number}", **said)
        chains = []
        for group in self.groups:
            chain = []
            for i, token in enumerate(tokens):
                chain.append(key_of(chain[-1] if chain else b"", token, group))
                context.set_offload_key_position(chain[-1], (i + 1) * CHUNK_TOKENS)
            chains.append(chain)
        self.manager.on_new_request(context)
        self.waiting.append((context, chains))

    def step(self):
        """False if nobody waits and nothing is on its way."""
        later, new = [], set()
        for context, chains in self.waiting:
            hits = [self._hits(context, chain) for chain in chains]
            if None in hits:
                later.append((context, chains))
                continue
            new.add(context.req_id)
            for chain, hit in zip(chains, hits):
                self._load(context, chain[:hit])
            for chain, hit in zip(chains, hits):
                self._compute(context, chain[hit:])
            self.counts["finished"] += 1
            self.manager.on_request_finished(context)
        self.waiting = later
        self.manager.on_schedule_end(types.SimpleNamespace(new_req_ids=new,
                                                           preempted_req_ids=set()))
        time.sleep(0.0005)  # a forward pass
        return bool(self.waiting) or self.manager.has_pending_work()

    def _hits(self, context, chain):
        must_wait = False
        for count, key in enumerate(chain):
            answer = self.manager.lookup(key, context)
            if answer is LookupResult.MISS:
                return None if must_wait else count
            must_wait |= answer is not LookupResult.HIT
        return None if must_wait else len(chain)

    def _load(self, context, keys):
        if not keys:
            return
        self.manager.touch(keys, context)
        spec = self.manager.prepare_load(keys, context)
        for key, row in zip(keys, spec.chunk_ids):
            require(numpy.array_equal(self.memory[row], right_bytes(key, self.memory.shape[1])),
                    f"{context.req_id}: wrong bytes")
        self.manager.complete_load(keys, context)
        self.counts["loaded"] += len(keys)

    def _compute(self, context, keys):
        out = self.manager.prepare_store(keys, context) if keys else None
        if out is None or not out.keys_to_store:
            return
        for key, row in zip(out.keys_to_store, out.store_spec.chunk_ids):
            self.memory[row] = right_bytes(key, self.memory.shape[1])
        self.manager.complete_store(out.keys_to_store, context, True)
        self.counts["computed"] += len(out.keys_to_store)

    def run(self, patience_s=60.0):
        deadline = time.monotonic() + patience_s
        while self.step():
            require(time.monotonic() < deadline, f"no progress: {self.counts}")
