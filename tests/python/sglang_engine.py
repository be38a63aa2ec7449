"""SGLang's cache controller as far as a HiCache storage backend can see it, with every rule of the
contract checked at every call: all ranks make the same calls and their answers are reduced to the
least, as gloo's all_reduce does; nothing raises; what is answered True has the right bytes.

A page's right bytes follow from its hash, its rank and its pool, so that every load can be judged,
whoever stored it.
"""
import collections
import ctypes
import hashlib
import types

import torch

BATCH_PAGES = 4  # SGLang's is 128


class Violation(AssertionError):
    """The backend broke its contract, or served wrong bytes."""


def require(condition, what):
    if not condition:
        raise Violation(what)


class Rank:
    """One rank: its backend, and its host pools by name."""

    def __init__(self, backend, pools, seed):
        self.backend, self.pools, self.seed = backend, pools, seed

    def right_bytes(self, name, key, byte_count):
        seed = hashlib.sha256(f"{self.seed} {name} {key}".encode()).digest()
        return (seed * (byte_count // 32 + 1))[:byte_count]

    def pieces(self, name, page):
        pool = self.pools[name]
        indices = torch.arange(page * pool.page_size, (page + 1) * pool.page_size)
        return list(zip(*pool.get_page_buffer_meta(indices)))

    def compute(self, name, page, key):
        for number, (address, byte_count) in enumerate(self.pieces(name, page)):
            ctypes.memmove(address, self.right_bytes(name, f"{key} {number}", byte_count),
                           byte_count)

    def is_right(self, name, page, key):
        return all(ctypes.string_at(address, byte_count)
                   == self.right_bytes(name, f"{key} {number}", byte_count)
                   for number, (address, byte_count) in enumerate(self.pieces(name, page)))


class Controller:
    """One instance. `random` decides what a real one would leave to chance. window_pages: of a
    second pool, whose last pages a prefix needs; 0: there is none."""

    def __init__(self, ranks, random, transfer_of, *, page_count=40, window_pages=0):
        self.ranks, self.random, self.transfer_of = ranks, random, transfer_of
        self.window_pages = window_pages
        self.free = collections.deque(range(page_count))
        self.host = collections.OrderedDict()  # hash: page, the one used last at the end
        self.counts = collections.Counter()

    # ---- calls: every rank the same ----

    def call(self, name, *arguments):
        answers = []
        for rank in self.ranks:
            try:
                answers.append(getattr(rank.backend, name)(*arguments))
            except BaseException as error:  # pylint: disable=broad-except
                raise Violation(f"{name} raised {type(error).__name__}: {error}") from error
        return answers

    def indices(self, pages):
        size = next(iter(self.ranks[0].pools.values())).page_size
        return torch.cat([torch.arange(page * size, (page + 1) * size) for page in pages])

    def leading(self, flags, keys):
        require(len(flags) == len(keys) and all(isinstance(f, bool) for f in flags),
                f"{flags} for {len(keys)} pages")
        return (flags + [False]).index(False)

    # ---- a request ----

    def run(self, keys):
        """keys: the page hashes of its prompt."""
        local = 0
        while local < len(keys) and keys[local] in self.host:
            self.host.move_to_end(keys[local])
            local += 1
        held = set(keys[:local])
        if self.random.random() < 0.9:
            local = self.prefetch(keys, local, held)
        if self.random.random() < 0.1:
            self.counts["aborted"] += 1
            return
        fresh = keys[local:]
        pages = self.take(len(fresh), held)
        for key, page in zip(fresh, pages):
            for rank in self.ranks:
                for name in rank.pools:
                    rank.compute(name, page, key)
            self.host[key] = page
        self.backup(keys[:local], fresh[:len(pages)], pages)
        self.counts["finished"] += 1

    def take(self, count, held):
        """Pages for so many; those used longest ago make room."""
        pages = []
        while len(pages) < count:
            if not self.free:
                victim = next((key for key in self.host if key not in held), None)
                if victim is None:
                    break
                self.free.append(self.host.pop(victim))
            pages.append(self.free.popleft())
        return pages

    def prefetch(self, keys, local, held):
        wanted, prefix = keys[local:], keys[:local]
        count = self.present(wanted, prefix)
        pages = self.take(count, held)
        loaded = self.load(wanted[:len(pages)], pages, prefix)
        for page in pages[loaded:]:
            self.free.append(page)
        for key, page in zip(wanted[:loaded], pages):
            self.host[key] = page
            held.add(key)
        self.counts["loaded"] += loaded
        return local + loaded

    def present(self, keys, prefix):
        if not keys:
            return 0
        info = types.SimpleNamespace(prefix_keys=prefix)
        if not self.window_pages:
            answers = self.call("batch_exists", keys, info)
            require(all(0 <= answer <= len(keys) for answer in answers),
                    f"{answers} of {len(keys)}")
            return min(answers)
        asked = [self.transfer_of("swa", None, keys[:self.window_pages], is_trailing=True)]
        answers = self.call("batch_exists_v2", keys, asked, info)
        lengths = set(range(1, len(keys) + 1))
        for answer in answers:
            lengths &= set(answer.restorable_prefix_pages)
        return max(lengths, default=0)

    def load(self, keys, pages, prefix):
        """How many are there: the least of all ranks, up to the first that is not."""
        count = 0
        for first in range(0, len(keys), BATCH_PAGES):
            some, into = keys[first:first + BATCH_PAGES], pages[first:first + BATCH_PAGES]
            info = types.SimpleNamespace(prefix_keys=prefix + keys[:first])
            flags = self.call("batch_get_v1", some, self.indices(into), info)
            good = [self.leading(each, some) for each in flags]
            for rank, each in zip(self.ranks, good):
                for key, page in zip(some[:each], into):
                    require(rank.is_right("kv", page, key), f"wrong bytes of {key[:8]}")
            count += min(good)
            if min(good) < len(some):
                return 0 if self.window_pages else count
        if self.window_pages and keys and not self.load_window(keys, pages):
            return 0
        return count

    def load_window(self, keys, pages):
        last, into = keys[-self.window_pages:], pages[-self.window_pages:]
        answers = self.call("batch_get_v2", [self.transfer_of("swa", self.indices(into), last)])
        is_whole = True
        for rank, answer in zip(self.ranks, answers):
            for key, page, is_there in zip(last, into, answer["swa"]):
                require(not is_there or rank.is_right("swa", page, key),
                        f"wrong bytes of {key[:8]} in swa")
            is_whole = is_whole and all(answer["swa"])
        return is_whole

    def backup(self, prefix, keys, pages):
        for first in range(0, len(keys), BATCH_PAGES):
            some, out = keys[first:first + BATCH_PAGES], pages[first:first + BATCH_PAGES]
            info = types.SimpleNamespace(prefix_keys=prefix + keys[:first])
            flags = self.call("batch_set_v1", some, self.indices(out), info)
            if self.window_pages:
                self.call("batch_set_v2", [self.transfer_of("swa", self.indices(out), some)])
            if min(self.leading(each, some) for each in flags) < len(some):
                self.counts["dropped"] += 1
                return  # the rest of the node is not tried
            self.counts["stored"] += len(some)
