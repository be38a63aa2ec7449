"""A worker's side of the vLLM connector: what vLLM's worker calls, once a step."""
import dataclasses
import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..client import Client
from ..errors import TerraceError, Unsupported
from ..group import ACQUIRE_DEVICE
from ..paged import Device, PagedCache
from ..pages import Pages
from . import coded, heads, kinds, model
from .copies import CudaEngine, HostEngine, InStep, Queued
from .kv_memory import KvMemory
from .messages import GroupLayout, Layout, Load, StageLayout, Step
from .metadata import Ranks, TerraceHandshake, TerraceReports
from .role import Role, never_raises
from .worker import WorkerHalf, blocks_of, describe

logger = logging.getLogger("vllm.terrace")


class WorkerRole(Role):
    """See the page. It tells the scheduler's side what this worker has, begins stores and loads,
    and reports what has become of them: of each exactly once, whatever happens."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any):
        super().__init__("worker", vllm_config, kv_cache_config)
        self.worker: Optional[WorkerHalf] = None
        self.has_told_layout = False
        self._stage_layout: Optional[StageLayout] = None
        self._pages: List[Pages] = []  # of each KV cache group its pieces, as its shares are
        self._coded: List[coded.CodedPages] = []  # in their place under a codec, or of units
        self._device: Optional[Device] = None  # None: the step copies
        self._engine: Any = HostEngine()
        self._lost_loads: List[Load] = []  # it was turned off: failed, and reported
        self._storing: Set[int] = set()  # numbers of stores that the half has
        self._not_stored: Set[int] = set()  # and of those that it never got
        self._bad_blocks: Set[int] = set()  # that loads did not fill
        self._failed: Set[str] = set()  # requests of the last get_finished that lost any
        self._kv_memory = KvMemory()
        self._told_sleep_count = 0
        self.connect()

    @property
    def half(self) -> Optional[WorkerHalf]:
        return self.worker

    def let_go(self) -> None:
        if self.worker is not None:
            self.worker.give_up_stores()  # nobody polls them any more

    # ---- at the start ----

    @never_raises()
    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        """kv_caches: of each layer its tensor, of any shape with a dimension of num_blocks."""
        groups = self._kv_cache_config.kv_cache_groups  # a stage may have no layer of one
        try:
            self._open_device({str(tensor.device): tensor.device for tensor in kv_caches.values()})
        except TerraceError as error:
            self.refuse(str(error))
            return
        if self._has_numbers:
            self._stage_layout = self._read_coded(groups, kv_caches)
        else:
            self._stage_layout = self._read_opaque(groups, kv_caches)
        if self.refusal is not None:
            return
        self.wait_at_start()
        if self.stage_count == 1:  # else what the other stages have comes with the first step
            self.layout = Layout([self._stage_layout])
            self._make_half(self.start_wait_s)

    def _read_opaque(self, groups: Sequence[Any], kv_caches: Dict[str, Any]) -> StageLayout:
        """Pages as they lie."""
        cut = self._cut(groups, kv_caches)
        self._pages = [piece.pages for pieces in cut for piece in pieces]
        if self._device is not None:
            for pages in self._pages:
                pages.check_uniform()
        return StageLayout([
            [self._layout_of(index, piece, kv_caches, piece.pages.part_bytes) for piece in pieces]
            for index, pieces in enumerate(cut)])

    def _cut(self, groups: Sequence[Any], kv_caches: Dict[str, Any]) -> List[List[model.Piece]]:
        """Of each group the layers whose pages are alike."""
        return [model.pieces_of(group, kv_caches, self._kv_cache_config.num_blocks)
                for group in groups]

    def _layout_of(self, index: int, piece: model.Piece, kv_caches: Dict[str, Any],
                   part_bytes: Tuple[int, ...]) -> GroupLayout:
        revision = model.weights_of(self._config, self.settings.revision)
        stage, _ = self._place
        return model.layout_of(self._config, piece, index, revision, (stage, self.stage_count),
                               kv_caches[piece.layer_names[0]], part_bytes,
                               self._kv_cache_config.num_blocks)

    @property
    def _has_numbers(self) -> bool:
        """Pages are read as numbers, not as they lie."""
        return self.settings.codec is not None or self.settings.head_units is not None

    def _read_coded(self, groups: Sequence[Any], kv_caches: Dict[str, Any]) -> StageLayout:
        """Pages as numbers, in units of heads where these are asked for. Refused by name where
        they cannot be read so."""
        codec, units = self.settings.codec, heads.units_of(self.settings.head_units, self._config)
        asked = (coded.Asked("codec", codec) if codec is not None
                 else heads.asked_by(self.settings.head_units))
        layouts: List[List[GroupLayout]] = [[] for _ in groups]
        for index, piece in [(index, piece) for index, pieces
                             in enumerate(self._cut(groups, kv_caches)) for piece in pieces]:
            layout = self._layout_of(index, piece, kv_caches, ())
            tensors = [kv_caches[name] for name in piece.layer_names]
            kernels = model.kernels_of(self._config, piece.layer_names[0])
            pages, why = coded.pages_of(asked, piece.spec, tensors, kernels,
                                        self._kv_cache_config.num_blocks)
            if pages is not None:
                if units is not None:
                    units.cut(layout, kernels, model.packing_of(tensors[0]))
                layout.fields, layout.part_bytes, refusal = coded.fields_of(
                    codec, layout.fields, len(pages.layers), describe(tensors[0].dtype))
                why = refusal or ""
            if why:
                self.refuse(why)
                return StageLayout([], why)
            assert pages is not None
            self._coded += ([pages] if units is None
                            else units.parts(layout, pages, self._place[1]))
            layouts[index].append(layout)
        return StageLayout(layouts)

    def _open_device(self, places: Dict[str, Any]) -> None:
        """What copies the KV cache; Unsupported where nothing does."""
        if len(places) > 1:
            raise Unsupported(f"the KV cache lies on {sorted(places)}: one place is served")
        place = next(iter(places.values()), None)  # a stage may have no layer at all
        if place is None:
            return
        if place.type == "cuda":
            self._device = Device("cuda", plugin_path=self.settings.plugin_path,
                                  index=place.index or 0)
            self._engine = CudaEngine(place)
        elif place.type != "cpu":
            raise Unsupported(f"the KV cache lies on {place}: NVIDIA GPUs and host memory are "
                              "served yet")
        elif self.settings.copy_threads > 0 or self._has_numbers:
            self._device = Device("host", workers=max(1, self.settings.copy_threads))
        if self.settings.reads_hbm and self._device is not None:
            # Which device it is shows only here: another connection, that maps its memory.
            assert self.client is not None
            self.client.close()
            self.client = Client(str(self.settings.socket), device=self._device,
                                 **self._client_options)

    @property
    def _place(self) -> Ranks:
        rank = getattr(self._config.parallel_config, "rank", 0)  # stages, and in each its tp ranks
        stage, tp_rank = divmod(rank, self._config.parallel_config.tensor_parallel_size)
        return stage, tp_rank

    def handshake(self) -> TerraceHandshake:
        """What this worker has, where vLLM carries it to the scheduler."""
        self.has_told_layout = True
        return TerraceHandshake(self._own_layout)

    @property
    def _own_layout(self) -> StageLayout:
        return self._stage_layout or StageLayout([], self.refusal or "no KV cache was registered")

    def _make_half(self, timeout_s: Optional[float] = None) -> Optional[WorkerHalf]:
        """Made when the daemon is there and the layout of all stages is known."""
        if self.worker is None and self.layout is not None:
            stage, tp_rank = self._place
            shares = self.layout.shares_of(stage, tp_rank)
            marker = self.layout.marker_member(stage, tp_rank)
            mask = sum(1 << share.member for share in shares)
            group = self.open_group(mask | (0 if marker is None else 1 << marker),
                                    timeout_s or self.settings.timeout_s)
            if group is None:
                return None
            in_device = self.settings.reads_hbm and self._device is not None
            self.worker = WorkerHalf(group, self._make_copies, shares=shares, marker=marker,
                                     read_flags=ACQUIRE_DEVICE if in_device else 0,
                                     kv_memory=self._kv_memory,
                                     timeout_s=self.settings.timeout_s,
                                     load_timeout_s=self.settings.load_timeout_s)
        return self.worker

    def _make_copies(self) -> Any:
        """Made at the first copy."""
        assert self.client is not None and self.worker is not None
        members = [share.member for share in self.worker.shares]
        if self._device is None:
            return InStep(dict(zip(members, self._pages)))
        spaces, device = self.spaces(), self._device
        make: Dict[int, Callable[[], PagedCache]] = {}
        if self._has_numbers:
            for member, coded_pages in zip(members, self._coded):
                make[member] = functools.partial(coded_pages.cache, device, spaces[member])
        else:
            for member, pages in zip(members, self._pages):
                make[member] = functools.partial(PagedCache.opaque, device, spaces[member], pages)
        return Queued(self.client, device, self._engine, make)

    # ---- sleep ----

    def take_memory_away(self) -> None:
        """The KV cache's memory goes: comes back when nothing of ours touches it any more, be this
        side off or not."""
        if not self._kv_memory.take_away() or self.worker is None:
            return
        try:
            self.worker.end_copies()
        except Exception as error:  # pylint: disable=broad-except
            self.refuse(f"end_copies: {type(error).__name__}: {error}")

    def give_memory_back(self) -> None:
        """It is there again, and holds nothing."""
        self._kv_memory.give_back()

    # ---- in a step ----

    def run_stores(self, step: Step) -> None:
        """Begins the step's stores, before anything overwrites their blocks."""
        self._learn(step)
        sure = step.stores
        if step.sleep_count != self._kv_memory.sleep_count or not self._kv_memory.is_there:
            sure = []  # their bytes went with the KV cache's memory
        self._not_stored.update({store.number for store in step.stores}
                                .difference(store.number for store in sure))
        step = dataclasses.replace(step, stores=sure)
        # The half reports them when their copies have ended.
        (self._storing if self._store_guarded(step) else self._not_stored).update(
            store.number for store in sure)

    @never_raises(otherwise=False)
    def _store_guarded(self, step: Step) -> bool:
        worker = self._make_half() if step.stores else self.worker
        if worker is not None:
            worker.store(step)
        return worker is not None

    def _learn(self, step: Step) -> None:
        """A stage of several learns of the others."""
        self.layout = self.layout or step.layout

    def run_loads(self, step: Step) -> None:
        """Begins the step's loads, in the background."""
        if not step.loads:
            return
        self._learn(step)
        if not self._load_guarded(step.loads):
            self._lost_loads += step.loads

    @never_raises(otherwise=False)
    def _load_guarded(self, loads: Sequence[Load]) -> bool:
        worker = self._make_half()
        if worker is None:
            return False
        worker.load(loads)
        return True

    # ---- reports ----

    def take_finished(self, is_idle: bool = False) -> Set[str]:
        """Requests whose load has ended since the last call. A step that is_idle waits a moment for
        one: with engine and caller in one process vLLM's steps follow each other without a pause,
        and the threads that load get the interpreter from them now and then only."""
        loaded: Set[str] = set()
        self._failed = set()
        self._poll_guarded()
        if self.worker is not None:
            if is_idle and not self._lost_loads:
                self.worker.wait_loaded()
            loaded, self._failed = self.worker.take_loaded()
            self._bad_blocks = self.worker.take_bad_blocks()
        for load in self._lost_loads:
            loaded.add(load.request_id)
            self._failed.add(load.request_id)
            self._bad_blocks.update(blocks_of(load))
        self._lost_loads = []
        if self.loses_whole:
            self._bad_blocks = set()  # vLLM takes no block ids then
        return loaded

    @never_raises()
    def _poll_guarded(self) -> None:
        if self.worker is not None:
            self.worker.poll_stores()

    @property
    def loses_whole(self) -> bool:
        """A request that lost a block is computed from its start: of several KV cache groups vLLM
        takes no block ids, and what is behind a window was not loaded."""
        groups = getattr(self._kv_cache_config, "kv_cache_groups", ())
        return len(groups) > 1 or any(kinds.has_window(group) for group in groups)

    @property
    def failed(self) -> Set[str]:
        """Of the requests that take_finished told of last, those that lost blocks."""
        return set(self._failed)

    def take_bad_blocks(self) -> Set[int]:
        """Blocks that loads did not fill, since the last call."""
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_reports(self) -> Optional[TerraceReports]:
        """Stores that have ended since the last call, and what else the scheduler does not know."""
        done, self._not_stored = self._not_stored, set()
        if self.refusal is not None:  # nothing more comes of them, and the scheduler may let go
            done |= self._storing
        elif self.worker is not None:
            done |= self.worker.take_reports() & self._storing
        self._storing -= done
        layouts = {} if self.has_told_layout else {self._place: self._own_layout}
        self.has_told_layout = True
        sleep_count, told = self._kv_memory.sleep_count, self._told_sleep_count
        self._told_sleep_count = sleep_count
        if not done and self.refusal is None and not layouts and sleep_count == told:
            return None
        return TerraceReports({number: 1 for number in done}, self.refusal, layouts, sleep_count)
