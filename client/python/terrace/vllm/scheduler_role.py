"""The scheduler's side of the vLLM connector: what vLLM's scheduler calls, in the order of a step.
"""
import logging
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ..epochs import Weights
from ..group import Group
from ..presence import Presence
from . import model
from .adapters import Adapters
from .doubts import Steps
from .drafts import drafting_of
from .hints import EngineHints
from .messages import Layout, Load, StageLayout, Step
from .metadata import Ranks, TerraceReports
from .role import Role, never_raises
from .scheduler import SchedulerHalf

if TYPE_CHECKING:
    from .events import KvEvents

logger = logging.getLogger("vllm.terrace")
_LAYOUT_WAIT_S = 1.0
# A lookup a request, and stores beside them: as many as a daemon lets a session have on their way.
_PENDING_REQUESTS_MAX = 1024


class SchedulerRole(Role):
    """See the page. It learns from the workers what there is, and then has the SchedulerHalf decide
    what is loaded and stored; of what was promised every load reaches a worker, even if this side
    has been turned off since."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any):
        super().__init__("scheduler", vllm_config, kv_cache_config)
        self.scheduler: Optional[SchedulerHalf] = None
        self.adapters = Adapters(vllm_config)
        self.hints = EngineHints.of_config(vllm_config, self.settings.tool_call_tokens)
        self._weights = Weights(self.settings.weights_version_file, logger)  # workers get leases
        self._presence: Optional[Presence] = None
        self._told_layouts: Dict[Ranks, StageLayout] = {}  # by reports, so far
        self._layout_awaited_until = 0.0
        self._sleep_count = 0  # of the workers' KV caches, as far as they have said
        self._steps = Steps()
        self._orphans: List[Load] = []  # promised, and turned off since
        self.events: Optional["KvEvents"] = None
        self._client_options["pending_requests_max"] = _PENDING_REQUESTS_MAX
        if self.settings.socket is not None:
            self._presence = Presence(logger, self.settings.socket)
        self.connect()

    @property
    def half(self) -> Optional[SchedulerHalf]:
        return self.scheduler

    def let_go(self) -> None:
        if self.scheduler is None or self.client is None:
            return
        try:
            self.scheduler.close()  # nobody would give back what it holds
            self.client.close()  # nor take what is still being answered
        except Exception as error:  # pylint: disable=broad-except
            logger.warning("terrace: what it held ends with its leases: %s", error)

    # ---- what the workers have ----

    def learn_at_start(self, told: Dict[Ranks, StageLayout]) -> None:
        """Their handshakes; none where MultiConnector keeps them."""
        self._learn_layouts(told)
        if self.layout is not None and self.refusal is None:
            self.wait_at_start()
            self._make_half_at_start()

    def _learn_layouts(self, told: Dict[Ranks, StageLayout]) -> None:
        if self.refusal is not None or not told:
            return
        layouts = {ranks: told[ranks] for ranks in sorted(told)}
        refusals = [each.refusal for each in layouts.values() if each.refusal is not None]
        stages = {stage: layout for (stage, _), layout in reversed(layouts.items())}
        self.layout = Layout([stages[stage] for stage in sorted(stages)])
        other = next((ranks for ranks in layouts if layouts[ranks] != stages[ranks[0]]), None)
        if refusals:
            self.refuse(refusals[0])
        elif other is not None:
            self.refuse(f"rank {other[1]} of pipeline stage {other[0]} lays its cache out "
                        "otherwise than rank 0: use machines of one kind")
        elif sorted(stages) != list(range(self.stage_count)):
            self.refuse(f"vLLM told of the pipeline stages {sorted(stages)}, and there are "
                        f"{self.stage_count}")
        elif not model.has_shared_seed(self._config):
            self.refuse("vLLM's block hashes are seeded at random in this process, so nobody "
                        "shares them: set PYTHONHASHSEED to the same number everywhere")

    def _take_layouts(self, told: Dict[Ranks, StageLayout]) -> None:
        """Workers say it in their first reports where there was no handshake of ours."""
        if self.layout is not None or not told:
            return
        self._told_layouts.update(told)
        if len(self._told_layouts) == self._worker_count:
            self._learn_layouts(self._told_layouts)

    @property
    def _worker_count(self) -> int:
        tp_size: int = self._config.parallel_config.tensor_parallel_size
        return tp_size * self.stage_count

    @property
    def _awaits_layout(self) -> bool:
        """The workers have yet to say what they have: their first reports come with a step. For so
        long requests may wait for them, no longer."""
        if self.layout is not None:
            return False
        now = time.monotonic()
        if self._layout_awaited_until == 0.0:
            self._layout_awaited_until = now + _LAYOUT_WAIT_S
        return now < self._layout_awaited_until

    @never_raises()
    def _make_half_at_start(self) -> None:
        self._make_half(self.start_wait_s)

    def _make_half(self, timeout_s: Optional[float] = None) -> Optional[SchedulerHalf]:
        """Made when the workers have said what they have and the daemon is there."""
        if self.scheduler is None and self.layout is not None:
            group = self.open_group(0, timeout_s or self.settings.timeout_s)
            if group is None:
                return None
            block_tokens = self.layout.block_tokens
            fine = getattr(self._kv_cache_config, "hash_block_size", None) or block_tokens
            self._make_events(group, block_tokens)
            self.scheduler = SchedulerHalf(
                group, block_tokens=block_tokens, hashes_per_block=block_tokens // fine,
                drafting=drafting_of(self._config, self._kv_cache_config.kv_cache_groups),
                adapters=self.adapters, weights=self._weights, hints=self.hints,
                windows=self.layout.windows, chunked_groups=self.layout.chunked_groups,
                state_groups=self.layout.state_groups,
                worker_count=self._worker_count, timeout_s=self.settings.timeout_s,
                load_timeout_s=self.settings.load_timeout_s,
                lookup_wait_s=self.settings.lookup_wait_s, events=self.events,
                steps=self._steps,
                may_give_up=getattr(self._config.kv_transfer_config, "kv_load_failure_policy", ""
                                    ) == "recompute",
                # Versions before the second runner have no such property.
                hooks_come_first=not getattr(self._config, "use_v2_model_runner", False))
        self._follow_weights()
        return self.scheduler

    def _make_events(self, group: Group, block_tokens: int) -> None:
        """What is wrong with their configuration is said, and blocks are served without them."""
        if self.settings.kv_events is None:
            return
        try:
            from .events import events_of  # pylint: disable=import-outside-toplevel

            self.events = events_of(self.settings.kv_events, self._config, group, block_tokens,
                                    self._kv_cache_config.kv_cache_groups)
        except (ImportError, ValueError, TypeError) as error:
            logger.warning("terrace: no KV events are published: %s", error)

    def take_events(self) -> Iterable[Any]:
        """For vLLM's own stream of them."""
        return () if self.events is None else self._take_events_guarded()

    @never_raises(otherwise=())
    def _take_events_guarded(self) -> Iterable[Any]:
        return self.events.take() if self.events is not None else ()

    def _follow_weights(self) -> None:
        """Whoever exchanges weights says so in a file, too, before the next step."""
        if self._weights.look() and self.scheduler is not None:
            self.scheduler.forget()
        if self.events is not None:
            self.events.begin_epoch(self._weights.mask)

    # ---- requests ----

    @never_raises()
    def begin(self, request: Any) -> None:
        """vLLM has been given a request."""
        self.adapters.note(request)
        scheduler = self._make_half()
        if scheduler is not None:
            scheduler.begin(request)

    @never_raises(otherwise=(0, False))
    def matched_tokens(self, request: Any, computed_tokens: int) -> Tuple[Optional[int], bool]:
        """(tokens beyond the computed ones that a load would bring, whether it is asynchronous);
        None: ask again next step."""
        self.adapters.note(request)  # older versions do not tell of new requests
        scheduler = self._make_half()
        if scheduler is None:
            return (None if self._awaits_layout else 0), False
        tokens = scheduler.matched_tokens(request, computed_tokens)
        return tokens, bool(tokens)

    def allocated(self, request: Any, table: Sequence[Sequence[int]], external_tokens: int) -> None:
        """table: of each KV cache group the block ids. external_tokens of them are ours to load."""
        if self._allocate_guarded(request, table, external_tokens) or not external_tokens:
            return
        # It was promised and waits. A load of nobody's lease fails, and it is computed.
        self._orphans.append(Load(request.request_id, (0, 0),
                                  [list(block_ids) for block_ids in table]))

    @never_raises(otherwise=False)
    def _allocate_guarded(self, request: Any, table: Any, external_tokens: int) -> bool:
        if self.scheduler is not None:
            self.scheduler.allocated(request, table, external_tokens)
        return True

    @never_raises(makes=dict)
    def tokens_by_tier(self, request: Any) -> Dict[str, int]:
        """Of what allocated was told of last: which of the daemon's tiers had it."""
        return {} if self.scheduler is None else self.scheduler.tokens_by_tier(request.request_id)

    @never_raises()
    def finished(self, request: Any, table: Sequence[Sequence[int]]) -> None:
        """The request ends; its blocks are freed after this step."""
        if self.scheduler is not None:
            self.scheduler.finished(request, table)

    # ---- steps ----

    def step(self, scheduler_output: Any) -> Step:
        """What the workers do this step."""
        self._steps.begin()
        self.adapters.turn_ended()
        self._look_at_presence()
        step: Step = self._step_guarded(scheduler_output)
        step.sleep_count = self._sleep_count
        if self.refusal is not None and self.scheduler is not None:
            step.loads += self.scheduler.take_loads()  # their requests wait for them
        orphans, self._orphans = self._orphans, []
        step.loads += orphans
        if self.stage_count > 1 and (step.loads or step.stores):
            step.layout = self.layout
        step.is_idle = self.stage_count == 1 and not scheduler_output.num_scheduled_tokens
        return step

    @never_raises()
    def _look_at_presence(self) -> None:
        if self._presence is not None and self.client is not None:
            self._presence.look(self.client)

    @never_raises(makes=Step)
    def _step_guarded(self, scheduler_output: Any) -> Step:
        if self.scheduler is None:
            return Step()
        self._follow_weights()
        return self.scheduler.step(scheduler_output)

    @never_raises()
    def step_ended(self) -> None:
        """The results of the oldest step under way have been seen."""
        self._steps.end()
        self.hints.clock.end()

    @never_raises()
    def take_output(self, output: Any) -> None:
        """What the workers reported of a step."""
        reports = getattr(output, "kv_connector_worker_meta", None)
        if isinstance(reports, TerraceReports):
            self._take_layouts(reports.layouts)
            self._take_sleeps(reports.sleep_count)
        if self.scheduler is None:
            return
        if isinstance(reports, TerraceReports):
            self.scheduler.stores_done(reports.counts)
        finished = set(output.finished_recving or ())
        self.scheduler.loads_failed(
            set(getattr(output, "invalid_block_ids", None) or ()) - {0},  # 0: vLLM's null block
            set(getattr(output, "failed_recving", None) or ()))
        self.scheduler.loads_done(finished)
        if isinstance(reports, TerraceReports) and reports.refusal is not None:
            self.refuse(f"a worker is: {reports.refusal}")  # its share of every hit would be lost

    def _take_sleeps(self, sleep_count: int) -> None:
        """The workers' KV caches were taken away: what is still to be stored went with them."""
        if sleep_count > self._sleep_count:
            self._sleep_count = sleep_count
            if self.scheduler is not None:
                self.scheduler.forget()

    @property
    def has_work(self) -> bool:
        """Something waits for the next step, even if nothing else does."""
        return self.refusal is None and self.scheduler is not None and self.scheduler.has_work

    @never_raises()
    def reset(self) -> None:
        """Another epoch begins: the weights may be others from here on, or have been."""
        self._weights.reset()
        if self.events is not None:
            self.events.begin_epoch(self._weights.mask)
            self.events.relay.tell_again()  # vLLM's AllBlocksCleared takes ours back, too
        if self.scheduler is not None:
            self.scheduler.forget()

    def shutdown(self) -> None:
        if self.events is not None:
            self.events.close()
        self.adapters.close()
        super().shutdown()
