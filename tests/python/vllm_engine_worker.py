"""A worker of the engine without a model: one rank's KV cache, what it computes into it, and its
half of the connector."""
import collections
import functools
import hashlib
import itertools
import math
import pathlib
import types
import typing

import numpy
import torch

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

ADAPTERS_MAX = 2
NULL = 0  # the block that stands where a window has passed


class Violation(AssertionError):
    """The connector broke its contract, or served wrong bytes."""


def require(condition, what):
    if not condition:
        raise Violation(what)


class FullAttentionSpec(types.SimpleNamespace):
    """By its name vLLM's own: connectors tell the kinds apart."""


class MLAAttentionSpec(types.SimpleNamespace):
    """As well."""


class MambaSpec(types.SimpleNamespace):
    """As well."""


class SlidingWindowSpec(types.SimpleNamespace):
    """As well."""


class SlidingWindowMLASpec(SlidingWindowSpec):
    """As well."""


class ChunkedLocalAttentionSpec(types.SimpleNamespace):
    """As well."""


class UniformTypeKVCacheSpecs(types.SimpleNamespace):
    """As well: kv_cache_specs has one a layer."""


class HostMemory:
    """How an engine on the CPU writes and reads pages: at once."""

    def __init__(self):
        self._wrong = []

    @staticmethod
    def is_same(seen, values):
        return numpy.array_equal(seen, values)

    def shown(self, tensor):
        return tensor

    def write(self, page, values):
        page.copy_(torch.from_numpy(values).view(page.shape))

    def check(self, page, values, what):
        if not self.is_same(page.reshape(-1).numpy(), values):
            self._wrong.append(what)

    def end_step(self):
        """A function that answers what was found wrong, when the step has been computed."""
        wrong, self._wrong = self._wrong, []
        return lambda: wrong


class Page(typing.NamedTuple):
    """Of layers of one size: a page's shape, and the class of their specification; None: their
    group's."""
    shape: typing.Tuple[int, ...]
    kind: typing.Any = None


