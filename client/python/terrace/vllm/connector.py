"""What vLLM calls: the connector of its stable kind. Each hook is its role's; see the package."""
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1 import base as _base
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from . import stats
from .metadata import TerraceHandshake, TerraceMetadata, TerraceReports
from .scheduler_role import SchedulerRole
from .worker_role import WorkerRole

# Older versions turn their hybrid memory off for a connector without it, and have one group.
_SupportsHMA = getattr(_base, "SupportsHMA", object)


def _has_siblings(connector: Any) -> bool:
    """Whether this worker's connector is one of several in a MultiConnector."""
    try:
        from vllm.distributed.kv_transfer import (  # pylint: disable=import-outside-toplevel
            get_kv_transfer_group, has_kv_transfer_group)
    except ImportError:
        return False
    return has_kv_transfer_group() and get_kv_transfer_group() is not connector


class TerraceConnector(KVConnectorBase_V1, _SupportsHMA):  # type: ignore[misc, valid-type]
    """One instance in the scheduler, one in every worker. MultiConnector and vLLM's statistics find
    it by this name."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._since = stats.Since()
        self._in_scheduler: Optional[SchedulerRole] = None
        self._in_worker: Optional[WorkerRole] = None
        if role == KVConnectorRole.SCHEDULER:
            self._in_scheduler = SchedulerRole(vllm_config, kv_cache_config)
        else:
            self._in_worker = WorkerRole(vllm_config, kv_cache_config)

    @property
    def side(self) -> Any:
        """Of this process: a SchedulerRole or a WorkerRole."""
        return self._in_scheduler or self._in_worker

    @property
    def _scheduler(self) -> SchedulerRole:
        assert self._in_scheduler is not None, "a hook of the scheduler's, in a worker"
        return self._in_scheduler

    @property
    def _worker(self) -> WorkerRole:
        assert self._in_worker is not None, "a hook of a worker's, in the scheduler"
        return self._in_worker

    # ---- what a best-effort cache answers ----

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    # ---- worker ----

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        self._worker.register_kv_caches(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Before a sleep: vLLM takes the memory of its KV caches away."""
        self._worker.take_memory_away()

    def restore_kv_caches(self) -> None:
        self._worker.give_memory_back()

    def get_handshake_metadata(self) -> Optional[TerraceHandshake]:
        """None beside other connectors: MultiConnector gives what one of them says to all of them,
        and some die of it. Reports go to each its own."""
        return None if _has_siblings(self) else self._worker.handshake()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """The first thing of a step in vLLM's model runner v1: nothing has been overwritten yet. In
        v2 it comes right before the forward pass: see Fences.take_lost."""
        if isinstance(kv_connector_metadata, TerraceMetadata):
            self._worker.run_stores(kv_connector_metadata.step)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._connector_metadata:
            self._worker.run_loads(self._connector_metadata.step)

    def get_finished(self, finished_req_ids: Set[str]) -> Tuple[Optional[Set[str]],
                                                                Optional[Set[str]]]:
        is_idle = bool(self._connector_metadata) and self._connector_metadata.step.is_idle
        return None, self._worker.take_finished(is_idle) or None

    def get_transfer_results(self, finished_req_ids: Set[str]) -> Any:
        """Of several groups, or windows, a request that lost anything is computed from its start.
        """
        results = super().get_transfer_results(finished_req_ids)
        if self._worker.loses_whole:
            results.failed_recving = self._worker.failed
        return results

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> Optional[TerraceReports]:
        return self._worker.take_reports()

    # ---- scheduler ----

    def set_xfer_handshake_metadata(self, metadata: Dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware(
            {(0, tp_rank): each for tp_rank, each in metadata.items()})

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Dict[Tuple[int, int], Any]) -> None:
        """By (pipeline stage, tensor parallel rank). Beside other connectors it may be theirs."""
        self._scheduler.learn_at_start({ranks: each.layout for ranks, each in metadata.items()
                                        if isinstance(each, TerraceHandshake)})

    def on_new_request(self, request: Any) -> None:
        self._scheduler.begin(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int
                                   ) -> Tuple[Optional[int], bool]:
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int
                                       ) -> Dict[Any, int]:
        return stats.hit_sources(self._scheduler.tokens_by_tier(request), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> TerraceMetadata:
        return TerraceMetadata(self._scheduler.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.take_output(connector_output)

    def take_events(self) -> Iterable[Any]:
        """The last thing of a step's results. Events, where vLLM publishes them for us."""
        self._scheduler.step_ended()
        return self._scheduler.take_events()

    def request_finished(self, request: Any, block_ids: List[int]
                         ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._scheduler.finished(request, [block_ids])
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Tuple[List[int], ...]
                                    ) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._scheduler.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_work

    def reset_cache(self) -> bool:
        """The weights may be others from here on, or have been: vLLM asks before a sleep, in a
        pause, and behind an update. Another epoch begins, from which nothing of before can be
        reached; no other instance notices."""
        self._scheduler.reset()
        return True

    # ---- either ----

    def get_kv_connector_stats(self) -> Optional[Any]:
        """Counters since the last call; None where this vLLM takes none, or there is nothing."""
        half = self.side.half
        if half is None or not stats.IS_TAKEN:
            return None
        added = self._since.take({**half.counters, **self.side.client_counters})
        return stats.TerraceStats(data=added) if added else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Any:
        return stats.TerraceStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any, **named: Any) -> Any:
        return stats.TerraceMetrics(*arguments, **named)

    def shutdown(self) -> None:
        self.side.shutdown()
