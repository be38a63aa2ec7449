"""A prefill instance hands a prompt's KV cache to a decode instance, layer by layer.

    giver = terrace.handoff.Giver(cache, token_ids)     # the prefill instance
    giver.put(layer, k, v)                              # as each layer has been computed
    giver.close()

    with terrace.handoff.Taker(cache, token_ids, timeout_s=2.0) as taker:    # the decode instance
        try:
            k, v = taker[layer]                         # waits for this layer, and no other
        except terrace.Unavailable:
            tokens, past = taker.whole()                # what is there of all layers

`cache` is a terrace.torch.PrefixCache on either side. On one host a layer can be taken as soon as
it has been put; blocks of another host come through the Redis tier, whole, once all their layers
have been put. A giver that dies, or is too slow, costs its receiver no more than the deadline.

THREADING: one thread a Giver, one a Taker.
"""
import time
from typing import Any, List, Optional, Sequence, Tuple

import torch

from .calls import Hints
from .errors import Busy, Unavailable
from .group import ACQUIRE_BY_PARTS, ACQUIRE_FOLLOW
from .leases import ReadLease, WriteLease
from .torch import Layer, PrefixCache

_TICK_S = 0.001  # between two looks at what has come
_ASK_S = 0.005  # between two questions whether more has been announced
_SOON = Hints(expected_reuse_ms=2000)  # what is given is taken in a moment: let it not pass by


class Giver:
    """Reserves the full blocks of `token_ids` that nobody has, and fills them layer by layer.
    Without a daemon, and for what others write, it does nothing. Without `hints` the daemon is
    told that the blocks are asked for within two seconds."""

    def __init__(self, cache: PrefixCache, token_ids: Sequence[int], hints: Hints = _SOON):
        self._cache = cache
        self._lease: Optional[WriteLease] = None
        self._keys: List[int] = []
        self._done = [0] * cache.space.layers  # of self._keys
        self.block_count = 0  # that became visible whole
        try:
            keys = cache.group.hash(token_ids)
            if len(keys) > 0:
                self._lease = cache.group.reserve(keys, cache.timeout_s, hints)
                self._keys = self._lease.reserved
        except Unavailable:
            pass

    def __enter__(self) -> "Giver":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def put(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """K and V of one layer, of all tokens so far: [1, kv_heads, tokens, head_size]. What is
        full and was not put before is handed on."""
        space = self._cache.space
        full = k.shape[2] // space.block_tokens
        first = self._done[layer]
        last = first
        while last < len(self._keys) and self._keys[last] < full:
            last += 1
        if last == first or self._lease is None:
            return
        self._cache.check_layer(layer, k, v)
        self._done[layer] = last
        try:
            for key in self._keys[first:last]:
                self._lease.write_part(key, layer, self._cache.page(k, v, key))
            self.block_count += self._lease.commit(self._cache.timeout_s)
        except Unavailable:
            self.close()  # what is not whole by now will be computed by whoever wants it

    def close(self) -> None:
        """Ends the hand-off. Blocks of which a layer is missing are given up."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.abort()


class Taker:
    """What a giver hands over of `token_ids`, layer by layer.

    timeout_s: after that nothing is waited for. idle_s: nor when so long no further block has been
    announced; where another host gives, that is how its death is known. `tokens` have been
    announced, never all, so that a model has something left to compute. A Taker is a sequence of
    (k, v), as models take their past.
    """

    def __init__(self, cache: PrefixCache, token_ids: Sequence[int], *, timeout_s: float,
                 idle_s: float = 0.5, hints: Optional[Hints] = None):
        self._cache = cache
        self._deadline = time.monotonic() + timeout_s
        self._hints = hints
        self._lease: Optional[ReadLease] = None
        self._block_count = 0
        self._layers: List[Optional[Layer]] = [None] * cache.space.layers
        wanted = max(0, len(token_ids) - 1) // cache.space.block_tokens
        try:
            if wanted > 0:
                self._gather(cache.group.hash(token_ids)[:wanted], idle_s)
        except Unavailable:
            pass

    @property
    def tokens(self) -> int:
        """Announced; taker[layer] is of so many."""
        return self._block_count * self._cache.space.block_tokens

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _gather(self, keys: Any, idle_s: float) -> None:
        """Acquires all, or what has been announced when there is nothing more to wait for."""
        idle_until = time.monotonic() + idle_s
        while True:
            found = self._cache.group.acquire(keys, max(self._left_s(), _TICK_S), self._hints,
                                              flags=ACQUIRE_FOLLOW | ACQUIRE_BY_PARTS)
            held = 0 if self._lease is None else self._lease.block_count
            if found.block_count > held:
                previous, self._lease = self._lease, found
                self._block_count = found.block_count
                idle_until = time.monotonic() + idle_s
            else:
                previous = found
            if previous is not None:
                previous.release()
            if self._lease is not None and self._lease.block_count == len(keys):
                return
            if time.monotonic() >= min(idle_until, self._deadline):
                return
            time.sleep(_ASK_S)

    def __len__(self) -> int:
        return len(self._layers)

    def __bool__(self) -> bool:
        return self._block_count > 0

    def __getitem__(self, layer: int) -> Layer:
        """K and V of one layer of all announced tokens, once they are there. Unavailable if they
        will not be."""
        found = self._layers[layer]
        if found is None:
            layer = range(len(self._layers))[layer]
            found = self._layers[layer] = self._take(layer)
        return found

    def _take(self, layer: int) -> Layer:
        space, lease = self._cache.space, self._lease
        if lease is None:
            raise Busy("nothing has been announced")
        pages = torch.empty((self._block_count, *self._cache.page_shape), dtype=self._cache.dtype)
        for block in range(self._block_count):
            while not lease.is_part_ready(block, layer):
                self._wait(lease)
            lease.copy_part(block, layer, pages[block])
        # [blocks, 2, heads, block_tokens, size] -> [2, 1, heads, tokens, size]
        plane = pages.permute(1, 2, 0, 3, 4).reshape(2, 1, space.kv_heads, self.tokens,
                                                     space.head_size)
        return plane[0], plane[1]

    def _wait(self, lease: ReadLease) -> None:
        """A moment. Unavailable if what is missing will not come."""
        left_s = self._left_s()
        if left_s == 0.0:
            raise Busy(f"{lease.ready_count} of {self._block_count} blocks at the deadline")
        try:
            lease.wait_ready(self._block_count, min(_TICK_S, left_s))
        except Busy:
            pass

    def whole(self) -> Tuple[int, List[Layer]]:
        """Tokens, and their layers, of the blocks that are there by now, without waiting: the past
        of whoever computes the rest. (0, []) if there are none."""
        lease = self._lease
        count = 0 if lease is None else min(lease.ready_count, self._block_count)
        if lease is None or count == 0:
            return 0, []
        try:
            return self._cache.copy_of(lease, count)
        except Unavailable:
            return 0, []

    def __enter__(self) -> "Taker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Lets the blocks go. Layers that were taken stay."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
