"""What the two halves of the vLLM connector tell each other. Plain values: they are pickled."""
import dataclasses
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from .looks import AdapterFiles

Bits128 = Tuple[int, int]  # high, low: a lease's token
MARKER_BYTES = 64
NO_BLOCK = -1  # behind a group's window: nothing is there, or wanted


@dataclasses.dataclass
class Load:
    """A worker copies the lease's first blocks to `block_ids`, of each KV cache group one a block,
    and reports the request. wait_s: how long they may take to come; None: as long as any load."""
    request_id: str
    token: Bits128
    block_ids: List[List[int]]
    wait_s: Optional[float] = None


@dataclasses.dataclass
class Store:
    """A worker copies `block_ids`, of each KV cache group one a key, into the keys of the lease.
    adapter: only if these files, on which the bytes depend, are unchanged."""
    number: int
    token: Bits128
    block_ids: List[List[int]]
    adapter: Optional[AdapterFiles] = None


@dataclasses.dataclass
class Step:
    """For the workers, once a step. Stores come before anything that could overwrite a block.
    fences: stores, of this step or before it, whose blocks this step writes to; None if nobody has
    looked, so that no store under way may be committed. lost: stores before it whose blocks were
    written to before the worker could look: they are not committed. sleep_count: what the scheduler
    had heard by then (KvMemory): stores of a step that knows of fewer are of bytes that are gone.
    is_idle: it computes nothing, and no other step is under way.
    """
    loads: List[Load] = dataclasses.field(default_factory=list)
    stores: List[Store] = dataclasses.field(default_factory=list)
    fences: Optional[List[int]] = None
    lost: List[int] = dataclasses.field(default_factory=list)
    sleep_count: int = 0
    layout: Optional["Layout"] = None  # where there is work for a stage that knows only itself
    is_idle: bool = False


@dataclasses.dataclass
class GroupLayout:
    """Layers of one KV cache group on one pipeline stage whose pages are alike, mostly all of them:
    everything a Space says, but the ranks. rank_count: shares of its own that there are, 1 where
    all ranks have the same bytes; rank r has share r modulo rank_count. window_tokens: 0 if all
    blocks stay. is_chunked: the window is the next token's chunk, of that many tokens. is_state: a
    block has no tokens but the state after them. unit_ranks: the shares are units of heads, which
    so many ranks have, runs of them in order; 0: they are not."""
    fields: Dict[str, Any]
    part_bytes: Tuple[int, ...]
    rank_count: int
    window_tokens: int = 0
    is_chunked: bool = False
    is_state: bool = False
    unit_ranks: int = 0

    def shares_of(self, rank: int) -> range:
        """That this rank has."""
        if self.unit_ranks == 0:
            return range(rank % self.rank_count, rank % self.rank_count + 1)
        first = rank * self.rank_count // self.unit_ranks
        return range(first, first + max(1, self.rank_count // self.unit_ranks))

    def is_writer(self, rank: int) -> bool:
        """Whether it is this rank that stores them: the first one that has them."""
        if self.unit_ranks == 0:
            return rank < self.rank_count
        return rank * self.rank_count % self.unit_ranks == 0


@dataclasses.dataclass
class StageLayout:
    """What a worker has: of each KV cache group its layers, in pieces; none where it has none."""
    groups: List[List[GroupLayout]] = dataclasses.field(default_factory=list)
    refusal: Optional[str] = None


class Share(NamedTuple):
    """What a worker has of a piece of KV cache group `group`: which member of the SpaceGroup, and
    whether it is this worker who stores it."""
    group: int
    member: int
    is_ours: bool


@dataclasses.dataclass
class Layout:
    """The whole model: its pipeline stages, in order."""
    stages: List[StageLayout]

    def shares(self) -> Iterator[Tuple[int, int, GroupLayout, int]]:
        """(stage, KV cache group, a piece, share) of each member of the SpaceGroup, in order."""
        for stage, layout in enumerate(self.stages):
            for index, pieces in enumerate(layout.groups):
                for piece in pieces:
                    for rank in range(piece.rank_count):
                        yield stage, index, piece, rank

    def shares_of(self, stage: int, rank: int) -> List["Share"]:
        """This worker's, of each piece in their order."""
        return [Share(index, member, piece.is_writer(rank))
                for member, (of_stage, index, piece, share) in enumerate(self.shares())
                if of_stage == stage and share in piece.shares_of(rank)]

    @property
    def marker(self) -> Optional[GroupLayout]:
        """A member that says of a block that it was computed, where every KV cache group has a
        window: the daemon follows a prompt by what all its blocks have. It is the last member, and
        the first worker's."""
        groups = [group for _, _, group, _ in self.shares()]
        if not groups or not all(group.window_tokens for group in groups):
            return None
        fields = {**groups[0].fields, "attention": "gqa", "window_tokens": 0, "layers": 1,
                  "layout": "terrace-marker", "quantisation": "none", "kv_heads": 1,
                  "head_size": MARKER_BYTES, "tp_size": 1, "cp_size": 1, "pp_rank": 0, "pp_size": 1,
                  "attention_group": len(self.stages[0].groups)}
        return GroupLayout(fields, (MARKER_BYTES,), 1)

    def marker_member(self, stage: int, rank: int) -> Optional[int]:
        """Of this worker."""
        if (stage, rank) != (0, 0) or self.marker is None:
            return None
        return sum(1 for _ in self.shares())

    @property
    def windows(self) -> List[int]:
        """Of each KV cache group the tokens before the next one that it keeps, of chunks a chunk's;
        0: all."""
        found = [0] * len(self.stages[0].groups)
        for _, index, group, _ in self.shares():
            found[index] = group.window_tokens
        return found

    @property
    def chunked_groups(self) -> Set[int]:
        return {index for _, index, group, _ in self.shares() if group.is_chunked}

    @property
    def state_groups(self) -> Set[int]:
        return {index for _, index, group, _ in self.shares() if group.is_state}

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, of every KV cache group."""
        return next(group.fields["block_tokens"] for _, _, group, _ in self.shares())
