"""The backend that SGLang calls; the package's page says what it does."""
import dataclasses
import functools
import logging
import math
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from ..calls import Hints, Keys
from ..client import Client
from ..epochs import masked
from ..errors import TerraceError, Unavailable
from ..group import KEYS_FLAT, Group
from ..presence import Presence
from ..request_hints import NOTHING, HintReader, session_hash_of
from ..shelf import Shelf
from .epoch import Epoch
from .patience import Patience
from .pools import KV, Pool, digest_of, event_hash, name_of, page_size_of
from .settings import Settings

logger = logging.getLogger("sglang.terrace")
_MAKE_PAUSE_S = 5.0  # between two attempts to make a client


_NAMELESS = (
    "this SGLang's hashes of pages name neither LoRA adapters nor extra keys and cache salts, so "
    "requests that differ by them would share pages: take one whose hashes do (from September 2026 "
    "on), or, if this server has none of the three, set one_namespace to true in the extra "
    "configuration")


def names_everything() -> bool:
    """Whether this SGLang's chains of hashes begin with all that pages depend on but tokens."""
    try:
        from sglang.srt.mem_cache import utils  # pylint: disable=import-outside-toplevel
    except ImportError:
        return False
    return hasattr(utils, "storage_namespace_seed")


class TerraceHiCache(HiCacheStorage):
    """One rank's. refusal: why it is off, for good; None while it is on. Keys are SGLang's hashes
    of pages, in hex; host_indices number the tokens of a host pool, page_size of them a page, as a
    tensor of integers. Without a daemon every page is missed, and none is stored."""

    def __init__(self, storage_config: Any, kwargs: Any = None):
        self.refusal: Optional[str] = None
        self.config = storage_config
        self._settings = Settings()
        self._client: Optional[Client] = None
        self._pools: Dict[str, Pool] = {}
        self._hint_reader = HintReader(logger)
        self._said = NOTHING  # of every page of this instance
        self._recompute_ns_per_token = 0
        self._shelf: Optional[Shelf] = None
        self._next_make = 0.0
        self._looking = threading.Lock()
        self.counters = {"pages_hit": 0, "pages_missed": 0, "pages_stored": 0, "pages_refused": 0,
                         "bypassed_requests": 0}
        self.mem_pool_host: Any = None
        try:
            self._read(storage_config.extra_config or {})
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(str(error) if isinstance(error, ValueError)
                         else f"{type(error).__name__}: {error}")
        self._epoch = Epoch(self._settings.flush_keeps, getattr(storage_config, "dp_rank", 0) or 0)
        if self.refusal is None:
            self._connect()

    def _read(self, extra: Any) -> None:
        """Raises ValueError."""
        self._settings = Settings.of(extra)
        self._said = self._hint_reader.read(extra)
        self._read_cost(self._settings.recompute_ns_per_token)
        for name in ("socket", "revision"):
            if not getattr(self._settings, name):
                raise ValueError(f"the extra configuration has no {name!r}")
        if not extra.get("interface_v1"):
            raise ValueError("interface_v1 is not set, without which SGLang moves pages by calls "
                             "that move none here: add \"interface_v1\": 1 to the extra "
                             "configuration")
        if not (self._settings.one_namespace or names_everything()):
            raise ValueError(_NAMELESS)

    def _connect(self) -> None:
        self._presence = Presence(logger, str(self._settings.socket))
        self._make_client(wait_s=2.0)

    def _make_client(self, wait_s: float = 0.0) -> None:
        """Or not yet, where this process has no descriptors left for one."""
        settings = self._settings
        self._next_make = time.monotonic() + _MAKE_PAUSE_S
        try:
            self._client = Client(str(settings.socket), name="sglang",
                                  default_timeout_s=settings.timeout_s)
            self._shelf = Shelf(self._client, "sglang", settings.timeout_s)
            if wait_s > 0:
                self._client.wait_connected(wait_s)
        except Unavailable as error:
            logger.warning("terrace: %s; SGLang serves without it until it is there", error)
        except TerraceError as error:
            self._refuse(str(error))

    def _find_shelf(self) -> Optional[Shelf]:
        """Made now, where no client could be made before."""
        if self._shelf is None and self.refusal is None:
            with self._looking:
                if self._shelf is None and time.monotonic() >= self._next_make:
                    self._make_client()
        return self._shelf

    def _read_cost(self, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32:
            self._recompute_ns_per_token = value
        else:
            logger.warning("terrace: recompute_ns_per_token is %r: it is a whole number from 0 to "
                           "4294967295; it is passed over", value)

    def _hints(self, extra_info: Any, *, is_store: bool) -> Hints:
        """What this instance's configuration says, and what SGLang says of one call: today's
        versions name a session at most."""
        passed = getattr(extra_info, "extra_info", None)
        said = (self._said if not isinstance(passed, dict)
                else self._said.with_more(self._hint_reader.read(passed)))
        session = said.session or (passed.get("session_id") if isinstance(passed, dict) else None)
        return (said if is_store else NOTHING).hints(
            session_hash=session_hash_of(None, str(session)) if session else 0,
            recompute_ns_per_token=self._recompute_ns_per_token)

    def _refuse(self, sentence: str) -> None:
        logger.warning("terrace is off: %s", sentence)
        self.refusal = sentence

    # ---- the pool ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The attention's own pool: its layout and sizes are part of what a page is."""
        self.mem_pool_host = mem_pool_host
        self._watch(mem_pool_host)
        if self.refusal is None:
            why = self._add_pool(KV, mem_pool_host)
            if why is not None:
                self._refuse(why)

    def _watch(self, mem_pool_host: Any) -> None:
        """A flush empties the host pool, and tells a backend nothing else."""
        clear: Any = getattr(mem_pool_host, "clear", None)
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
        name = name_of(host_pool_name)
        keep: Any = getattr(super(), "register_mem_host_pool_v2", None)
        if keep is not None:
            keep(host_pool, host_pool_name)
        if self.refusal is None and name not in self._pools:
            why = self._add_pool(name, host_pool)
            if why is not None:
                logger.warning("terrace: pool %s is not served: %s", name, why)

    def _add_pool(self, name: str, host: Any) -> Optional[str]:
        """Why not."""
        pool = Pool(name, host)
        if name == KV and getattr(self.config, "should_split_heads", False):
            pool.shard_count = int(self.config.tp_lcm_size) // int(self.config.tp_size)
        why = pool.measure()
        if why is None:
            self._pools[name] = pool
        return why

    def _look(self, client: Client) -> None:
        with self._looking:  # SGLang's threads come by
            self._presence.look(client)
            self.counters["bypassed_requests"] = client.bypassed_count

    def _ask(self, call: Callable[[Pool, Sequence[Group]], Any], pool: Pool, shelf: Shelf,
             patience: Patience) -> Any:
        """With the groups of this rank's shares of pages."""
        if not pool.groups:
            pool.groups = [
                shelf.group(pool.space(self.config, str(self._settings.revision), shard),
                            patience.left_s)
                for shard in range(pool.shard_count)]
        return call(pool, pool.groups)

    def _keys(self, group: Group, keys: Sequence[str]) -> Keys:
        """SGLang's page hashes are sha256 in hex; whatever else comes is hashed."""
        return group.keys_of_digests(masked([digest_of(key) for key in keys], self._epoch.mask))

    def _guarded(self, name: str, call: Callable[[Pool, Sequence[Group]], Any],
                 otherwise: Any, patience: Patience) -> Any:
        """What `call` answers. A daemon that does not answer is left alone for a while."""
        pool, shelf = self._pools.get(name), self._find_shelf()
        if (self.refusal is not None or pool is None or shelf is None
                or not self._epoch.is_certain or patience.left_s == 0):
            return otherwise
        try:
            self._look(shelf.client)
            return shelf.guarded(functools.partial(self._ask, call, pool, shelf, patience),
                                 otherwise)
        except Unavailable:  # closed
            return otherwise
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
            return otherwise

    def _patience(self) -> Patience:
        return Patience(self._settings.timeout_s)

    def _get(self, name: str, keys: List[str], host_indices: Any, extra_info: Any,
             patience: Patience, flags: int = 0) -> List[bool]:
        """Copies pages into a host pool; the first that is not there ends it."""
        hints = self._hints(extra_info, is_store=False)

        def get(pool: Pool, groups: Sequence[Group]) -> int:
            count = len(keys)
            for shard, group in enumerate(groups):
                if count == 0 or patience.left_s == 0:
                    return 0
                with group.acquire(self._keys(group, keys[:count]), patience.left_s, hints=hints,
                                   flags=flags) as lease:
                    count = lease.block_count
                    try:
                        lease.wait_ready(count, patience.left_s)
                    except Unavailable:
                        count = min(count, lease.ready_count)
                    if count == 0:
                        return 0
                    wanted = host_indices[:count * page_size_of(pool.host)]
                    with patience.copying():
                        lease.copy_into(pool.addresses(shard, wanted, count), block_count=count)
            return count

        count = self._guarded(name, get, 0, patience)
        self.counters["pages_hit"] += count
        self.counters["pages_missed"] += len(keys) - count
        return [i < count for i in range(len(keys))]

    def _set(self, name: str, keys: List[str], host_indices: Any, extra_info: Any,
             patience: Patience, **place: Any) -> List[bool]:
        """Stores the pages that nobody has. True: there, or about to be by somebody else."""
        if name == KV and not self._is_writer:
            return [True] * len(keys)  # another rank has the same bytes, and writes them

        prefix, hints = place.pop("prefix", ()), self._hints(extra_info, is_store=True)

        def put(pool: Pool, groups: Sequence[Group]) -> List[bool]:
            stored, stored_count = [True] * len(keys), 0
            if self._is_reader:
                return [False] * len(keys)
            for shard, group in enumerate(groups):
                if patience.left_s == 0:
                    return [False] * len(keys)
                parent = self._keys(group, prefix[-1:])[0] if prefix else None
                with group.reserve(self._keys(group, keys), patience.left_s, hints=hints,
                                   parent=parent, first_position=len(prefix),
                                   event_hashes=[event_hash(key) for key in keys],
                                   **place) as lease:
                    answers = lease.statuses
                    if "ok" in answers:
                        with patience.copying():
                            lease.write(pool.addresses(shard, host_indices, len(keys)))
                        stored_count = max(stored_count, lease.commit(patience.left_s))
                    stored = [before and answer in ("ok", "exists", "busy")
                              for before, answer in zip(stored, answers)]
            self.counters["pages_stored"] += stored_count
            return stored

        stored = self._guarded(name, put, [False] * len(keys), patience)
        self.counters["pages_refused"] += stored.count(False)
        return stored

    @property
    def _is_reader(self) -> bool:
        """It may not store, nor erase."""
        return self._client is not None and self._client.is_reader

    @property
    def _is_writer(self) -> bool:
        """Of a latent each shard's bytes are those of every rank that has it: the first one writes.
        With decode context parallel rank r of a row has shard r modulo their number."""
        config = self.config
        return not config.is_mla_model or config.tp_rank == getattr(config, "dcp_rank", 0)

    # ---- interface v1: the attention's own pool ----

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many pages, from the first on, are there."""
        return self._exist(keys, self._patience())

    def _exist(self, keys: List[str], patience: Patience) -> int:

        def ask(_pool: Pool, groups: Sequence[Group]) -> int:
            count = len(keys)
            for group in groups:
                if patience.left_s == 0:
                    return 0
                count = group.match(self._keys(group, keys[:count]), patience.left_s).block_count
            return count

        return self._guarded(KV, ask, 0, patience)

    def batch_get_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Copies pages into the host pool; the first that is not there ends it."""
        return self._get(KV, keys, host_indices, extra_info, self._patience())

    def batch_set_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Stores the pages that nobody has. True: there, or about to be by somebody else."""
        prefix = list(getattr(extra_info, "prefix_keys", None) or ())
        return self._set(KV, keys, host_indices, extra_info, self._patience(), prefix=prefix)

    # ---- interface v2: all pools ----

    def batch_exists_v2(self, keys: List[str], pool_transfers: Any = None,
                        extra_info: Any = None) -> Any:
        """Prefixes that every pool can restore: of all pages, or of the last ones alone."""
        patience = self._patience()
        count = self._exist(keys, patience)
        hits, restorable = ({KV: count} if count else {}), list(range(1, count + 1))
        for transfer in pool_transfers or ():
            policy = name_of(transfer.hit_policy)
            if policy == "block_groups":  # has no say in the hit, and is not served
                continue
            found = self._present(name_of(transfer.name), keys[:count], patience)
            needed = len(keys) if policy == "all_pages" else max(1, len(transfer.keys or ()))
            good, run = set(), 0
            for index, is_there in enumerate(found):
                run = run + 1 if is_there else 0
                if run >= min(needed, index + 1):
                    good.add(index + 1)
            if good:
                hits[name_of(transfer.name)] = max(good)
            restorable = [length for length in restorable if length in good]
        result = {"kv_hit_pages": restorable[-1] if restorable else 0,
                  "extra_pool_hit_pages": hits, "restorable_prefix_pages": restorable}
        kind = hicache_storage.PoolTransferResult
        known = {field.name for field in dataclasses.fields(kind)}
        return kind(**{name: value for name, value in result.items() if name in known})

    def _present(self, name: str, keys: List[str], patience: Patience) -> List[bool]:
        """Which pages of a pool are there; beyond the first gap those on this host."""

        def ask(_pool: Pool, groups: Sequence[Group]) -> List[bool]:
            group = groups[0]  # pools beside the attention's own have no shares
            made = self._keys(group, keys)
            count = group.match(made, patience.left_s, flags=KEYS_FLAT).block_count
            rest = made[count:]
            states = ([block.state for block in group.query(rest, patience.left_s)]
                      if len(rest) > 0 else [])
            return [True] * count + [state == "sealed" for state in states]

        return self._guarded(name, ask, [False] * len(keys), patience)

    def batch_get_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        """Of each pool's pages, whether they have been copied into it."""
        patience = self._patience()
        return {transfer.name: self._get(name_of(transfer.name), list(transfer.keys or ()),
                                         transfer.host_indices, extra_info, patience, KEYS_FLAT)
                for transfer in transfers}

    def batch_set_v2(self, transfers: List[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        """Of each pool's pages, whether they are there or about to be."""
        patience = self._patience()
        return {transfer.name: self._set(name_of(transfer.name), list(transfer.keys or ()),
                                         transfer.host_indices, extra_info, patience,
                                         flags=KEYS_FLAT)
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

        def erase(_pool: Pool, groups: Sequence[Group]) -> bool:
            if self._is_reader:
                return False
            for group in groups:
                if patience.left_s == 0:
                    return False
                group.reset()
            return True

        patience = self._patience()
        done = [self._guarded(name, erase, False, patience) for name in list(self._pools)]
        if self.refusal is None and False in done:
            logger.warning("terrace: pages could not be erased; nothing of them is used here again")
            self._epoch.begin()

    def get_stats(self) -> None:
        """SGLang's own metrics object is not filled."""
        return None

    def close(self) -> None:
        """Ends the connection."""
        self._next_make = math.inf
        if self._client is not None:
            self._client.close()
