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
