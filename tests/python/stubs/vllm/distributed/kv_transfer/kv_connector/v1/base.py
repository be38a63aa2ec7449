"""The classes a connector derives from, without behaviour."""
import dataclasses
import enum
from typing import Set


class KVConnectorRole(enum.Enum):
    """Which half."""
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    """Scheduler to workers."""


class KVConnectorHandshakeMetadata:
    """Worker to scheduler, once."""


class KVConnectorWorkerMetadata:
    """Workers to scheduler, every step."""


@dataclasses.dataclass
class KVConnectorTransferResults:
    """What has ended on a worker."""
    finished_sending: Set[str]
    finished_recving: Set[str]
    failed_recving: Set[str] = dataclasses.field(default_factory=set)


class SupportsHMA:
    """Says that a connector knows of several KV cache groups."""

    def request_finished_all_groups(self, request, block_ids):
        raise NotImplementedError


class KVConnectorBase_V1:
    """Keeps what the real one keeps."""

    def __init__(self, vllm_config, role, kv_cache_config):
        self._connector_metadata = None
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    def bind_connector_metadata(self, metadata):
        self._connector_metadata = metadata

    def clear_connector_metadata(self):
        self._connector_metadata = None

    def get_transfer_results(self, finished_req_ids):
        sent, received = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(set(sent or ()), set(received or ()))

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        if any(stage != 0 for stage, _ in metadata):
            raise ValueError("a connector of one pipeline stage was told of several")
        self.set_xfer_handshake_metadata({rank: each for (_, rank), each in metadata.items()})

    @property
    def role(self):
        return self._role

    def has_connector_metadata(self):
        return self._connector_metadata is not None

    def bind_kv_cache_manager(self, kv_cache_manager):
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)

    @property
    def supports_divergent_local_hybrid_hits(self):
        return False

    @property
    def requires_kv_delivery(self):
        return True

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config):
        return True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return False

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return None

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return None


def _nothing(name, answer=None):
    def hook(self, *arguments, **named):  # pylint: disable=unused-argument
        return answer

    hook.__name__ = name
    return hook


# The hooks of vLLM 0.33 that do nothing unless a connector has them.
for _name, _answer in {
        "get_mem_pool_context": None, "register_kv_caches": None, "unregister_kv_caches": None,
        "restore_kv_caches": None, "set_host_xfer_buffer_ops": None, "finish_forward": None,
        "reset_capture_state": None, "handle_preemptions": None, "start_load_kv": None,
        "wait_for_layer_load": None, "save_kv_layer": None, "wait_for_save": None,
        "get_finished": (None, None), "get_block_ids_with_load_errors": frozenset(),
        "shutdown": None, "get_kv_connector_stats": None, "get_kv_connector_kv_cache_events": None,
        "get_handshake_metadata": None, "build_connector_worker_meta": None,
        "bind_gpu_block_pool": None, "get_loaded_kv_cache_group_ids": (),
        "get_num_new_matched_tokens": (0, False), "get_external_cache_hit_sources": None,
        "update_state_after_alloc": None, "build_connector_meta": None, "on_new_request": None,
        "update_connector_output": None, "request_finished": (False, None),
        "register_finished_partial_tail": False, "take_events": (),
        "has_pending_block_frees": False, "has_pending_push_work": False,
        "get_finished_count": None, "set_xfer_handshake_metadata": None,
        "reset_cache": None}.items():
    setattr(KVConnectorBase_V1, _name, _nothing(_name, _answer))
