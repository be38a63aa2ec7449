"""The SGLang HiCache backend: pages between SGLang's host pool and a terraced, one copy each way.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "terrace",
      "module_path": "terrace.sglang", "class_name": "TerraceHiCache", "interface_v1": 1,
      "socket": "/run/terrace/default.sock", "revision": "REVISION"}'

Extra configuration: socket and revision (required; a revision has to change whenever the weights
or the adapter do between two starts), flush_keeps (false; true: weights are never exchanged while
SGLang runs, so a flush of its cache says nothing of them), timeout_ms (500). Nothing raises into
SGLang: a rank whose storage thread dies would leave the others waiting for it. Every rank makes the
same calls, and answers them from its own share.

SGLang flushes its cache behind every update of weights. Another epoch begins there: that of the
weight_version that came with the update, which all instances share that were told the same, else
one of this instance's own.

Of hybrid models (interface v2) every pool beside the attention's own, of states or windows, has a
Space of its own under the same hashes; SGLang decides from what each pool has which prefix it can
restore.

With tp_lcm_size (layout page_head) a page's heads are stored in as many shares as the instance with
the most ranks has, so that instances of fewer ranks share its pages.

THREADING: SGLang calls from a prefetch, a transfer and a backup thread, at once.
"""
import dataclasses
import functools
import hashlib
import logging
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy

from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from .buffers import Addresses
from .calls import Keys
from .client import KEYS_FLAT, Client, Group
from .epochs import mask_of, masked, of_nobody_else, of_version
from .errors import TerraceError, Unavailable
from .pages import PARTS_MAX
from .presence import Presence
from .space import Space, SpaceGroup

logger = logging.getLogger("sglang.terrace")


_KV = "kv"  # SGLang's name of the attention's own pool


@dataclasses.dataclass
class _Pool:
    """A host pool, and the pieces a share of a page lies in. A page has shard_count shares: more
    than one if instances of more ranks hold its heads apart."""
    name: str
    host: Any
    part_bytes: Tuple[int, ...]
    shard_count: int = 1
    groups: Sequence[Group] = ()  # one a share

    def pieces(self, host_indices: Any) -> Tuple[List[int], List[int]]:
        """Pointers and sizes: page by page, share by share."""
        if self.shard_count == 1:
            return self.host.get_page_buffer_meta(host_indices)
        return self.host.get_split_heads_page_buffer_meta(host_indices, self.shard_count)


def _weight_version() -> Optional[str]:
    """As SGLang was told with the last update of the weights, or at its start; in this process all
    ranks of it are one. None: this SGLang does not say."""
    try:
        from sglang.srt.runtime_context import get_serving  # pylint: disable=C0415

        return str(get_serving().weight_version)
    except Exception:  # pylint: disable=broad-except
        return None


