"""The classes a connector derives from, without behaviour."""
import enum


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
