"""Tables of blocks: which of a request's blocks vLLM has, of each KV cache group.

Of a group with a window vLLM frees the blocks behind it while a request runs. With chunked local
attention a window begins with the next token's chunk, so that nothing is needed where a chunk
begins. A group of states (Mamba, linear attention) is one with a window of a token: the block that
ends where a hit does has all that is needed.
"""
import dataclasses
from typing import Container, Dict, List, Sequence

from .messages import NO_BLOCK

Table = List[List[int]]  # of each KV cache group the block ids, in prompt order
States = Dict[int, Dict[int, int]]  # of each group of states block ids, by their place in a prompt


@dataclasses.dataclass(frozen=True)
class CacheGroups:
    """KV cache groups, in vLLM's order. windows: tokens before the next one that each keeps; 0:
    all; of chunked_groups it is the next token's chunk."""
    block_tokens: int
    windows: Sequence[int] = (0,)
    chunked_groups: Container[int] = ()
    state_groups: Container[int] = ()

    @property
    def are_whole(self) -> bool:
        """None has a window: what is there once stays while its request does."""
        return not any(self.windows)

    def empty(self) -> Table:
        """Of a request without blocks."""
        return [[] for _ in self.windows]

    def kept(self, table: Table, first: int, last: int, next_token: int) -> Table:
        """Blocks [first, last) of `table`, but those that vLLM frees, or has no need of, when
        `next_token` is computed."""
        kept = []
        for index, (block_ids, window) in enumerate(zip(table, self.windows)):
            begin = self._first_kept(index, next_token)
            # vLLM puts block 0, its null block, where a window has passed.
            kept.append([b if i >= begin and (b != 0 or not window) else NO_BLOCK
                         for i, b in enumerate(block_ids[first:last], first)])
        return kept

    def _first_kept(self, group: int, next_token: int) -> int:
        """The first block of a group that computing `next_token` needs."""
        window = self.windows[group]
        if window == 0:
            return 0
        if group in self.chunked_groups:
            return next_token // window * window // self.block_tokens
        return max(0, next_token - window) // self.block_tokens

    def blocks(self, table: Table, states: States, first: int, last: int) -> Table:
        """Blocks [first, last); of states those that were handed over, and else the null block."""
        return [[states.get(index, {}).get(i, 0) for i in range(first, last)]
                if index in self.state_groups else block_ids[first:last]
                for index, block_ids in enumerate(table)]

    def full_count(self, table: Table, count_max: int) -> int:
        """Blocks that all groups have, but those of states; count_max at most."""
        return min([count_max, *(len(block_ids) for index, block_ids in enumerate(table)
                                 if index not in self.state_groups)])
