"""LMCache's memory and its two controllers as far as an L2 adapter can see them, with the rules of
the contract checked: this stand-in, or LMCache's own classes where they are installed.

An object's right bytes follow from its key, so whatever is loaded is compared. Its memory is
overwritten as soon as a task is over, so whoever reads or writes it later is found out.
"""
import collections
import dataclasses
import hashlib
import random
import select
import types

import numpy

from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.platform import consume_fd

POISON = 0xEE
LONG_MS = 60_000


class Violation(AssertionError):
    """The adapter broke its contract, or brought wrong bytes."""


def require(condition, what):
    if not condition:
        raise Violation(what)


@dataclasses.dataclass(frozen=True)
class Type:
    """A tensor's type, as torch has them."""
    name: str
    itemsize: int

    def __str__(self):
        return f"torch.{self.name}"


BF16, FP16, FP8 = Type("bfloat16", 2), Type("float16", 2), Type("float8_e4m3fn", 1)


class Memory:
    """One object of the pool. raw_data is larger than the object, as LMCache's is aligned."""

    def __init__(self, shapes, dtypes, used_bytes=None):
        self.size = sum(int(numpy.prod(s)) * d.itemsize for s, d in zip(shapes, dtypes))
        self.raw_data = numpy.full(self.size + 64, POISON, numpy.uint8)
        self.metadata = types.SimpleNamespace(shapes=shapes, dtypes=dtypes, shape=shapes[0],
                                              dtype=dtypes[0])
        self.used_bytes = used_bytes

    def get_size(self):
        return self.size if self.used_bytes is None else self.used_bytes

    @property
    def bytes(self):
        return self.raw_data[:self.size]


