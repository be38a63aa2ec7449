"""Saves and restores the KV cache of a PyTorch program by prefix.

    cache = terrace.torch.PrefixCache(client, model.config, revision="r1")
    past_tokens, past = cache.load(token_ids)       # [(k, v)] a layer, or nothing
    with cache.prefill(past_tokens, len(token_ids)):
        ...                                         # run the model on token_ids[past_tokens:]
    cache.save(token_ids, past)

Tensors are as transformers has them: K and V of a layer are [1, kv_heads, tokens, head_size] on the
CPU. Anything that goes wrong with the cache is a miss: neither call raises Unavailable.
"""
import contextlib
import dataclasses
import time
from typing import Any, Iterator, List, Optional, Tuple

import torch

from .calls import Hints
from .client import Client
from .errors import Invalid, Unavailable
from .leases import ReadLease
from .prefill_cost import PrefillCost, StepWork
from .space import Space, SpaceGroup

Layer = Tuple[torch.Tensor, torch.Tensor]


def layers_of(past: Any) -> List[Layer]:
    """(K, V) of every layer of what transformers calls a cache: tuples of tensors, or a Cache with
    `layers`, or with key_cache and value_cache."""
    if hasattr(past, "layers"):
        return [_layer_of(i, layer) for i, layer in enumerate(past.layers)]
    if hasattr(past, "key_cache"):
        return list(zip(past.key_cache, past.value_cache))
    return [(layer[0], layer[1]) for layer in past]


def _layer_of(index: int, layer: Any) -> Layer:
    """Of a cache of a fixed size what has been computed. Invalid for one that keeps the end of its
    tokens only, behind a window or quantised: it would be taken for their beginning."""
    if not hasattr(layer, "get_seq_length"):
        return layer.keys, layer.values
    count = int(layer.get_seq_length())
    if layer.keys is None or layer.keys.shape[-2] < count:
        raise Invalid(f"layer {index}, a {type(layer).__name__}, does not have all of its {count} "
                      "tokens in `keys`: only caches that do can be saved")
    return layer.keys[..., :count, :], layer.values[..., :count, :]


def _group_name(space: Space) -> str:
    """For operators, and of this Space alone: another configuration of the model has another."""
    return f"{space.model}-{space.revision}"[:100] + "-" + SpaceGroup("x", [space]).check()[:16]


