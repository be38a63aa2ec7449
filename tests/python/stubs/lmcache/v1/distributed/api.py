"""Keys of objects, and what lookups say of their memory."""
import dataclasses
from typing import Any, List


@dataclasses.dataclass(frozen=True)
class ObjectKey:
    """Names one chunk's bytes of one rank and one object group."""
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


@dataclasses.dataclass(frozen=True)
class MemoryLayoutDesc:
    """The tensors of an object, one behind the other."""
    shapes: List[Any]
    dtypes: List[Any]
