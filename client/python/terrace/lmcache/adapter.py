"""The adapter that LMCache calls; the package's page says what it does."""
import collections
import functools
import itertools
import logging
import os
import threading
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import numpy

import lmcache
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

try:
    from lmcache.lmcache_native import Bitmap
except ImportError:  # before 0.5
    from lmcache.native_storage_ops import Bitmap

from .. import parameters
from ..client import Client
from ..epochs import Weights
from ..errors import Invalid, TerraceError, Unavailable, Unsupported
from ..leases import ReadLease
from ..parameters import Parameter
from ..presence import Presence
from ..request_hints import PREFIX, HintReader
from ..shelf import Shelf
from ..threads import Pool
from ..waiting import Awaited, WaitingRoom
from .daemon import Daemon
from .loads import Loading
from .objects import (Kind, Layout, Places, Row, address_of_object, layout_of, layout_of_object)

logger = logging.getLogger("lmcache.terrace")
_PARAMETERS = {
    "socket": Parameter("socket", parameters.path, "a path"),
    "revision": Parameter("revision", parameters.text, "a text"),
    "weights_version_file": Parameter("weights_version_file", parameters.path, "a path"),
    "chunk_size": Parameter("chunk_tokens", parameters.count, "a whole number"),
    "apart": Parameter("apart", parameters.text, "a text"),
    "timeout_ms": Parameter("timeout_s", parameters.timeout, parameters.TIMEOUT),
    "load_timeout_ms": Parameter("load_timeout_s", parameters.seconds, parameters.MILLISECONDS),
    "threads": Parameter("threads", lambda value: value, "a whole number"),
}
_THREADS, _THREADS_MAX = 2, 64
_LOOKED_UP_MAX = 1 << 18  # digests that are remembered behind a change of the weights


class _Later(NamedTuple):
    """What a task answers whose blocks are on their way. then: what is left of it to do."""
    blocks: List[Tuple[ReadLease, int]]
    deadline: float
    then: Callable[[], Any]


class _Tasks:
    """Of one kind: threads, results that have not been fetched, and the event that tells of them.
    """

    def __init__(self, kind: str):
        self.event = create_event_notifier()
        self._kind = kind
        self._threads: Optional[Pool] = None
        self._room: Optional[WaitingRoom] = None
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()
        self._results: Dict[int, Any] = {}
        self._waiting: Dict[int, Any] = {}  # what has not begun, with what it ends with otherwise
        self._is_closed = False
        self._parents: Any = None

    def start(self, thread_count: int, room: WaitingRoom) -> None:
        """Nothing begins before. RuntimeError where no threads can be had. room: closed before
        this is."""
        self._threads, self._room = Pool(thread_count, f"terrace-{self._kind}"), room

    def submit(self, work: Callable[[], Any], otherwise: Any) -> int:
        """Every task has one result, `otherwise` if the work fails or never begins. It may answer a
        _Later instead of a result."""
        number = next(self._numbers)
        self._waiting[number] = otherwise
        if not self._give(self._run, number, work):
            self._drop(number)
        return number

    def do(self, work: Callable[[], Any]) -> None:
        """Work that has no result."""
        self._give(self._do, work)

    def _give(self, work: Callable[..., None], *arguments: Any) -> bool:
        """False: closed, or there are no threads."""
        try:
            if self._threads is None:
                return False
            self._threads.submit(work, *arguments)
        except RuntimeError:
            return False
        return True

    def _do(self, work: Callable[[], Any]) -> None:
        if self._threads is not None and not self._threads.is_closed:
            work()

    def _drop(self, number: int) -> None:
        """It never begins: whoever takes it out of what waits ends it."""
        otherwise = self._waiting.pop(number, None)
        if otherwise is not None:
            self._finish(number, otherwise)

    def _run(self, number: int, work: Callable[[], Any]) -> None:
        if self._threads is not None and self._threads.is_closed:
            self._drop(number)
        otherwise = self._waiting.pop(number, None)
        if otherwise is not None:  # else its memory is somebody else's by now
            self._go_on(number, work, otherwise)

    def _go_on(self, number: int, work: Callable[[], Any], otherwise: Any) -> None:
        try:
            result = work()
            if isinstance(result, _Later):
                assert self._room is not None
                if self._room.enter(Awaited(result.blocks, result.deadline, functools.partial(
                        self._give, self._go_on, number, result.then, otherwise))):
                    return
                result = result.then()
        except Exception:  # pylint: disable=broad-except
            logger.exception("terrace: a task failed")
            result = otherwise
        self._finish(number, result)

    def _finish(self, number: int, result: Any) -> None:
        with self._guard:
            self._results[number] = result
            if not self._is_closed:
                self.event.notify()

    def take(self, number: int) -> Any:
        """Once; None while it is not there."""
        with self._guard:
            return self._results.pop(number, None)

    def take_all(self) -> Dict[int, Any]:
        """What has come since the last time."""
        with self._guard:
            results, self._results = self._results, {}
        return results

    def close(self) -> None:
        """Waits for the running task: each has its deadline. What has not begun ends at once."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for number in list(self._waiting):
            self._drop(number)
        if self._threads is not None:
            self._threads.join()
        with self._guard:
            if not self._is_closed:
                self._is_closed = True
                self.event.close()

    def leave_parent(self) -> None:
        """In a forked child there are no threads, and what they held is held for ever: nothing
        begins. The event is the child's own, under the same number."""
        self._guard, self._results = threading.Lock(), {}
        self._parents = self._threads, self._room, self.event
        self._threads = self._room = None
        if not self._is_closed:
            self.event = create_event_notifier()
            os.dup2(self.event.fileno(), self._parents[-1].fileno(), inheritable=False)
        for number in list(self._waiting):
            self._drop(number)


