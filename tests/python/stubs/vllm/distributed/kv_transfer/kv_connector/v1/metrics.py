"""The classes that statistics derive from."""
import dataclasses
from typing import Any, Dict


@dataclasses.dataclass
class KVConnectorStats:
    """Keeps what the real one keeps."""
    data: Dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self):
        return self.data


class KVConnectorPromMetrics:
    """As the real one, of one kind of metric."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self._counter_cls = metric_types["counter"]
        self.per_engine_labelvalues = per_engine_labelvalues