def _launch() -> str:
    """A word that the ranks of one instance on one host have in common, and nobody else."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        with open(f"/proc/{os.getppid()}/stat", encoding="ascii", errors="replace") as file:
            began = file.read().rpartition(")")[2].split()[19]  # field 22: in ticks since the boot
        return f"{boot} {os.getppid()} {began}"
    except (OSError, IndexError):
        return of_nobody_else()


class _Epoch:
    """Which weights this rank's pages are of. Ranks agree without a word: they are flushed alike,
    and told of versions alike."""

    def __init__(self, is_kept: bool, dp_rank: int):
        self._is_kept = is_kept
        self._launch = f"{_launch()} {dp_rank}"  # replicas may be updated apart
        self._flush_count = 0
        self._version = _weight_version()
        self.mask = b""

    @property
    def is_certain(self) -> bool:
        """Not between an update and the flush behind it: pages of both weights are about."""
        return self._is_kept or _weight_version() == self._version

    def on_flush(self) -> None:
        """SGLang has flushed its cache."""
        if not self._is_kept:
            self.begin()

    def begin(self) -> None:
        """Nothing of before is used any more."""
        before, self._version = self._version, _weight_version()
        self._flush_count += 1
        is_told = self._version is not None and self._version != before
        name = (of_version(self._version) if is_told
                else f"flush {self._flush_count} of {self._launch}")
        self.mask = mask_of(name)
        logger.info("terrace: keys are of epoch %r from here on", name)


class TerraceHiCache(HiCacheStorage):
    """See the page."""

    def __init__(self, storage_config: Any, kwargs: Any = None):
        self.refusal: Optional[str] = None
        self.config = storage_config
        extra = dict(storage_config.extra_config or {})
        self._timeout_s = float(extra.get("timeout_ms", 500)) / 1e3
        self._revision = extra.get("revision")
        self._client: Optional[Client] = None
        self._pools: Dict[str, _Pool] = {}
        self._epoch = _Epoch(bool(extra.get("flush_keeps", False)),
                             int(getattr(storage_config, "dp_rank", 0)))
        self._opening = threading.Lock()
        self.counters = {"pages_hit": 0, "pages_missed": 0, "pages_stored": 0, "pages_refused": 0}
        self.mem_pool_host: Any = None
        for name in ("socket", "revision"):
            if not extra.get(name):
                self._refuse(f"the extra configuration has no {name!r}")
                return
        try:
            self._presence = Presence(logger, extra["socket"])
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
        """The attention's own pool: its layout and sizes are part of what a page is."""
        self.mem_pool_host = mem_pool_host
        self._watch(mem_pool_host)
        if self.refusal is None:
            why = self._add_pool(_KV, mem_pool_host)
            if why is not None:
                self._refuse(why)

    def _watch(self, mem_pool_host: Any) -> None:
        """A flush empties the host pool, and tells a backend nothing else."""
        clear = getattr(mem_pool_host, "clear", None)
        if clear is None:
            return

        @functools.wraps(clear)
        def cleared(*arguments: Any, **named: Any) -> Any:
            try:
                return clear(*arguments, **named)
            finally:
                self._epoch.on_flush()

        mem_pool_host.clear = cleared

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A pool beside it. One that is not served has no page."""
        name = _name_of(host_pool_name)
        keep = getattr(super(), "register_mem_host_pool_v2", None)
        if keep is not None:
            keep(host_pool, host_pool_name)
        if self.refusal is None and name not in self._pools:
            why = self._add_pool(name, host_pool)
            if why is not None:
                logger.warning("terrace: pool %s is not served: %s", name, why)

    def _add_pool(self, name: str, host: Any) -> Optional[str]:
        """Why not."""
        pool = _Pool(name, host, ())
        if name == _KV and getattr(self.config, "should_split_heads", False):
            pool.shard_count = int(self.config.tp_lcm_size) // int(self.config.tp_size)
        try:
            import torch  # pylint: disable=import-outside-toplevel

            _, sizes = pool.pieces(torch.arange(_page_size(host)))
        except Exception as error:  # pylint: disable=broad-except
            return f"the host pool says nothing of its pages: {type(error).__name__}: {error}"
        pool.part_bytes = tuple(int(n) for n in sizes[:len(sizes) // pool.shard_count])
        if len(pool.part_bytes) > PARTS_MAX:
            return (f"a page lies in {len(sizes)} pieces, the limit is {PARTS_MAX}: use "
                    "--hicache-mem-layout page_first")
        self._pools[name] = pool
        return None

    def _space(self, pool: _Pool, shard: int) -> Space:
        host, config = pool.host, self.config
        # All ranks have the same bytes; of the other pools each has its own share.
        is_latent = bool(config.is_mla_model) and pool.name == _KV
        layout = (f"sglang-{getattr(host, 'layout', '?')}-{type(host).__name__}-"
                  f"{getattr(host, 'storage_format_tag', None) or 'plain'}-"
                  f"cp{config.attn_cp_rank}of{config.attn_cp_size}-"
                  f"dcp{getattr(config, 'dcp_rank', 0)}of{getattr(config, 'dcp_size', 1)}"
                  + ("" if pool.name == _KV else f"-{pool.name}"))
        return Space(
            model=str(config.model_name), revision=str(self._revision), layout=layout,
            dtype=str(getattr(host, "dtype", "bytes")).replace("torch.", ""),
            layers=int(getattr(host, "layer_num", 1) or 1),
            kv_heads=int(getattr(host, "head_num", 1) or 1) // pool.shard_count,
            head_size=int(getattr(host, "head_dim", 0) or pool.part_bytes[0]),
            block_tokens=int(_page_size(host)), part_bytes=pool.part_bytes,
            attention="mla" if is_latent else "gqa",
            tp_rank=0 if is_latent else config.tp_rank * pool.shard_count + shard,
            tp_size=1 if is_latent else config.tp_size * pool.shard_count,
            pp_rank=config.pp_rank, pp_size=config.pp_size)

    def _opened(self, pool: _Pool) -> Sequence[Group]:
        """The groups of this rank's shares of pages; none while the daemon is not there."""
        with self._opening:
            if self._client is not None:
                self._presence.look(self._client)
            if not pool.groups and self._client is not None and self._client.is_connected:
                groups = []
                for shard in range(pool.shard_count):
                    space = self._space(pool, shard)
                    name = SpaceGroup("x", [space]).check()
                    groups.append(
                        self._client.open(SpaceGroup(f"sglang-{name[:16]}", [space]), 1))
                pool.groups = groups
            return pool.groups

    def _keys(self, group: Group, keys: Sequence[str]) -> Keys:
        """SGLang's page hashes are sha256 in hex; whatever else comes is hashed."""
        return group.keys_of_digests(masked([_digest_of(key) for key in keys], self._epoch.mask))

    @staticmethod
    def _addresses(pool: _Pool, shard: int, host_indices: Any, page_count: int) -> Addresses:
        pointers, sizes = pool.pieces(host_indices)
        if tuple(sizes) != pool.part_bytes * (page_count * pool.shard_count):
            raise ValueError(f"{page_count} pages in {len(sizes)} pieces of {set(sizes)} bytes, "
                             f"expected {pool.part_bytes} each")
        by_share = numpy.array(pointers, numpy.uint64).reshape(page_count, pool.shard_count, -1)
        return Addresses(numpy.ascontiguousarray(by_share[:, shard]).reshape(-1))

    def _guarded(self, name: str, call: Callable[[_Pool, Sequence[Group]], Any],
                 otherwise: Any) -> Any:
        pool = self._pools.get(name)
        if self.refusal is not None or pool is None or not self._epoch.is_certain:
            return otherwise
        try:
            groups = self._opened(pool)
            return call(pool, groups) if groups else otherwise
        except Unavailable:
            return otherwise
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
            return otherwise

    def _get(self, name: str, keys: List[str], host_indices: Any, flags: int = 0) -> List[bool]:
        """Copies pages into a host pool; the first that is not there ends it."""

        def get(pool: _Pool, groups: Sequence[Group]) -> int:
            count = len(keys)
            for shard, group in enumerate(groups):
                with group.acquire(self._keys(group, keys[:count]), flags=flags) as lease:
                    count = lease.block_count
                    try:
                        lease.wait_ready(count, self._timeout_s)
                    except Unavailable:
                        count = min(count, lease.ready_count)
                    if count == 0:
                        return 0
                    wanted = host_indices[:count * _page_size(pool.host)]
                    lease.copy_into(self._addresses(pool, shard, wanted, count),
                                    block_count=count)
            return count

        count = self._guarded(name, get, 0)
        self.counters["pages_hit"] += count
        self.counters["pages_missed"] += len(keys) - count
        return [i < count for i in range(len(keys))]

    def _set(self, name: str, keys: List[str], host_indices: Any, **place: Any) -> List[bool]:
        """Stores the pages that nobody has. True: there, or about to be by somebody else."""
        if name == _KV and not self._is_writer:
            return [True] * len(keys)  # another rank has the same bytes, and writes them

        prefix = place.pop("prefix", ())

        def put(pool: _Pool, groups: Sequence[Group]) -> List[bool]:
            stored, stored_count = [True] * len(keys), 0
            for shard, group in enumerate(groups):
                parent = self._keys(group, prefix[-1:])[0] if prefix else None
                with group.reserve(self._keys(group, keys), parent=parent,
                                   first_position=len(prefix),
                                   event_hashes=[event_hash(key) for key in keys],
                                   **place) as lease:
                    answers = [key.status for key in lease]
                    if "ok" in answers:
                        lease.write(self._addresses(pool, shard, host_indices, len(keys)))
                        stored_count = max(stored_count, lease.commit())
                    stored = [before and answer in ("ok", "exists", "busy")
                              for before, answer in zip(stored, answers)]
            self.counters["pages_stored"] += stored_count
            return stored

        stored = self._guarded(name, put, [False] * len(keys))
        self.counters["pages_refused"] += stored.count(False)
        return stored

    @property
    def _is_writer(self) -> bool:
        """Of a latent each shard's bytes are those of every rank that has it: the first one writes.
        With decode context parallel rank r of a row has shard r modulo their number."""
        config = self.config
        return not config.is_mla_model or config.tp_rank == getattr(config, "dcp_rank", 0)

    # ---- interface v1: the attention's own pool ----

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many pages, from the first on, are there."""

        def ask(_pool: _Pool, groups: Sequence[Group]) -> int:
            count = len(keys)
            for group in groups:
                count = group.match(self._keys(group, keys[:count])).block_count
            return count

        return self._guarded(_KV, ask, 0)

    def batch_get_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Copies pages into the host pool; the first that is not there ends it."""
        return self._get(_KV, keys, host_indices)

    def batch_set_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Stores the pages that nobody has. True: there, or about to be by somebody else."""
        prefix = list(getattr(extra_info, "prefix_keys", None) or ())
        return self._set(_KV, keys, host_indices, prefix=prefix)

    # ---- interface v2: all pools ----

    def batch_exists_v2(self, keys: List[str], pool_transfers: Any = None,
                        extra_info: Any = None) -> Any:
        """Prefixes that every pool can restore: of all pages, or of the last ones alone."""
        count = self.batch_exists(keys, extra_info)
        hits, restorable = ({_KV: count} if count else {}), list(range(1, count + 1))
        for transfer in pool_transfers or ():
            policy = _name_of(transfer.hit_policy)
            if policy == "block_groups":  # has no say in the hit, and is not served
                continue
            found = self._present(_name_of(transfer.name), keys[:count])
            needed = len(keys) if policy == "all_pages" else max(1, len(transfer.keys or ()))
            good, run = set(), 0
            for index, is_there in enumerate(found):
                run = run + 1 if is_there else 0
                if run >= min(needed, index + 1):
                    good.add(index + 1)
            if good:
                hits[_name_of(transfer.name)] = max(good)
            restorable = [length for length in restorable if length in good]
        result = {"kv_hit_pages": restorable[-1] if restorable else 0,
                  "extra_pool_hit_pages": hits, "restorable_prefix_pages": restorable}
        kind = hicache_storage.PoolTransferResult
        known = {field.name for field in dataclasses.fields(kind)}
        return kind(**{name: value for name, value in result.items() if name in known})

    def _present(self, name: str, keys: List[str]) -> List[bool]:
        """Which pages of a pool are there; beyond the first gap those on this host."""

        def ask(_pool: _Pool, groups: Sequence[Group]) -> List[bool]:
            group = groups[0]  # pools beside the attention's own have no shares
            made = self._keys(group, keys)
            count = group.match(made, flags=KEYS_FLAT).block_count
            rest = made[count:]
            states = [block.state for block in group.query(rest)] if len(rest) > 0 else []
            return [True] * count + [state == "sealed" for state in states]

        return self._guarded(name, ask, [False] * len(keys))

    def batch_get_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        """Of each pool's pages, whether they have been copied into it."""
        return {transfer.name: self._get(_name_of(transfer.name), list(transfer.keys or ()),
                                         transfer.host_indices, KEYS_FLAT)
                for transfer in transfers}

    def batch_set_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        """Of each pool's pages, whether they are there or about to be."""
        return {transfer.name: self._set(_name_of(transfer.name), list(transfer.keys or ()),
                                         transfer.host_indices, flags=KEYS_FLAT)
                for transfer in transfers}

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
        """Somebody wants this rank's pages erased: they are, for other instances, too. Where the
        daemon cannot be told, this instance goes on in an epoch of its own."""
        done = [self._guarded(name, lambda pool, groups: [group.reset() for group in groups], None)
                for name in list(self._pools)]
        if self.refusal is None and None in done:
            logger.warning("terrace: pages could not be erased; nothing of them is used here again")
            self._epoch.begin()

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


def _name_of(value: Any) -> str:
    """Of a pool or a policy: an enum in SGLang."""
    return str(getattr(value, "value", value))


def _page_size(host: Any) -> int:
    """Tokens that a key stands for. With decode context parallel the pool's own are one shard's."""
    return int(getattr(host, "logical_page_size", 0) or getattr(host, "page_size", 1) or 1)


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