class TerraceL2Adapter(L2AdapterInterface):
    """One LMCache instance's. refusal: why it is off, for good; None while it is on."""

    def __init__(self, config: Dict[str, Any], l1_memory_desc: Any = None):
        super().__init__()
        del l1_memory_desc  # leased slots are the daemon's: nothing of LMCache's is registered
        self.refusal: Optional[str] = None
        threads = config.get("threads", _THREADS)
        if not isinstance(threads, int) or not 1 <= threads <= _THREADS_MAX:
            logger.warning("terrace: threads is %r: it goes from 1 to %d; %d it is", threads,
                           _THREADS_MAX, _THREADS)
            threads = _THREADS
        self._lookups, self._loads, self._stores = (
            _Tasks("lookup"), _Tasks("load"), _Tasks("store"))
        self._room: Optional[WaitingRoom] = None
        self.counters = {"objects_found": 0, "objects_missed": 0, "objects_loaded": 0,
                         "objects_lost": 0, "objects_stored": 0, "objects_dropped": 0}
        self._counting = threading.Lock()
        self._looking = threading.Lock()
        self._places = Places()
        self._hints = HintReader(logger).read(
            {name: value for name, value in config.items() if str(name).startswith(PREFIX)}).hints()
        self._weights = Weights(config.get("weights_version_file"), logger)
        self._looked_up: "collections.OrderedDict[bytes, int]" = collections.OrderedDict()
        self._daemon: Optional[Daemon] = None
        self._presence: Optional[Presence] = None
        self._parents_daemon: Optional[Daemon] = None
        self._parents_room: Optional[WaitingRoom] = None
        self._refused: Dict[str, None] = {}
        _adapters.add(self)
        try:
            self._begin(config, threads)
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(str(error) if isinstance(error, ValueError)
                         else f"{type(error).__name__}: {error}")

    def _begin(self, config: Dict[str, Any], threads: int) -> None:
        said = parameters.read(config, _PARAMETERS, where="adapter_params", logger=logger,
                               prefix=PREFIX)
        for name in ("socket", "revision"):
            if not said.get(name):
                self._refuse(f"adapter_params has no {name!r}")
                return
        self._room = WaitingRoom()
        for tasks, count in (self._lookups, 1), (self._loads, threads), (self._stores, threads):
            tasks.start(count, self._room)
        timeout_s = said.get("timeout_s", 0.05)
        client = Client(said["socket"], name="lmcache", default_timeout_s=timeout_s)
        self._daemon = Daemon(
            Shelf(client, "lmcache", timeout_s), revision=said["revision"],
            said=f"{getattr(lmcache, '__version__', '?')}\0{said.get('apart', '')}",
            chunk_tokens=said.get("chunk_tokens", 256), timeout_s=timeout_s,
            load_timeout_s=said.get("load_timeout_s", 10.0), logger=logger)
        self._presence = Presence(logger, said["socket"])
        try:
            client.wait_connected(2.0)
        except Unavailable as error:
            logger.warning("terrace: %s; LMCache goes on without it until it is there", error)

    def _refuse(self, sentence: str) -> None:
        logger.warning("terrace is off: %s", sentence)
        self.refusal = sentence

    def _ready(self) -> Optional[Daemon]:
        """None: whatever is asked is a miss."""
        daemon = self._daemon
        if self.refusal is not None or daemon is None:
            return None
        with self._looking:  # two of LMCache's threads come by
            self._weights.look()
            if self._presence is not None:
                self._presence.look(daemon.shelf.client)
        return daemon if daemon.shelf.is_there else None

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, count in more.items():
                self.counters[name] += count

    # ---- events ----

    def get_store_event_fd(self) -> int:
        return self._stores.event.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.event.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.event.fileno()

    # ---- stores ----

    def submit_store_task(self, keys: List[Any], objects: List[Any]) -> int:
        return self._stores.submit(
            functools.partial(self._store, self._ready(), list(keys), list(objects),
                              self._weights.mask, self._weights.number), L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> Dict[int, Any]:
        return self._stores.take_all()

    def _store(self, daemon: Optional[Daemon], keys: List[Any], objects: List[Any], mask: bytes,
               epoch: int) -> Any:
        there, stored, byte_count = set(), set(), 0
        runs = self._runs(daemon, keys, objects, mask, is_written=False)
        for row, layout, addresses in self._of_epoch(runs, epoch):
            assert daemon is not None
            daemon.see(row.kind, layout)
            now, new = daemon.store(row._replace(hints=self._hints), layout, addresses)
            there |= now
            stored |= new
            byte_count += len(new) * layout.byte_count
        if stored:
            self._notify_keys_stored([keys[i] for i in sorted(stored)],
                                     [objects[i].get_size() for i in sorted(stored)])
        self._count(objects_stored=len(stored), objects_dropped=len(keys) - len(there))
        return L2StoreResult(len(there) == len(keys), byte_count)

    def _of_epoch(self, runs: List[Tuple[Row, Layout, Any]], epoch: int
                  ) -> List[Tuple[Row, Layout, Any]]:
        """Behind a change of the weights: of objects that were looked up since then. Nobody says
        when the others were computed, and with which weights."""
        if epoch == 0:
            return runs
        with self._looking:
            return [run for run in runs if all(self._looked_up.get(digest) == epoch
                                               for digest in run[0].digests)]

    def _note_looked_up(self, row: Row, epoch: int) -> None:
        if epoch == 0:
            return
        with self._looking:
            for digest in row.digests:
                self._looked_up[digest] = epoch
                self._looked_up.move_to_end(digest)
            while len(self._looked_up) > _LOOKED_UP_MAX:
                self._looked_up.popitem(last=False)

    def _runs(self, daemon: Optional[Daemon], keys: List[Any], objects: List[Any], mask: bytes, *,
              is_written: bool) -> List[Tuple[Row, Layout, Any]]:
        """Rows of one layout each, with their objects' addresses; without what cannot be served."""
        if daemon is None:
            return []
        runs: List[Tuple[Row, Layout, Any]] = []
        for row in self._places.rows(keys):
            found: List[Tuple[Layout, int, int]] = []  # with the number in the row
            for number, index in enumerate(row.indexes):
                try:
                    layout = layout_of_object(objects[index])
                    found.append((layout, address_of_object(objects[index], layout, is_written),
                                  number))
                except (Invalid, Unsupported) as error:
                    self._refuse_object(str(error))
            for layout, first, numbers in _cut(found):
                runs.append((row._replace(mask=mask).part(numbers[0], numbers[-1] + 1), layout,
                             numpy.array([each[1] for each in
                                          found[first:first + len(numbers)]], numpy.uint64)))
        return runs

    def _refuse_object(self, sentence: str) -> None:
        if len(self._refused) < 8 and sentence not in self._refused:
            self._refused[sentence] = None
            logger.warning("terrace: %s", sentence)

    # ---- lookups and locks ----

    def submit_lookup_and_lock_task(self, keys: List[Any], group_layout_descs: Any = None) -> int:
        return self._lookups.submit(
            functools.partial(self._lookup, self._ready(), list(keys), group_layout_descs,
                              self._weights.mask, self._weights.number), Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.take(task_id)

    def _lookup(self, daemon: Optional[Daemon], keys: List[Any], said: Any, mask: bytes,
                epoch: int) -> Any:
        bitmap = Bitmap(len(keys))
        found: Set[int] = set()
        rows = self._places.rows_of_prompts(keys)
        try:
            for row in rows:
                self._note_looked_up(row, epoch)
            for row in rows if daemon is not None else ():
                assert daemon is not None
                daemon.lock(row._replace(mask=mask), _said_of(said, row.kind), found)
        except Exception:  # pylint: disable=broad-except
            # LMCache unlocks what it is told of, and nothing else
            logger.exception("terrace: a lookup failed; what it has locked is found")
        for index in found:
            bitmap.set(index)
        self._count(objects_found=len(found), objects_missed=len(keys) - len(found))
        return bitmap

    def submit_unlock(self, keys: List[Any]) -> None:
        daemon = self._daemon
        if daemon is not None:
            daemon.locks.unlock([digest for row in self._places.rows(list(keys))
                                 for digest in row.digests])

    # ---- loads ----

    def submit_load_task(self, keys: List[Any], objects: List[Any]) -> int:
        daemon = self._ready()
        loading = None if daemon is None else daemon.loading()
        return self._loads.submit(
            functools.partial(self._begin_load, daemon, loading, list(keys), list(objects),
                              self._weights.mask), Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.take(task_id)

    def _begin_load(self, daemon: Optional[Daemon], loading: Optional[Loading], keys: List[Any],
                    objects: List[Any], mask: bytes) -> Any:
        if daemon is None or loading is None:
            return self._loaded(keys, set())
        try:
            for row, layout, addresses in self._runs(daemon, keys, objects, mask, is_written=True):
                daemon.see(row.kind, layout)
                daemon.begin_load(loading, row, layout, addresses)
        except BaseException:
            loading.leave()
            raise
        return _Later(loading.blocks, loading.deadline,
                      functools.partial(self._end_load, keys, loading))

    def _end_load(self, keys: List[Any], loading: Loading) -> Any:
        return self._loaded(keys, loading.finish())

    def _loaded(self, keys: List[Any], loaded: Set[int]) -> Any:
        """What a load answers."""
        bitmap = Bitmap(len(keys))
        for index in loaded:
            bitmap.set(index)
        if loaded:
            self._notify_keys_accessed([keys[i] for i in sorted(loaded)])
        self._count(objects_loaded=len(loaded), objects_lost=len(keys) - len(loaded))
        return bitmap

    # ---- the rest ----

    def delete(self, keys: List[Any]) -> None:
        """Of an operator, or of LMCache's quotas: erased from every tier, soon."""
        self._stores.do(functools.partial(self._delete, self._ready(), list(keys),
                                          self._weights.mask))

    def _delete(self, daemon: Optional[Daemon], keys: List[Any], mask: bytes) -> None:
        sizes: List[int] = []
        for row in self._places.rows(keys):
            if daemon is not None:
                daemon.erase(row._replace(mask=mask))
            sizes += [daemon.size_of(row.kind) if daemon is not None else 0] * len(row.indexes)
        self._notify_keys_deleted(keys, sizes)

    def report_status(self) -> Dict[str, Any]:
        daemon = self._daemon
        is_there = daemon is not None and self.refusal is None and daemon.shelf.is_there
        return {"is_healthy": is_there, "type": type(self).__name__, "refusal": self.refusal,
                "locked_object_count": daemon.locks.count if daemon is not None else 0,
                **self.counters}

    def close(self) -> None:
        if self._room is not None:
            self._room.close()
        for tasks in (self._lookups, self._loads, self._stores):
            tasks.close()
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.locks.close()
            daemon.shelf.client.close()

    def leave_parent(self) -> None:
        """In a forked child everything is a miss; connection and leases are the parent's, and are
        not touched."""
        self.refusal = "this process was forked from the one that has the adapter"
        self._parents_daemon, self._daemon = self._daemon, None
        self._parents_room, self._room = self._room, None
        for tasks in (self._lookups, self._loads, self._stores):
            tasks.leave_parent()


_adapters: "weakref.WeakSet[TerraceL2Adapter]" = weakref.WeakSet()


def _leave_parent() -> None:
    for adapter in list(_adapters):
        adapter.leave_parent()


os.register_at_fork(after_in_child=_leave_parent)


def _said_of(said: Any, kind: Kind) -> Optional[Layout]:
    """What LMCache says of objects of that kind in a lookup, if anything."""
    about = said.get(kind.object_group) if isinstance(said, dict) else said
    return None if about is None else layout_of(about.shapes, about.dtypes)


def _cut(found: List[Tuple[Layout, int, int]]) -> List[Tuple[Layout, int, List[int]]]:
    """Successive ones of one layout: it, the first one's place, and their numbers."""
    cut: List[Tuple[Layout, int, List[int]]] = []
    for place, (layout, _, number) in enumerate(found):
        if cut and cut[-1][0] == layout and cut[-1][2][-1] + 1 == number:
            cut[-1][2].append(number)
        else:
            cut.append((layout, place, [number]))
    return cut
