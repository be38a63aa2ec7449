"""The vLLM tier: terraced below vLLM's own CPU tier, in the scheduler's process.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector",
        "kv_role": "kv_both", "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592,
            "secondary_tiers": [{"type": "TerraceTier", "module_path": "terrace.vllm_tier",
                                 "socket": "/run/terrace/default.sock", "revision": "REVISION"}]}}'

Tier configuration: socket and revision (required; a revision has to change whenever the weights or
what is computed of them do between two starts: a tier is told nothing of the model but its name),
weights_version_file, whose text names the weights that are loaded, where
they are exchanged while vLLM runs, timeout_ms (50), load_timeout_ms (10000). Nothing here blocks or
raises into vLLM: what the daemon does not answer is a miss, a store it does not take is forgotten.
Loads whose chunks are still on their way wait aside.

A chunk is a row of vLLM's CPU tier: all layers of all ranks of one KV cache group. Each group has
its own Space; vLLM itself puts leading runs and trailing windows together.

THREADING: vLLM calls from one thread at a time, the scheduler's; questions, loads and stores run on
others.
"""
import dataclasses
import functools
import inspect
import logging
import os
import queue
import threading
import time
from typing import Any, Callable, Collection, Dict, Iterable, List, NamedTuple, Optional

import numpy

from vllm.v1.kv_offload import base as offload
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .. import parameters
from ..calls import Hints
from ..client import Client
from ..epochs import Weights
from ..errors import TerraceError, Unavailable
from ..leases import ReadLease
from ..parameters import Parameter
from ..presence import Presence
from ..request_hints import NOTHING, HintReader, RequestHints, session_hash_of
from ..threads import LentMemory, Pool
from ..waiting import Awaited, WaitingRoom
from .tier_chunks import GROUP_BYTES, Chunks, Run, runs_of, spaces_of
from .tier_verdicts import Verdicts

logger = logging.getLogger("vllm.terrace")
_READERS = 2
_TOUCHED_MAX = 8192  # keys a step
_SHA256_BYTES = 32
_OF_VLLM = ("type", "module_path", "class_name")
_PARAMETERS = {
    "socket": Parameter("socket", parameters.path, "a path"),
    "revision": Parameter("revision", parameters.text, "a text"),
    "weights_version_file": Parameter("weights_version_file", parameters.path, "a path"),
    "timeout_ms": Parameter("timeout_s", parameters.timeout, parameters.TIMEOUT),
    "load_timeout_ms": Parameter("load_timeout_s", parameters.seconds, parameters.MILLISECONDS),
}


class _Held(NamedTuple):
    """Chunks of a load that are there or coming, and where they are wanted."""
    run: Run
    lease: ReadLease
    addresses: Any


