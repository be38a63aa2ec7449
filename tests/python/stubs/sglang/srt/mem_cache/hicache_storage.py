"""The class a backend derives from, without behaviour, and what interface v2 passes."""
import dataclasses
import enum
from typing import Any, Dict, List, Optional


class PoolHitPolicy(str, enum.Enum):
    """Which pages of a pool a prefix needs."""
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransfer:
    """Pages of one pool."""
    name: str
    host_indices: Any = None
    keys: Optional[List[str]] = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclasses.dataclass
class PoolTransferResult:
    """Which prefixes can be restored."""
    kv_hit_pages: int
    extra_pool_hit_pages: Dict[str, int]
    restorable_prefix_pages: Optional[List[int]] = None


@dataclasses.dataclass
class HiCacheStorageExtraInfo:
    """What comes with a call."""
    prefix_keys: Optional[List[str]] = None
    extra_info: Optional[Dict[str, Any]] = None


class HiCacheStorage:
    """Marks a backend."""
