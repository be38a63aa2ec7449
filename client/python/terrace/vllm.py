"""The vLLM connector: shares the prefixes of vLLM instances through a terraced.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TerraceConnector",
        "kv_connector_module_path": "terrace.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": "/run/terrace/default.sock"}}'

Extra configuration: socket (required); revision of the weights (else from the model's files);
weights_version_file, whose text names the weights that are loaded, where they are exchanged;
lookup_wait_ms (0.5), timeout_ms (50), load_timeout_ms (10000); plugin_path of libterrace_cuda.so
(else the one installed with libterrace) and pinned_gib (all), where the KV cache is a GPU's;
copy_threads (0: the step itself copies), where it is host memory. Nothing here raises into the
engine or waits longer than those: without a daemon vLLM serves on, without the cache.

Today: KV caches in host memory (vLLM's CPU platform) and on NVIDIA GPUs, of which it has run on
none yet; full attention, MLA and sliding windows, in one KV cache group or several of one block
size, beside full attention also
states (Mamba, linear attention; mamba_cache_mode align), tensor, pipeline and decode context
parallel. What it cannot serve it says in the log, once, and stays out of the way.
"""
import dataclasses
import functools
import logging
import time
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1 import base as _base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorRole,
    KVConnectorWorkerMetadata)

from . import vllm_model, vllm_stats
from .client import ACQUIRE_DEVICE, Client, Group
from .epochs import Weights
from .errors import TerraceError, Unavailable, Unsupported
from .paged import Device
from .pages import Pages
from .presence import Presence
from .space import Space, SpaceGroup
from .vllm_adapters import Adapters
from .vllm_copies import CudaEngine, HostEngine, InStep, Queued
from .vllm_messages import Layout, Load, StageLayout, Step
from .vllm_scheduler import SchedulerHalf
from .vllm_worker import WorkerHalf, blocks_of

logger = logging.getLogger("vllm.terrace")
_START_WAIT_S = 2.0
# Opening the group later, when the daemon comes up after the engine, waits timeout_ms, this often.
_OPEN_PAUSE_S = 5.0
_LAYOUT_WAIT_S = 1.0
_PIPELINE_HANDSHAKE = "set_xfer_handshake_metadata_pp_aware"
# Older versions turn their hybrid memory off for a connector without it, and have one group.
_SupportsHMA = getattr(_base, "SupportsHMA", object)


@dataclasses.dataclass
class TerraceMetadata(KVConnectorMetadata):
    """A step's work, from the scheduler to the workers."""
    step: Step


@dataclasses.dataclass
class TerraceHandshake(KVConnectorHandshakeMetadata):
    """What a worker found when its KV cache had been made."""
    layout: StageLayout


@dataclasses.dataclass
class TerraceReports(KVConnectorWorkerMetadata):
    """How many workers are through with each store; why one of them is off; what those have that
    could not say it in a handshake, by (pipeline stage, tensor parallel rank)."""
    counts: Dict[int, int]
    refusal: Optional[str] = None
    layouts: Dict[Tuple[int, int], StageLayout] = dataclasses.field(default_factory=dict)

    def aggregate(self, other: "TerraceReports") -> "TerraceReports":
        """Of several workers together."""
        counts = dict(self.counts)
        for number, count in other.counts.items():
            counts[number] = counts.get(number, 0) + count
        return TerraceReports(counts, self.refusal or other.refusal,
                              {**self.layouts, **other.layouts})


def _never_raises(otherwise: Any = None, makes: Any = None):
    """A hook that fails turns the connector off instead of the engine, and says why."""

    def decorate(hook):
        @functools.wraps(hook)
        def guarded(self, *arguments, **named):
            if self.refusal is None:
                try:
                    return hook(self, *arguments, **named)
                except Unavailable:
                    pass  # no cache just now
                except Exception as error:  # pylint: disable=broad-except
                    self.refuse(f"{hook.__name__}: {type(error).__name__}: {error}")
            return makes() if makes is not None else otherwise

        return guarded

    return decorate


def _has_siblings(connector: Any) -> bool:
    """Whether this worker's connector is one of several in a MultiConnector."""
    try:
        from vllm.distributed.kv_transfer import (  # pylint: disable=import-outside-toplevel
            get_kv_transfer_group, has_kv_transfer_group)
    except ImportError:
        return False
    return has_kv_transfer_group() and get_kv_transfer_group() is not connector