class Worker:
    """One rank: its KV cache and its half of the connector. layers: of each KV cache group those
    that its pipeline stage has, (first, count). pages: a shape; or a list of Pages, which the
    layers of a group have in turn: those of a block lie side by side then."""

    @staticmethod
    def make_tensor(shape):
        return torch.zeros(shape, dtype=torch.int16)

    def make_tensors(self, count):
        """Of the i-th layers of all groups."""
        pages = [self.pages[i % len(self.pages)] for i in range(count)]
        if len(self.pages) == 1:
            return [self.make_tensor((self.blocks, *page.shape)) for page in pages]
        sizes = [math.prod(page.shape) for page in pages]
        whole = self.make_tensor((self.blocks, sum(sizes)))
        return [each.unflatten(-1, page.shape)
                for each, page in zip(whole.split(sizes, dim=-1), pages)]

    def group_of(self, group, names):
        """As vLLM tells a worker of it."""
        group = types.SimpleNamespace(**{**vars(group), "layer_names": names})
        if len(self.pages) > 1:
            spec = group.kv_cache_spec
            group.kv_cache_spec = UniformTypeKVCacheSpecs(
                block_size=spec.block_size, kv_cache_specs={
                    name: (page.kind or type(spec))(**{**vars(spec), "head_size": page.shape[-1]})
                    for name, page in zip(names, itertools.cycle(self.pages))})
        return group

    def kind_of(self, group, layer):
        return self.pages[layer % len(self.pages)].kind or type(group.kv_cache_spec)

    def __init__(self, make_connector, config, kv_cache_config, rank, layers, pages, memory):
        # The same blocks are read again and again.
        self.known_bytes = functools.lru_cache(maxsize=4096)(
            lambda *of_block: self.right_bytes(*of_block))
        self.pages = pages if isinstance(pages, list) else [Page(pages)]
        self.rank = rank
        self.memory = memory
        parallel = config.parallel_config
        stage, tp_rank = divmod(rank, parallel.tensor_parallel_size)
        # Whose bytes it has of each group: of a latent ranks with the same tokens have the same.
        self.shares = [
            [(stage, tp_rank % parallel.decode_context_parallel_size
              if "MLA" in self.kind_of(group, i).__name__ else tp_rank)
             for i in range(count)]
            for group, (_, count) in zip(kv_cache_config.kv_cache_groups, layers)]
        self.blocks = kv_cache_config.num_blocks
        self.taken = 0  # steps
        self.results = {}  # of steps that were taken and not asked for, by number
        self.base = b""  # the model's own weights
        self.adapters = collections.OrderedDict()  # weights by id, the least recently used first
        # The i-th layers of all groups share a tensor: a block is of one group at a time.
        tensors = self.make_tensors(max(count for _, count in layers))
        shown = [memory.shown(tensor) for tensor in tensors]
        self.caches = {f"g{g}.layer.{first + i}": shown[i]
                       for g, (first, count) in enumerate(layers) for i in range(count)}
        self.layers = [tensors[:count] for _, count in layers]
        kv_cache_config = types.SimpleNamespace(**{**vars(kv_cache_config), "kv_cache_groups": [
            self.group_of(group, [f"g{g}.layer.{first + i}" for i in range(count)])
            for g, (group, (first, count)) in enumerate(zip(kv_cache_config.kv_cache_groups,
                                                            layers))]})
        config = types.SimpleNamespace(**vars(config))
        config.parallel_config = types.SimpleNamespace(**vars(config.parallel_config), rank=rank)
        self.connector = make_connector(config, KVConnectorRole.WORKER, kv_cache_config)
        self.connector.register_kv_caches(self.caches)

    def weights_of(self, lora):
        """What it computes with, as it was when it was loaded."""
        if lora is None:
            return self.base
        if lora.lora_int_id not in self.adapters or getattr(lora, "load_inplace", False):
            file = pathlib.Path(lora.lora_path, "adapter_model.safetensors")
            self.adapters[lora.lora_int_id] = file.read_bytes()
        self.adapters.move_to_end(lora.lora_int_id)
        while len(self.adapters) > ADAPTERS_MAX:
            self.adapters.popitem(last=False)
        return self.base + self.adapters[lora.lora_int_id]

    def seed_of(self, block_hash, group, layer, weights):
        where = bytes([layer, *self.shares[group][layer], group])
        return hashlib.sha256(block_hash + where + weights).digest()

    def right_bytes(self, block_hash, group, layer, weights):
        seed = self.seed_of(block_hash, group, layer, weights)
        count = self.layers[group][layer][0].numel() * 2
        return numpy.frombuffer((seed * (count // 32 + 1))[:count], numpy.int16)

    def write(self, block_id, group, block_hash, weights):
        for layer, tensor in enumerate(self.layers[group]):
            values = self.known_bytes(block_hash or b"", group, layer, weights).copy()
            if block_hash is None:
                values[:] = -1  # not full yet
            self.memory.write(tensor[block_id], values)

    def fill(self, number):
        """All of its memory, at once."""
        for tensor in max(self.layers, key=len):
            tensor.fill_(number)

    def expect_untouched(self, number):
        """Nobody has written to what was not there."""
        for tensor in max(self.layers, key=len):
            require(bool((tensor == number).all()), "a copy into memory that was taken away")

    def zero(self, block_ids):
        """As vLLM's KVBlockZeroer: whole blocks, whichever group had them before."""
        for block_id in block_ids or ():
            for tensor in max(self.layers, key=len):
                self.memory.write(tensor[block_id], numpy.zeros(tensor[block_id].numel(),
                                                                numpy.int16))

    def check(self, block_id, group, block_hash, weights, what):
        """Attention reads this block."""
        require(block_id != NULL, f"{what}: the null block")
        for layer, tensor in enumerate(self.layers[group]):
            right = self.known_bytes(block_hash, group, layer, weights)
            self.memory.check(tensor[block_id], right, what)


class CodedWorker(Worker):
    """Its pages are (blocks, heads, tokens, keys and values) of floats, heads before tokens. A
    head's numbers follow from which of the model's heads it is, whatever ranks there are: of more
    ranks than heads several in a row have the same."""

    def __init__(self, make_connector, config, kv_cache_config, rank, *more):
        total = config.model_config.get_total_num_kv_heads()
        ranks = config.parallel_config.tensor_parallel_size
        self.stage, tp_rank = divmod(rank, ranks)
        self.first_head = tp_rank * total // ranks
        super().__init__(make_connector, config, kv_cache_config, rank, *more)

    @staticmethod
    def make_tensor(shape):
        return torch.zeros(shape)

    def right_bytes(self, block_hash, group, layer, weights):
        shape, found = tuple(self.layers[group][layer][0].shape), b""
        for head in range(self.first_head, self.first_head + shape[0]):
            where = bytes([layer, self.stage, head, group])
            found += hashlib.shake_128(block_hash + where + weights).digest(math.prod(shape[1:]))
        return numpy.frombuffer(found, numpy.uint8).astype(numpy.float32) / 16 - 8


class TokensFirst(CodedWorker):
    """The same numbers with tokens before heads in memory."""

    @staticmethod
    def make_tensor(shape):
        blocks, heads, tokens, numbers = shape
        return torch.zeros((blocks, tokens, heads, numbers)).permute(0, 2, 1, 3)