class PrefixCache:
    """The caches of one model, in whole blocks of `block_tokens` tokens.

    config: the model's HuggingFace configuration, or a Space whose parts are single layers of
    [K, V] x [kv_heads, block_tokens, head_size]. revision: has to change whenever the weights do,
    adapter with those of a LoRA adapter; what else the configuration says is part of the Space, see
    Space.from_hf_config.
    """

    def __init__(self, client: Client, config: Any, *, revision: str = "",
                 name: Optional[str] = None, block_tokens: int = 16, timeout_s: float = 1.0,
                 dtype: Optional[str] = None, adapter: str = ""):
        self.space = config if isinstance(config, Space) else Space.from_hf_config(
            config, revision=revision, block_tokens=block_tokens, dtype=dtype, adapter=adapter)
        if len(self.space.part_bytes) != self.space.layers or self.space.attention == "mla":
            raise Invalid(f"{self.space.layers} layers of {self.space.attention} attention in "
                          f"{len(self.space.part_bytes)} parts: terrace.torch stores K and V of "
                          "one layer a part, of at most 128 layers")
        self.dtype = getattr(torch, self.space.dtype)
        self.timeout_s = timeout_s
        self.cost = PrefillCost()
        self.group = client.open(SpaceGroup(name or _group_name(self.space), [self.space]))

    @property
    def page_shape(self) -> Tuple[int, ...]:
        """Of one layer of a block."""
        return (2, self.space.kv_heads, self.space.block_tokens, self.space.head_size)

    @contextlib.contextmanager
    def prefill(self, first: int, last: int) -> Iterator[None]:
        """Around the model's run on tokens [first, last), up to its results: what that takes is
        learned, and told with later loads, so that nothing comes later than it would be computed
        and `terrace hitrate` says what was saved."""
        began = time.monotonic()
        yield
        self.cost.learn(StepWork.of([(first, last - first)]), time.monotonic() - began)

    def _with_cost(self, hints: Optional[Hints], token_count: int) -> Hints:
        hints = hints or Hints()
        if hints.recompute_ns_per_token != 0:
            return hints
        return dataclasses.replace(
            hints, recompute_ns_per_token=self.cost.ns_per_token(0, token_count, token_count))

    def load(self, token_ids: Any, hints: Optional[Hints] = None) -> Tuple[int, List[Layer]]:
        """The longest stored prefix of `token_ids`, but never all of them, so that a model has
        something left to compute: how many tokens, and (K, V) of every layer. (0, []) is a miss."""
        key_count = max(0, len(token_ids) - 1) // self.space.block_tokens
        if key_count == 0:
            return 0, []
        try:
            keys = self.group.hash(token_ids)[:key_count]
            hints = self._with_cost(hints, key_count * self.space.block_tokens)
            with self.group.acquire(keys, self.timeout_s, hints) as lease:
                block_count = lease.block_count
                if block_count == 0:
                    return 0, []
                lease.wait_ready(timeout_s=self.timeout_s)
                return self.copy_of(lease, block_count)
        except Unavailable:
            return 0, []

    def copy_of(self, lease: ReadLease, block_count: int) -> Tuple[int, List[Layer]]:
        """Tokens and layers of the lease's first blocks, which are ready."""
        pages = torch.empty((block_count, self.space.layers, *self.page_shape), dtype=self.dtype)
        lease.copy_into(pages, block_count=block_count)
        tokens = block_count * self.space.block_tokens
        # [blocks, layers, 2, heads, block_tokens, size] -> [layers, 2, heads, tokens, size]
        planes = pages.permute(1, 2, 3, 0, 4, 5).reshape(
            self.space.layers, 2, self.space.kv_heads, tokens, self.space.head_size)
        return tokens, [(plane[0].unsqueeze(0), plane[1].unsqueeze(0)) for plane in planes]

    def save(self, token_ids: Any, past: Any, hints: Optional[Hints] = None) -> int:
        """Stores the full blocks of `token_ids` that nobody has yet; how many became visible.
        `past` holds at least the tokens of those blocks."""
        layers = layers_of(past)
        self._check(layers)
        key_count = min(len(token_ids), layers[0][0].shape[2]) // self.space.block_tokens
        if key_count == 0:
            return 0
        try:
            keys = self.group.hash(token_ids)[:key_count]
            hints = self._with_cost(hints, key_count * self.space.block_tokens)
            with self.group.reserve(keys, self.timeout_s, hints) as lease:
                for index in lease.reserved:
                    lease.write([self.page(k, v, index) for k, v in layers], first_key=index,
                                key_count=1)
                return lease.commit(self.timeout_s)
        except Unavailable:
            return 0

    def page(self, k: torch.Tensor, v: torch.Tensor, block: int) -> torch.Tensor:
        """One layer of a block, as it is stored."""
        first = block * self.space.block_tokens
        window = slice(first, first + self.space.block_tokens)
        return torch.stack((k[0, :, window], v[0, :, window])).contiguous()

    def check_layer(self, index: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Invalid for tensors that are not the Space's."""
        for tensor in (k, v):
            shape = tuple(tensor.shape)
            if (len(shape) != 4 or shape[:2] != (1, self.space.kv_heads)
                    or shape[3] != self.space.head_size or tensor.dtype != self.dtype):
                raise Invalid(
                    f"layer {index} is {shape} of {tensor.dtype}: the Space has [1, "
                    f"{self.space.kv_heads}, tokens, {self.space.head_size}] of {self.dtype}")

    def _check(self, layers: List[Layer]) -> None:
        if len(layers) != self.space.layers:
            raise Invalid(f"{len(layers)} layers of a model that has {self.space.layers}")
        for i, (k, v) in enumerate(layers):
            self.check_layer(i, k, v)