class TerraceTier(SecondaryTierManager):
    """See the page."""

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str,
                 **config: Any):
        base = inspect.signature(SecondaryTierManager.__init__).parameters
        super().__init__(offloading_spec, primary_kv_view, tier_type,
                         **{name: value for name, value in config.items() if name in base})
        self.refusal: Optional[str] = None
        self._rows: Any = numpy.asarray(primary_kv_view)  # vLLM wants its memory back at shutdown
        self._verdicts = Verdicts()
        self._answers: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._finished: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._contexts: Dict[str, Any] = {}
        self._begun: Dict[str, int] = {}  # by request: the number of the epoch that first saw it
        self._hint_reader = HintReader(logger)
        self._chains: Dict[str, Dict[Any, bytes]] = {}  # by request: (group, position) to hash
        self._job_ended = threading.Condition()
        self._job_count = 0  # submitted, and not ended
        self._touched: Dict[bytes, None] = {}
        self._waiting: Optional[WaitingRoom] = None
        self._threads: Dict[str, Pool] = {}
        self._load_timeout_s = 0.0
        self.counters = {"loaded_chunks": 0, "lost_chunks": 0, "stored_jobs": 0, "dropped_jobs": 0}
        self._weights = Weights(config.get("weights_version_file"), logger)
        self._chunks: Optional[Chunks] = None
        self._presence: Optional[Presence] = None
        self._chunk_tokens: Dict[int, int] = {}
        try:
            self._begin(offloading_spec, {name: value for name, value in config.items()
                                          if name not in base and name not in _OF_VLLM})
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(str(error) if isinstance(error, ValueError)
                         else f"{type(error).__name__}: {error}")

    def _begin(self, spec: Any, config: Dict[str, Any]) -> None:
        said = parameters.read(config, _PARAMETERS, where="the tier's configuration",
                               logger=logger)
        for name in ("socket", "revision"):
            if not said.get(name):
                self._refuse(f"the tier's configuration has no {name!r}")
                return
        if not _is_seed_shared():
            self._refuse("vLLM's block hashes are seeded at random in this process, so nobody "
                         "shares them: set PYTHONHASHSEED to the same number everywhere")
            return
        self._waiting = WaitingRoom()
        for kind, count in (("ask", 1), ("load", _READERS), ("store", 1)):
            self._threads[kind] = Pool(count, f"terrace-{kind}")
        timeout_s = said.get("timeout_s", 0.05)
        spaces = spaces_of(spec.config, said["revision"], int(self._rows.strides[0]))
        self._chunk_tokens = {index: space.block_tokens for index, space in spaces.items()}
        client = Client(said["socket"], name="vllm-tier", default_timeout_s=timeout_s)
        self._load_timeout_s = said.get("load_timeout_s", 10.0)
        self._chunks = Chunks(client, spaces, LentMemory("vLLM's CPU tier"), timeout_s=timeout_s)
        self._client = client
        self._presence = Presence(logger, said["socket"])
        try:
            client.wait_connected(2.0)
        except Unavailable as error:
            logger.warning("terrace: %s; vLLM serves without it until it is there", error)

    def _refuse(self, sentence: str) -> None:
        logger.warning("terrace is off: %s", sentence)
        self.refusal = sentence

    @property
    def _daemon(self) -> Chunks:
        """REQUIRES: no refusal."""
        assert self._chunks is not None
        return self._chunks

    # ---- lookups: asked all together at the end of a step ----

    def lookup(self, key: bytes, req_context: Any) -> Any:
        if self.refusal is not None:
            return offload.LookupResult.MISS
        self._take_answers()
        if not self._verdicts.knows(key) and not self._daemon.is_there:
            return offload.LookupResult.MISS
        if len(key) - GROUP_BYTES < _SHA256_BYTES and "PYTHONHASHSEED" not in os.environ:
            self._refuse("vLLM's block hashes are not sha256, and seeded at random: set "
                         "PYTHONHASHSEED, or --prefix-caching-hash-algo sha256, everywhere")
            return offload.LookupResult.MISS
        self._contexts[req_context.req_id] = req_context
        self._begun.setdefault(req_context.req_id, self._weights.number)
        verdict = self._verdicts.ask(key, req_context.req_id)
        if verdict is None:
            return offload.LookupResult.RETRY
        return offload.LookupResult.HIT if verdict else offload.LookupResult.MISS

    def _take_answers(self) -> None:
        while not self._answers.empty():
            keys, found = self._answers.get()
            for key, is_there in zip(keys, found):
                self._verdicts.tell(key, is_there)

    def on_schedule_end(self, context: Any) -> None:
        """Asks what this step's lookups wanted to know."""
        self._weights.look()
        if self._presence is not None:
            self._presence.look(self._client)
        self._take_answers()
        questions, self._verdicts.new = self._verdicts.new, {}
        for request_id, keys in questions.items():
            req_context = self._contexts.get(request_id)
            self._threads["ask"].submit(self._ask, keys, self._runs(keys, req_context))
            if req_context is None:
                self._verdicts.forget(request_id)  # it ended meanwhile
        touched, self._touched = self._touched, {}
        if touched and self.refusal is None and self._daemon.is_there:
            self._threads["ask"].submit(self._touch, list(touched), self._weights.mask)

    def _runs(self, keys: Collection[bytes], req_context: Any) -> List[Run]:
        """With the chunks before them, as far as this request has shown them."""
        end_of = getattr(req_context, "get_offload_key_position", lambda key: None)
        runs = [run._replace(mask=self._weights.mask)
                for run in runs_of(keys, end_of, self._chunk_tokens)]
        if req_context is None:
            return runs
        chain = self._chains.setdefault(req_context.req_id, {})
        for run in runs:
            if run.position >= 0:
                chain.update(((run.group_index, run.position + i), block_hash)
                             for i, block_hash in enumerate(run.hashes))
        return [run._replace(parent=chain.get((run.group_index, run.position - 1)))
                for run in runs]

    def _ask(self, keys: List[bytes], runs: List[Run]) -> None:
        found = [False] * len(keys)
        try:
            for run in () if self._is_closed else runs:
                for index, is_there in zip(run.indexes, self._daemon.present(run)):
                    found[index] = is_there
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
        finally:
            self._answers.put((keys, found))

    def _touch(self, keys: List[bytes], mask: bytes) -> None:
        try:
            for run in () if self._is_closed else runs_of(keys, lambda key: None,
                                                          self._chunk_tokens):
                self._daemon.touch(run._replace(mask=mask))
        except TerraceError as error:
            self._refuse(str(error))

    # ---- jobs ----

    def submit_load(self, job_metadata: Any) -> None:
        deadline = time.monotonic() + self._load_timeout_s  # waiting for a thread counts
        self._submit("load", functools.partial(self._begin_load, deadline), job_metadata)

    def submit_store(self, job_metadata: Any) -> None:
        """What a request of another epoch has computed is of other weights, whenever it comes: it
        is not stored."""
        began = self._begun.get(getattr(job_metadata.req_context, "req_id", ""), 0)
        self._submit("store", self._store, job_metadata, began == self._weights.number)

    def _submit(self, kind: str, work: Callable[[Any, List[Run], Any], None], job: Any,
                is_wanted: bool = True) -> None:
        if self.refusal is not None or not is_wanted:
            self._finish(job, ())
            return
        hints = self._hints_of(job.req_context)
        rows = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
        addresses = (numpy.asarray(rows, numpy.uint64) * numpy.uint64(self._rows.strides[0])
                     + numpy.uint64(self._rows.ctypes.data))
        runs = [run._replace(hints=hints) for run in self._runs(job.keys, job.req_context)]
        with self._job_ended:
            self._job_count += 1
        try:
            self._threads[kind].submit(work, job, runs, addresses)
        except RuntimeError:  # the process ends
            self._end_job(job, ())

    def _hints_of(self, req_context: Any) -> Optional[Hints]:
        """What the request says of its chunks; None: nothing. vLLM keeps it beside the request."""
        said = None
        if hasattr(req_context, "get_state"):
            said = req_context.get_state(RequestHints)
        if said is None:
            said = self._hint_reader.read(getattr(req_context, "kv_transfer_params", None))
            if hasattr(req_context, "set_state"):
                req_context.set_state(said)
        if said == NOTHING:
            return None
        return said.hints(session_hash=session_hash_of(None, said.session) if said.session else 0)

    @property
    def _is_closed(self) -> bool:
        """What has not begun does not begin any more."""
        return self._waiting is None or self._waiting.is_closed

    def _begin_load(self, deadline: float, job: Any, runs: List[Run], addresses: Any) -> None:
        held: List[_Held] = []
        try:
            for run in () if self._is_closed else runs:
                lease = self._daemon.acquire(run, deadline)
                if lease is not None:
                    held.append(_Held(run, lease, numpy.ascontiguousarray(addresses[run.indexes])))
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
        assert self._waiting is not None
        blocks = [(each.lease, each.lease.block_count) for each in held]
        if not self._waiting.enter(Awaited(blocks, deadline, functools.partial(
                self._threads["load"].submit, self._load, job, held))):
            self._load(job, held)

    def _load(self, job: Any, held: List[_Held]) -> None:
        """What has come of it."""
        done: List[int] = []
        try:
            for run, lease, addresses in held:
                done += run.indexes[:self._daemon.copy(lease, addresses)]
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
        finally:
            for each in held:
                each.lease.release()
            self._end_job(job, done)

    def _store(self, job: Any, runs: List[Run], addresses: Any) -> None:
        done: List[int] = []
        try:
            for run in () if self._is_closed else runs:
                if self._daemon.store(run, numpy.ascontiguousarray(addresses[run.indexes])):
                    done += run.indexes
        except Exception as error:  # pylint: disable=broad-except
            self._refuse(f"{type(error).__name__}: {error}")
        finally:
            self._end_job(job, done)

    def _end_job(self, job: Any, done: Collection[int]) -> None:
        self._finish(job, done)
        with self._job_ended:
            self._job_count -= 1
            self._job_ended.notify_all()

    def _finish(self, job: Any, done: Collection[int]) -> None:
        """Every job is reported once."""
        keys, done = list(job.keys), set(done)
        successful = [key for index, key in enumerate(keys) if index in done]
        fields = {"job_id": job.job_id, "success": len(successful) == len(keys)}
        if job.is_promotion and successful and not fields["success"]:
            fields["successful_keys"] = tuple(successful)
        known = {field.name for field in dataclasses.fields(JobResult)}
        result = JobResult(**{name: value for name, value in fields.items() if name in known})
        self._finished.put((result, job, [k for k in keys if k not in set(successful)]))

    def get_finished_jobs(self) -> Iterable[Any]:
        results = []
        while not self._finished.empty():
            result, job, lost = self._finished.get()
            results.append(result)
            if not job.is_promotion:
                self.counters["stored_jobs" if result.success else "dropped_jobs"] += 1
                continue
            self.counters["loaded_chunks"] += len(job.keys) - len(lost)
            self.counters["lost_chunks"] += len(lost)
            for key in lost:
                self._verdicts.tell(key, False)
        return results

    def drain_jobs(self) -> None:
        """vLLM waits for them when its tiers are reset, and at no other time: another epoch begins.
        Every job has its deadline."""
        with self._job_ended:
            self._job_ended.wait_for(lambda: self._job_count == 0)
        self._weights.reset()

    # ---- requests ----

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        self._runs(keys, req_context)  # shows what is in vLLM's own tier and comes before the rest
        for key in keys:
            if len(self._touched) < _TOUCHED_MAX:
                self._touched[key] = None

    def on_new_request(self, req_context: Any) -> Any:
        self._begun.setdefault(req_context.req_id, self._weights.number)
        return offload.RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._contexts.pop(req_context.req_id, None)
        self._begun.pop(req_context.req_id, None)
        self._chains.pop(req_context.req_id, None)
        self._verdicts.forget(req_context.req_id)

    def shutdown(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
        for threads in self._threads.values():
            threads.shutdown()
        self._rows = None
        if self._chunks is not None:
            self._client.close()


def _is_seed_shared() -> bool:
    """Whether another process has the same sha256 block hashes."""
    from vllm.v1.core import kv_cache_utils  # pylint: disable=import-outside-toplevel

    return "PYTHONHASHSEED" in os.environ or hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")
