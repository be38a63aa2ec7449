"""What the two halves of the vLLM connector tell each other. Plain values: they are pickled."""
import dataclasses
from typing import Dict, List, Optional, Tuple

Bits128 = Tuple[int, int]  # high, low: a lease's token
NO_BLOCK = -1  # behind a group's window: nothing is there, or wanted


@dataclasses.dataclass
class Load:
    """A worker copies the lease's first blocks to `block_ids`, of each KV cache group one a block,
    and reports the request."""
    request_id: str
    token: Bits128
    block_ids: List[List[int]]


@dataclasses.dataclass
class Store:
    """A worker copies `block_ids`, of each KV cache group one a key, into the keys of the lease."""
    number: int
    token: Bits128
    block_ids: List[List[int]]


@dataclasses.dataclass
class Step:
    """For the workers, once a step. Stores come before anything that could overwrite a block."""
    loads: List[Load] = dataclasses.field(default_factory=list)
    stores: List[Store] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class GroupLayout:
    """One KV cache group: everything a Space says, but the rank. rank_count: shares of its own
    that there are, 1 where all ranks have the same bytes. window_tokens: 0 if all blocks stay."""
    fields: Dict[str, object]
    part_bytes: Tuple[int, ...]
    rank_count: int
    window_tokens: int = 0


@dataclasses.dataclass
class Layout:
    """A worker's view of the model, for the scheduler."""
    groups: List[GroupLayout] = dataclasses.field(default_factory=list)
    refusal: Optional[str] = None

    def members_of(self, rank: int) -> List[int]:
        """Which member of the SpaceGroup is this rank's share, of each KV cache group."""
        found, first = [], 0
        for group in self.groups:
            found.append(first + (rank if group.rank_count > 1 else 0))
            first += group.rank_count
        return found
