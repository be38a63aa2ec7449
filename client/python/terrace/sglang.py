"""The SGLang HiCache backend: pages between SGLang's host pool and a terraced, one copy each way.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "terrace",
      "module_path": "terrace.sglang", "class_name": "TerraceHiCache", "interface_v1": 1,
      "socket": "/run/terrace/default.sock", "revision": "REVISION"}'

Extra configuration: socket and revision (required; a revision has to change whenever the weights
or the adapter do), timeout_ms (500). Nothing raises into SGLang: a rank whose storage thread dies
would leave the others waiting for it. Every rank makes the same calls, and answers them from its
own share.

THREADING: SGLang calls from a prefetch, a transfer and a backup thread, at once.
"""
import hashlib
import logging
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from .buffers import Addresses
from .client import Client, Group, Keys
from .errors import TerraceError, Unavailable
from .pages import PARTS_MAX
from .space import Space, SpaceGroup

logger = logging.getLogger("sglang.terrace")


class TerraceHiCache(HiCacheStorage):
    """See the page: interface v1, of the attention's own pool."""

    def __init__(self, storage_config: Any, kwargs: Any = None):
        self.refusal: Optional[str] = None
        self.config = storage_config
        extra = dict(storage_config.extra_config or {})
        self._timeout_s = float(extra.get("timeout_ms", 500)) / 1e3
        self._revision = extra.get("revision")
        self._client: Optional[Client] = None
        self._group: Optional[Group] = None
        self._part_bytes: Tuple[int, ...] = ()
        self._opening = threading.Lock()
        self.counters = {"pages_hit": 0, "pages_missed": 0, "pages_stored": 0, "pages_refused": 0}
        self.mem_pool_host: Any = None
        for name in ("socket", "revision"):
            if not extra.get(name):
                self._refuse(f"the extra configuration has no {name!r}")
                return
        if getattr(storage_config, "should_split_heads", False):
            self._refuse("pages split by heads (tp_lcm_size) are not served yet")
            return
        try:
            self._client = Client(extra["socket"], name="sglang", default_timeout_s=self._timeout_s)
            self._client.wait_connected(2.0)
        except Unavailable as error:
            logger.warning("terrace: %s; SGLang serves without it until it is there", error)
        except TerraceError as error:
            self._refuse(str(error))

    def _refuse(self, sentence: str) -> None:
        logger.warning("terrace is off: %s", sentence)
        self.refusal = sentence

    # ---- the pool ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's host pool: its layout and sizes are part of what a page is."""
        self.mem_pool_host = mem_pool_host
        if self.refusal is not None:
            return
        try:
            import torch  # pylint: disable=import-outside-toplevel

            first_page = torch.arange(mem_pool_host.page_size)
            _, sizes = mem_pool_host.get_page_buffer_meta(first_page)
            self._part_bytes = tuple(int(n) for n in sizes)
            if len(self._part_bytes) > PARTS_MAX:
                self._refuse(f"a page lies in {len(self._part_bytes)} pieces, the limit is "
                             f"{PARTS_MAX}: use --hicache-mem-layout page_first")
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"the host pool says nothing of its pages: {error}")

    def _space(self) -> Space:
        pool, config = self.mem_pool_host, self.config
        is_latent = bool(config.is_mla_model)
        layout = (f"sglang-{getattr(pool, 'layout', '?')}-{type(pool).__name__}-"
                  f"{getattr(pool, 'storage_format_tag', None) or 'plain'}-"
                  f"cp{config.attn_cp_rank}of{config.attn_cp_size}-"
                  f"dcp{getattr(config, 'dcp_rank', 0)}of{getattr(config, 'dcp_size', 1)}")
        return Space(
            model=str(config.model_name), revision=str(self._revision), layout=layout,
            dtype=str(pool.dtype).replace("torch.", ""), layers=int(getattr(pool, "layer_num", 1)),
            kv_heads=int(getattr(pool, "head_num", 1) or 1),
            head_size=int(getattr(pool, "head_dim", 0) or self._part_bytes[0]),
            block_tokens=int(pool.page_size), part_bytes=self._part_bytes,
            attention="mla" if is_latent else "gqa",
            tp_rank=0 if is_latent else config.tp_rank, tp_size=1 if is_latent else config.tp_size,
            pp_rank=config.pp_rank, pp_size=config.pp_size)

    def _opened(self) -> Optional[Group]:
        """The group of this rank's pages; None while the daemon is not there."""
        if self.refusal is not None or self._client is None or not self._part_bytes:
            return None
        with self._opening:
            if self._group is None and self._client.is_connected:
                space = self._space()
                name = SpaceGroup("x", [space]).check()
                self._group = self._client.open(SpaceGroup(f"sglang-{name[:16]}", [space]), 1)
            return self._group

    def _keys(self, group: Group, keys: Sequence[str]) -> Keys:
        """SGLang's page hashes are sha256 in hex; whatever else comes is hashed."""
        return group.keys_of_digests([_digest_of(key) for key in keys])

    def _addresses(self, host_indices: Any, page_count: int) -> Addresses:
        pointers, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if tuple(sizes) != self._part_bytes * page_count:
            raise ValueError(f"{page_count} pages in {len(sizes)} pieces of {set(sizes)} bytes, "
                             f"expected {self._part_bytes} each")
        return Addresses(numpy.array(pointers, numpy.uint64))

    def _guarded(self, call: Any, otherwise: Any) -> Any:
        try:
            group = self._opened()
            return otherwise if group is None else call(group)
        except Unavailable:
            return otherwise
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
            return otherwise

    # ---- interface v1 ----

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many pages, from the first on, are there."""
        return self._guarded(lambda group: group.match(self._keys(group, keys)).block_count, 0)

    def batch_get_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Copies pages into the host pool; the first that is not there ends it."""

        def get(group: Group) -> int:
            with group.acquire(self._keys(group, keys)) as lease:
                count = lease.block_count
                try:
                    lease.wait_ready(count, self._timeout_s)
                except Unavailable:
                    count = min(count, lease.ready_count)
                if count > 0:
                    page = self.mem_pool_host.page_size
                    lease.copy_into(self._addresses(host_indices[:count * page], count),
                                    block_count=count)
                return count

        count = self._guarded(get, 0)
        self.counters["pages_hit"] += count
        self.counters["pages_missed"] += len(keys) - count
        return [i < count for i in range(len(keys))]

    def batch_set_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Stores the pages that nobody has. True: there, or about to be by somebody else."""
        if getattr(self.config, "is_mla_model", False) and self.config.tp_rank != 0:
            return [True] * len(keys)  # every rank has the same bytes, and rank 0 writes them

        def put(group: Group) -> List[bool]:
            prefix = list(getattr(extra_info, "prefix_keys", None) or ())
            parent = self._keys(group, prefix[-1:])[0] if prefix else None
            with group.reserve(self._keys(group, keys), parent=parent,
                               first_position=len(prefix),
                               event_hashes=[event_hash(key) for key in keys]) as lease:
                answers = [key.status for key in lease]
                if "ok" in answers:
                    lease.write(self._addresses(host_indices, len(keys)))
                    self.counters["pages_stored"] += lease.commit()
                return [answer in ("ok", "exists", "busy") for answer in answers]

        stored = self._guarded(put, [False] * len(keys))
        self.counters["pages_refused"] += stored.count(False)
        return stored

    # ---- what else the base class has; SGLang does not call it with interface v1 ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return None

    def batch_get(self, keys: List[str], target_locations: Any = None,
                  target_sizes: Any = None) -> List[Any]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return False

    def clear(self) -> None:
        """Forgets this rank's pages."""
        self._guarded(lambda group: group.reset(), None)

    def get_stats(self) -> None:
        """SGLang's own metrics object is not filled."""
        return None

    def snapshot(self) -> Dict[str, int]:
        """Pages hit, missed, stored and refused so far."""
        return dict(self.counters)

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.close()


def event_hash(key: str) -> int:
    """The number by which SGLang's KV events name a page: the high 64 bits of its hash."""
    return int.from_bytes(_digest_of(key)[:8], "big")


def _digest_of(key: str) -> bytes:
    try:
        digest = bytes.fromhex(key)
        if len(digest) == 32:
            return digest
    except ValueError:
        pass
    return hashlib.sha256(key.encode()).digest()