class TerraceConnector(KVConnectorBase_V1, _SupportsHMA):
    """See the page. One instance in the scheduler, one in every worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.refusal: Optional[str] = None
        self.scheduler: Optional[SchedulerHalf] = None
        self.worker: Optional[WorkerHalf] = None
        self._stage_count = 1
        self._stage_layout: Optional[StageLayout] = None  # of a worker
        self._layout: Optional[Layout] = None
        self._has_told_layout = False  # of a worker
        self._told_layouts: Dict[Tuple[int, int], StageLayout] = {}  # by reports, so far
        self._layout_awaited_until = 0.0
        self._presence: Optional[Presence] = None  # of a scheduler
        self._client: Optional[Client] = None
        self._lost_loads: List[Load] = []  # of a worker that was turned off: failed, and reported
        self._orphans: List[Load] = []  # promised by a scheduler that was turned off since
        self._storing: Set[int] = set()  # numbers of stores that the worker has
        self._not_stored: Set[int] = set()  # and of those that it never got
        self._since = vllm_stats.Since()
        self._adapters = Adapters(vllm_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
        self._timeout_s = float(extra.get("timeout_ms", 50)) / 1e3
        self._lookup_wait_s = float(extra.get("lookup_wait_ms", 0.5)) / 1e3
        self._load_timeout_s = float(extra.get("load_timeout_ms", 10_000)) / 1e3
        self._revision = extra.get("revision")
        self._weights: Optional[Weights] = None  # of the scheduler: workers get leases, not keys
        if role == KVConnectorRole.SCHEDULER:
            self._weights = Weights(extra.get("weights_version_file"), logger)
        self._plugin_path = extra.get("plugin_path")
        self._copy_threads = int(extra.get("copy_threads", 0))
        self._reads_hbm = bool(extra.get("hbm", False))
        pinned_gib = extra.get("pinned_gib")
        self._client_options: Dict[str, Any] = {
            "name": f"vllm-{role.name.lower()}", "default_timeout_s": self._timeout_s,
            "pinned_bytes_max": None if pinned_gib is None else int(float(pinned_gib) * (1 << 30))}
        self._device: Optional[Device] = None  # None: the step copies
        self._engine: Any = HostEngine()
        parallel = vllm_config.parallel_config
        self._socket = extra.get("socket")
        if self._socket is None:
            self.refuse("kv_connector_extra_config has no 'socket': name the domain's socket")
            return
        why = (vllm_model.refusal_of(kv_cache_config, vllm_model.shards_of(parallel))
               or vllm_model.refusal_of_states(kv_cache_config, vllm_config))
        if why is not None:
            self.refuse(why)
            return
        if getattr(parallel, "prefill_context_parallel_size", 1) != 1:
            self.refuse("prefill_context_parallel_size is "
                        f"{parallel.prefill_context_parallel_size}: only 1 is served yet")
            return
        self._stage_count = getattr(parallel, "pipeline_parallel_size", 1)
        if self._stage_count > 1 and not hasattr(KVConnectorBase_V1, _PIPELINE_HANDSHAKE):
            self.refuse(f"pipeline_parallel_size is {self._stage_count}, and this vLLM tells a "
                        f"connector of one stage only: it needs {_PIPELINE_HANDSHAKE}")
            return
        if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
            self.refuse("calculate_kv_scales gives every instance scales of its own for an fp8 "
                        "cache, so nobody can share it: take them from the checkpoint")
            return
        if getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "") == "fail":
            logger.warning("terrace: kv_load_failure_policy is 'fail': a block lost on its way "
                           "fails its request; set it to 'recompute'")
        if role == KVConnectorRole.SCHEDULER:  # one an engine
            self._presence = Presence(logger, self._socket)
        try:
            self._client = Client(self._socket, **self._client_options)
        except TerraceError as error:
            self.refuse(str(error))

    def refuse(self, sentence: str) -> None:
        """Turns this half off, for good."""
        logger.warning("terrace is off: %s", sentence)
        self.refusal = sentence
        if self.worker is not None:
            self.worker.give_up_stores()  # nobody polls them any more
        if self.scheduler is not None:
            try:
                self.scheduler.close()  # nobody would give back what it holds
                self._client.close()  # nor take what is still being answered
            except Exception as error:  # pylint: disable=broad-except
                logger.warning("terrace: what it held ends with its leases: %s", error)

    # ---- what a best-effort cache answers ----

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # ---- worker ----

    @_never_raises()
    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        groups = self._kv_cache_config.kv_cache_groups  # a stage may have no layer of one
        try:
            self._open_device({str(tensor.device): tensor.device for tensor in kv_caches.values()})
        except TerraceError as error:
            self.refuse(str(error))
            return
        self._pages = [Pages(kv_caches, group.layer_names, self._kv_cache_config.num_blocks)
                       for group in groups]
        if self._device is not None:
            for pages in self._pages:
                pages.check_uniform()
        revision = self._revision or vllm_model.revision_of(self._vllm_config)
        stage, _ = self._place
        self._stage_layout = StageLayout([
            vllm_model.layout_of(self._vllm_config, group, index, revision,
                                 (stage, self._stage_count), kv_caches[group.layer_names[0]], pages)
            if group.layer_names else None
            for index, (group, pages) in enumerate(zip(groups, self._pages))])
        self._wait_at_start()
        if self._stage_count == 1:  # else what the other stages have comes with the first step
            self._layout = Layout([self._stage_layout])
            self._worker(_START_WAIT_S)

    def _open_device(self, places: Dict[str, Any]) -> None:
        """What copies the KV cache; Unsupported where nothing does."""
        if len(places) > 1:
            raise Unsupported(f"the KV cache lies on {sorted(places)}: one place is served")
        place = next(iter(places.values()), None)  # a stage may have no layer at all
        if place is None:
            return
        if place.type == "cuda":
            self._device = Device("cuda", plugin_path=self._plugin_path, index=place.index or 0)
            self._engine = CudaEngine(place)
        elif place.type != "cpu":
            raise Unsupported(f"the KV cache lies on {place}: NVIDIA GPUs and host memory are "
                              "served yet")
        elif self._copy_threads > 0:
            self._device = Device("host", workers=self._copy_threads)
        if self._reads_hbm and self._device is not None:
            # Which device it is shows only here: another connection, that maps its memory.
            self._client.close()
            self._client = Client(self._socket, device=self._device, **self._client_options)

    def _copies(self) -> Any:
        """Made at the first copy."""
        if self._device is None:
            return InStep(self._pages)
        spaces = self._spaces()
        return Queued(self._client, self._device, self._engine, self._pages,
                      [None if member is None else spaces[member]
                       for member in self.worker.members])

    def _spaces(self) -> List[Space]:
        """Of every member of the SpaceGroup."""
        return [Space(**group.fields, part_bytes=tuple(group.part_bytes),
                      tp_rank=share % group.fields["tp_size"],
                      cp_rank=share % group.fields["cp_size"])
                for _, _, group, share in self._layout.shares()]

    @property
    def _place(self) -> Tuple[int, int]:
        """(pipeline stage, tensor parallel rank)."""
        return divmod(self._rank, self._vllm_config.parallel_config.tensor_parallel_size)

    @property
    def _rank(self) -> int:
        """Of this worker: stages, and in each of them its tensor parallel ranks."""
        return getattr(self._vllm_config.parallel_config, "rank", 0)

    def _wait_at_start(self) -> None:
        """Nothing runs yet: the first request should find the cache."""
        try:
            self._client.wait_connected(_START_WAIT_S)
        except TerraceError as error:
            logger.warning("terrace: %s; vLLM serves without the cache until it is there", error)

    def get_handshake_metadata(self) -> Optional[TerraceHandshake]:
        """None beside other connectors: MultiConnector gives what one of them says to all of them,
        and some die of it. Reports go to each its own."""
        if _has_siblings(self):
            return None
        self._has_told_layout = True
        return TerraceHandshake(self._own_layout)

    @property
    def _own_layout(self) -> StageLayout:
        """Of a worker."""
        return self._stage_layout or StageLayout([], self.refusal or "no KV cache was registered")

    def _group(self, self_mask: int, timeout_s: float) -> Optional[Group]:
        """None if the daemon is not there, or does not answer; then not tried again for a while."""
        now = time.monotonic()
        if not self._client.is_connected or now < self._next_open:
            return None
        members = self._spaces()
        name = SpaceGroup("x", members).check()  # one name a group: nobody else can be in the way
        try:
            return self._client.open(SpaceGroup(f"vllm-{name[:16]}", members), self_mask, timeout_s)
        except Unavailable:
            self._next_open = now + _OPEN_PAUSE_S
            return None

    _next_open = 0.0

    def _worker(self, timeout_s: Optional[float] = None) -> Optional[WorkerHalf]:
        """Made when the daemon is there and the layout of all stages is known."""
        if self.worker is None and self._layout is not None:
            stage, tp_rank = self._place
            members = self._layout.members_of(stage, tp_rank)
            group = self._group(sum(1 << member for member in members if member is not None),
                                timeout_s or self._timeout_s)
            if group is None:
                return None
            writes = [each is not None and tp_rank < each.rank_count
                      for each in self._layout.stages[stage].groups]
            flags = ACQUIRE_DEVICE if self._reads_hbm and self._device is not None else 0
            self.worker = WorkerHalf(group, self._copies, members=members, writes=writes,
                                     read_flags=flags,
                                     timeout_s=self._timeout_s,
                                     load_timeout_s=self._load_timeout_s)
        return self.worker

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """The first thing of a step in vLLM's model runner v1: nothing has been overwritten yet. In
        v2 it comes right before the forward pass: see SchedulerHalf._take_lost."""
        if isinstance(kv_connector_metadata, TerraceMetadata):
            self._run_stores(kv_connector_metadata.step)

    def _run_stores(self, step: Step) -> None:
        self._learn(step)
        sure = [store for store in step.stores
                if store.adapter is None or store.adapter.is_unchanged]
        self._not_stored.update({store.number for store in step.stores}
                                .difference(store.number for store in sure))
        step = dataclasses.replace(step, stores=sure)
        # A worker reports them when their copies have ended.
        (self._storing if self._store_guarded(step) else self._not_stored).update(
            store.number for store in sure)

    @_never_raises(otherwise=False)
    def _store_guarded(self, step: Step) -> bool:
        worker = self._worker() if step.stores else self.worker
        if worker is not None:
            worker.store(step)
        return worker is not None

    def _learn(self, step: Step) -> None:
        """A stage of several learns of the others."""
        self._layout = self._layout or step.layout

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        loads = self._connector_metadata.step.loads if self._connector_metadata else []
        if not loads:
            return
        self._learn(self._connector_metadata.step)
        if not self._load_guarded(loads):
            self._lost_loads += loads

    @_never_raises(otherwise=False)
    def _load_guarded(self, loads: List[Any]) -> bool:
        worker = self._worker()
        if worker is None:
            return False
        worker.load(loads)
        return True

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_finished(self, finished_req_ids: Set[str]) -> Tuple[Optional[Set[str]],
                                                                Optional[Set[str]]]:
        loaded, self._failed = set(), set()
        self._poll_guarded()
        if self.worker is not None:
            loaded, self._failed = self.worker.take_loaded()
            self._bad_blocks = self.worker.take_bad_blocks()
        for load in self._lost_loads:
            loaded.add(load.request_id)
            self._failed.add(load.request_id)
            self._bad_blocks.update(blocks_of(load))
        self._lost_loads = []
        if self._has_several_groups:
            self._bad_blocks = set()  # vLLM takes no block ids then
        return None, loaded or None

    @_never_raises()
    def _poll_guarded(self) -> None:
        if self.worker is not None:
            self.worker.poll_stores()

    _bad_blocks: Set[int] = set()
    _failed: Set[str] = set()

    @property
    def _has_several_groups(self) -> bool:
        return self._kv_cache_config is not None and len(self._kv_cache_config.kv_cache_groups) > 1

    def get_transfer_results(self, finished_req_ids: Set[str]) -> Any:
        """Of several groups a request that lost anything is computed from its start."""
        results = super().get_transfer_results(finished_req_ids)
        if self._has_several_groups:
            results.failed_recving = set(self._failed)
        return results

    def get_block_ids_with_load_errors(self) -> Set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def build_connector_worker_meta(self) -> Optional[TerraceReports]:
        done, self._not_stored = self._not_stored, set()
        if self.refusal is not None:  # nothing more comes of them, and the scheduler may let go
            done |= self._storing
        elif self.worker is not None:
            done |= self.worker.take_reports() & self._storing
        self._storing -= done
        layouts = {} if self._has_told_layout else {self._place: self._own_layout}
        self._has_told_layout = True
        if not done and self.refusal is None and not layouts:
            return None
        return TerraceReports({number: 1 for number in done}, self.refusal, layouts)

    # ---- either half ----

    def get_kv_connector_stats(self) -> Optional[Any]:
        """Counters since the last call; None where this vLLM takes none, or there is nothing."""
        half = self.worker if self.scheduler is None else self.scheduler
        if half is None or vllm_stats.KVConnectorStats is None:
            return None
        added = self._since.take(half.counters)
        return vllm_stats.TerraceStats(data=added) if added else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Any:
        return vllm_stats.TerraceStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any, **named: Any) -> Any:
        return vllm_stats.TerraceMetrics(*arguments, **named)

    # ---- scheduler ----

    def set_xfer_handshake_metadata(self, metadata: Dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware(
            {(0, tp_rank): each for tp_rank, each in metadata.items()})

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Dict[Tuple[int, int], Any]) -> None:
        """By (pipeline stage, tensor parallel rank). Beside other connectors it may be theirs."""
        self._learn_layouts({ranks: each.layout for ranks, each in metadata.items()
                             if isinstance(each, TerraceHandshake)})
        if self._layout is not None and self.refusal is None:
            self._wait_at_start()
            self._scheduler_at_start()

    def _learn_layouts(self, told: Dict[Tuple[int, int], StageLayout]) -> None:
        """What the workers have."""
        if self.refusal is None and told:
            layouts = {ranks: told[ranks] for ranks in sorted(told)}
            refusals = [each.refusal for each in layouts.values() if each.refusal is not None]
            stages = {stage: layout for (stage, _), layout in reversed(layouts.items())}
            self._layout = Layout([stages[stage] for stage in sorted(stages)])
            other = next((ranks for ranks in layouts if layouts[ranks] != stages[ranks[0]]), None)
            if refusals:
                self.refuse(refusals[0])
            elif other is not None:
                self.refuse(f"rank {other[1]} of pipeline stage {other[0]} lays its cache out "
                            "otherwise than rank 0: use machines of one kind")
            elif sorted(stages) != list(range(self._stage_count)):
                self.refuse(f"vLLM told of the pipeline stages {sorted(stages)}, and there are "
                            f"{self._stage_count}")
            elif not vllm_model.has_shared_seed(self._vllm_config):
                self.refuse("vLLM's block hashes are seeded at random in this process, so nobody "
                            "shares them: set PYTHONHASHSEED to the same number everywhere")

    def _take_layouts(self, told: Dict[Tuple[int, int], StageLayout]) -> None:
        """Workers say it in their first reports where there was no handshake of ours."""
        if self._layout is not None or not told:
            return
        self._told_layouts.update(told)
        ranks = self._vllm_config.parallel_config.tensor_parallel_size * self._stage_count
        if len(self._told_layouts) == ranks:
            self._learn_layouts(self._told_layouts)

    @property
    def _awaits_layout(self) -> bool:
        """The workers have yet to say what they have: their first reports come with a step. For so
        long requests may wait for them, no longer."""
        if self._layout is not None:
            return False
        now = time.monotonic()
        if self._layout_awaited_until == 0.0:
            self._layout_awaited_until = now + _LAYOUT_WAIT_S
        return now < self._layout_awaited_until

    @_never_raises()
    def _scheduler_at_start(self) -> None:
        self._scheduler(_START_WAIT_S)

    def _scheduler(self, timeout_s: Optional[float] = None) -> Optional[SchedulerHalf]:
        """Made when the workers have said what they have and the daemon is there."""
        if self.scheduler is None and self._layout is not None:
            group = self._group(0, timeout_s or self._timeout_s)
            if group is None:
                return None
            block_tokens = self._layout.block_tokens
            fine = getattr(self._kv_cache_config, "hash_block_size", None) or block_tokens
            self.scheduler = SchedulerHalf(
                group, block_tokens=block_tokens, hashes_per_block=block_tokens // fine,
                adapters=self._adapters, weights=self._weights, windows=self._layout.windows,
                state_groups=self._layout.state_groups,
                worker_count=(self._vllm_config.parallel_config.tensor_parallel_size
                              * self._stage_count),
                timeout_s=self._timeout_s, load_timeout_s=self._load_timeout_s,
                lookup_wait_s=self._lookup_wait_s,
                # Versions before the second runner have no such property.
                hooks_come_first=not getattr(self._vllm_config, "use_v2_model_runner", False))
        self._follow_weights()
        return self.scheduler

    def _follow_weights(self) -> None:
        """Whoever exchanges weights says so in a file, too, before the next step."""
        if self._weights.look() and self.scheduler is not None:
            self.scheduler.forget()

    @_never_raises()
    def on_new_request(self, request: Any) -> None:
        self._adapters.note(request)
        scheduler = self._scheduler()
        if scheduler is not None:
            scheduler.begin(request)

    @_never_raises(otherwise=(0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int
                                   ) -> Tuple[Optional[int], bool]:
        self._adapters.note(request)  # older versions do not tell of new requests
        scheduler = self._scheduler()
        if scheduler is None:
            return (None if self._awaits_layout else 0), False
        tokens = scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._allocate_guarded(request, blocks, num_external_tokens) or not num_external_tokens:
            return
        # It was promised and waits. A load of nobody's lease fails, and it is computed.
        self._orphans.append(Load(request.request_id, (0, 0),
                                  [list(block_ids) for block_ids in blocks.get_block_ids()]))

    @_never_raises(otherwise=False)
    def _allocate_guarded(self, request: Any, blocks: Any, num_external_tokens: int) -> bool:
        if self.scheduler is not None:
            self.scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)
        return True

    def build_connector_meta(self, scheduler_output: Any) -> TerraceMetadata:
        self._look_at_presence()
        step = self._step_guarded(scheduler_output)
        if self.refusal is not None and self.scheduler is not None:
            step.loads += self.scheduler.take_loads()  # their requests wait for them
        orphans, self._orphans = self._orphans, []
        step.loads += orphans
        if self._stage_count > 1 and (step.loads or step.stores):
            step.layout = self._layout
        return TerraceMetadata(step)

    @_never_raises()
    def _look_at_presence(self) -> None:
        if self._presence is not None and self._client is not None:
            self._presence.look(self._client)

    @_never_raises(makes=Step)
    def _step_guarded(self, scheduler_output: Any) -> Step:
        if self.scheduler is None:
            return Step()
        self._follow_weights()
        return self.scheduler.step(scheduler_output)

    @_never_raises()
    def update_connector_output(self, connector_output: Any) -> None:
        reports = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(reports, TerraceReports):
            self._take_layouts(reports.layouts)
        if self.scheduler is None:
            return
        if isinstance(reports, TerraceReports):
            self.scheduler.stores_done(reports.counts)
        finished = set(connector_output.finished_recving or ())
        self.scheduler.loads_failed(
            set(getattr(connector_output, "invalid_block_ids", None) or ()),
            set(getattr(connector_output, "failed_recving", None) or ()))
        self.scheduler.loads_done(finished)
        if isinstance(reports, TerraceReports) and reports.refusal is not None:
            self.refuse(f"a worker is: {reports.refusal}")  # its share of every hit would be lost

    def request_finished(self, request: Any, block_ids: List[int]
                         ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._finish_guarded(request, [block_ids])
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Tuple[List[int], ...]
                                    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._finish_guarded(request, block_ids)
        return False, None

    @_never_raises()
    def _finish_guarded(self, request: Any, table: Any) -> None:
        if self.scheduler is not None:
            self.scheduler.finished(request, table)

    def has_pending_push_work(self) -> bool:
        return self.refusal is None and self.scheduler is not None and self.scheduler.has_work

    def reset_cache(self) -> bool:
        """The weights may be others from here on, or have been: vLLM asks before a sleep, in a
        pause, and behind an update. Another epoch begins, from which nothing of before can be
        reached; no other instance notices."""
        self._reset_guarded()
        return True

    @_never_raises()
    def _reset_guarded(self) -> None:
        self._weights.reset()
        if self.scheduler is not None:
            self.scheduler.forget()

    def take_events(self) -> Iterable[Any]:
        return ()

    def shutdown(self) -> None:
        self._adapters.close()
        if self.worker is not None:
            self.worker.close()
        if self.scheduler is not None:
            self.scheduler.close()
        if self._client is not None:
            self._client.close()


def _register() -> None:
    """MultiConnector looks its children's statistics up by this name."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import (  # pylint: disable=C0415
            KVConnectorFactory)

        KVConnectorFactory.register_connector("TerraceConnector", __name__, "TerraceConnector")
    except (ImportError, ValueError):
        pass  # an old version has none; or it is registered


_register()
