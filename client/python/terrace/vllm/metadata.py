"""What vLLM carries between the connector's processes: messages.py in vLLM's own types, pickled."""
import dataclasses
from typing import Dict, Optional, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorWorkerMetadata)

from .messages import StageLayout, Step

Ranks = Tuple[int, int]  # pipeline stage, tensor parallel rank


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
    could not say it in a handshake; how often one's KV cache was taken away."""
    counts: Dict[int, int]
    refusal: Optional[str] = None
    layouts: Dict[Ranks, StageLayout] = dataclasses.field(default_factory=dict)
    sleep_count: int = 0

    def aggregate(self, other: "TerraceReports") -> "TerraceReports":
        """Of several workers together."""
        counts = dict(self.counts)
        for number, count in other.counts.items():
            counts[number] = counts.get(number, 0) + count
        return TerraceReports(counts, self.refusal or other.refusal,
                              {**self.layouts, **other.layouts},
                              max(self.sleep_count, other.sleep_count))
