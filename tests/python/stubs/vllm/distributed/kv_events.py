"""Events, with the fields that Terrace gives them."""
import dataclasses
from typing import Any, List, Optional


@dataclasses.dataclass
class BlockStored:
    """Of one medium."""
    block_hashes: List[Any]
    parent_block_hash: Any
    token_ids: List[int]
    block_size: int
    lora_id: Optional[int]
    medium: str
    lora_name: Optional[str]
    extra_keys: Any = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    locality: Optional[str] = None


@dataclasses.dataclass
class BlockRemoved:
    """Of one medium."""
    block_hashes: List[Any]
    medium: str
    group_idx: Optional[int] = None
    locality: Optional[str] = None


@dataclasses.dataclass
class AllBlocksCleared:
    """All."""
