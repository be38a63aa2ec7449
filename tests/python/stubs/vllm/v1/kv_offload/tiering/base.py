"""The classes a tier derives from and fills, without behaviour."""
import dataclasses
from typing import Any


@dataclasses.dataclass
class TransferJob:
    """Rows of the CPU tier, and whose they are."""
    job_id: int
    keys: Any
    chunk_ids: Any
    is_promotion: bool
    req_context: Any


@dataclasses.dataclass
class JobResult:
    """What became of a job."""
    job_id: int
    success: bool
    successful_keys: Any = None


class SecondaryTierManager:
    """Keeps what the real one keeps."""

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._offloading_spec = offloading_spec
        self._primary_kv_view = primary_kv_view
        self.tier_type = tier_type
        self._bp_detector = backpressure_detector
