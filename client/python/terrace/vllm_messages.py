"""What the two halves of the vLLM connector tell each other. Plain values: they are pickled."""
import dataclasses
from typing import Dict, List, Optional, Tuple

Bits128 = Tuple[int, int]  # high, low: a lease's token


@dataclasses.dataclass
class Load:
    """A worker copies `block_ids` out of the lease's first blocks, and reports the request."""
    request_id: str
    token: Bits128
    block_ids: List[int]


@dataclasses.dataclass
class Store:
    """A worker copies `block_ids` into the keys of the lease, one a key."""
    number: int
    token: Bits128
    block_ids: List[int]


@dataclasses.dataclass
class Step:
    """For the workers, once a step. Stores come before anything that could overwrite a block."""
    loads: List[Load] = dataclasses.field(default_factory=list)
    stores: List[Store] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Layout:
    """A worker's view of the model, for the scheduler: everything a Space says, but the ranks."""
    fields: Dict[str, object]
    part_bytes: Tuple[int, ...]
    member_count: int
    refusal: Optional[str] = None