def right_bytes(key, count):
    digest = hashlib.sha256(repr(dataclasses.astuple(key)).encode()).digest()
    return numpy.frombuffer(digest * (count // 32 + 1), numpy.uint8)[:count]


@dataclasses.dataclass(frozen=True)
class Group:
    """Of objects. window_chunks: what of a prompt's end it needs; -1: all."""
    shapes: tuple
    dtypes: tuple
    window_chunks: int = -1


FULL = Group(((2, 2, 16, 24),), (BF16,))
WINDOW = Group(((2, 1, 16, 24), (16, 8)), (BF16, FP8), window_chunks=2)


class Engine:
    """One LMCache instance with one adapter."""

    def __init__(self, adapter, groups=(FULL,), world_size=1, model="meta/llama"):
        self.adapter = adapter
        self.groups = groups
        self.world_size = world_size
        self.model = model
        self.counts = collections.Counter()
        self.locked = collections.Counter()
        self.poisoned = []
        self.said = {number: MemoryLayoutDesc(list(group.shapes), list(group.dtypes))
                     for number, group in enumerate(groups)}
        numbers = {adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(),
                   adapter.get_load_event_fd()}
        require(len(numbers) == 3, "each kind of task has an event of its own")

    def rows(self, tokens, salt=""):
        """Keys of a prompt of one chunk a token: a row an object group and rank."""
        hashes = []
        for token in tokens:
            hashes.append(hashlib.sha256((hashes[-1] if hashes else b"") + bytes([token])).digest())
        return [[ObjectKey(chunk, self.model, (self.world_size << 24) | (rank << 16), number, salt)
                 for chunk in hashes]
                for number in range(len(self.groups)) for rank in range(self.world_size)]

    def memory_of(self, key):
        group = self.groups[key.object_group_id]
        return Memory(group.shapes, group.dtypes)

    def wait(self, number, take):
        """Until the event tells and the result is there."""
        poller = select.poll()
        poller.register(number, select.POLLIN)
        while True:
            result = take()
            if result is not None:
                return result
            require(poller.poll(LONG_MS), "a task was never told to be over")
            consume_fd(number)

    # ---- the prefetch controller ----

    def lookup(self, rows):
        """Which are there, by row; each of them is locked."""
        keys = [key for row in rows for key in row]
        task = self.adapter.submit_lookup_and_lock_task(keys, self.said)
        bits = self.wait(self.adapter.get_lookup_and_lock_event_fd(),
                         lambda: self.adapter.query_lookup_and_lock_result(task))
        require(self.adapter.query_lookup_and_lock_result(task) is None, "a result comes once")
        found = iter([bits.test(i) for i in range(len(keys))])
        answer = [[next(found) for _ in row] for row in rows]
        self.locked.update(key for row, hits in zip(rows, answer) for key, is_hit in zip(row, hits)
                           if is_hit)
        return answer

    def unlock(self, keys):
        for key in keys:
            require(self.locked[key] > 0, "unlocked what is not locked")
            self.locked[key] -= 1
        self.adapter.submit_unlock(keys)

    def load(self, keys):
        """Which of them were loaded, every byte right."""
        objects = [self.memory_of(key) for key in keys]
        task = self.adapter.submit_load_task(keys, objects)
        bits = self.wait(self.adapter.get_load_event_fd(),
                         lambda: self.adapter.query_load_result(task))
        for i, (key, memory) in enumerate(zip(keys, objects)):
            require(numpy.all(memory.raw_data[memory.size:] == POISON), "wrote past the object")
            if bits.test(i):
                require(numpy.array_equal(memory.bytes, right_bytes(key, memory.size)),
                        "wrong bytes were loaded")
            self._poison(memory)
        return [bits.test(i) for i in range(len(keys))]

    def _poison(self, memory):
        memory.raw_data[:] = POISON
        self.poisoned = self.poisoned[-64:] + [memory]

    def usable(self, answer):
        """Chunks of the longest prefix that every row can serve."""
        windows = [group.window_chunks for group in self.groups for _ in range(self.world_size)]
        for count in range(len(answer[0]), 0, -1):
            if all(all(hits[:count] if window < 0 else hits[max(0, count - window):count])
                   for hits, window in zip(answer, windows)):
                return count
        return 0

    def fetch(self, tokens, salt=""):
        """Chunks of a prompt that were loaded."""
        rows = self.rows(tokens, salt)
        answer = self.lookup(rows)
        count = self.usable(answer)
        wanted, others = [], []
        for (row, hits), window in zip(zip(rows, answer), [
                group.window_chunks for group in self.groups for _ in range(self.world_size)]):
            first = 0 if window < 0 else max(0, count - window)
            for i, (key, is_hit) in enumerate(zip(row, hits)):
                if is_hit:
                    (wanted if first <= i < count else others).append(key)
        self.unlock(others)
        loaded = self.load(wanted) if wanted else []
        self.unlock(wanted)
        self.counts["loaded"] += sum(loaded)
        self.counts["lost"] += loaded.count(False)
        return count if all(loaded) else 0

    # ---- the store controller ----

    def store(self, keys):
        """Whether the task succeeded. Groups are mixed, as LMCache mixes them."""
        objects = [self.memory_of(key) for key in keys]
        for key, memory in zip(keys, objects):
            memory.bytes[:] = right_bytes(key, memory.size)
        return self.store_objects(keys, objects)

    def store_objects(self, keys, objects):
        task = self.adapter.submit_store_task(keys, objects)
        done = {}

        def take():
            done.update(self.adapter.pop_completed_store_tasks())
            require(set(done) <= {task}, "an unknown task")
            return done.get(task)

        result = self.wait(self.adapter.get_store_event_fd(), take)
        for memory in objects:
            self._poison(memory)
        return result

    def serve(self, tokens, salt=""):
        """One request: what can be loaded is, the rest is computed and stored, a task a rank."""
        count = self.fetch(tokens, salt)
        self.counts["requests"] += 1
        self.counts["hit_chunks"] += count
        by_rank = collections.defaultdict(list)
        for row in self.rows(tokens, salt):
            by_rank[row[0].kv_rank] += row[count:]
        for keys in by_rank.values():
            if keys:
                chance = random.Random(len(keys))
                if chance.random() < 0.3:  # objects are finished as their copies are
                    chance.shuffle(keys)
                self.counts["store_failed"] += not self.store(keys).is_successful()
        return count

    def close(self):
        require(not +self.locked, "locks are left")
        for memory in self.poisoned:
            require(numpy.all(memory.raw_data == POISON), "wrote after the task was over")
        self.adapter.close()
