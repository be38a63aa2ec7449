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

    medium = None
    cache_hit_source = None
    tolerates_off_thread_polling = False

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._offloading_spec = offloading_spec
        self._primary_kv_view = primary_kv_view
        self.tier_type = tier_type
        self._bp_detector = backpressure_detector

    @property
    def block_size_bytes(self):
        return self._primary_kv_view.strides[0]

    @property
    def bp_detector(self):
        return self._bp_detector

    def lookup(self, key, req_context):
        raise NotImplementedError

    def submit_store(self, job_metadata):
        raise NotImplementedError

    def submit_load(self, job_metadata):
        raise NotImplementedError

    def get_finished_jobs(self):
        raise NotImplementedError

    def on_new_request(self, req_context):
        raise NotImplementedError

    def drain_jobs(self):
        raise NotImplementedError

    def has_pending_work(self):
        return False

    def take_events(self):
        return ()

    def touch(self, keys, req_context):
        return

    def on_request_finished(self, req_context):
        return

    def serve_external_requests(self, parent):
        return

    def on_schedule_end(self, context):
        return

    def shutdown(self):
        return

    @classmethod
    def build_metric_definitions(cls, tier_config):
        return ()

    def get_stats(self):
        return None

    @classmethod
    def config_info_keys(cls, tier_config):
        return ()

    def config_info(self):
        return {}
