"""What the connector tells vLLM's log and its Prometheus endpoint: counters, summed over ranks."""
import collections
from typing import Any, Dict, List

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics, KVConnectorStats)
except ImportError:  # older versions take none
    KVConnectorPromMetrics = KVConnectorStats = None

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before 0.32
    CacheHitSource = None

IS_TAKEN = KVConnectorStats is not None  # by this vLLM

# Every counter, as vllm:terrace_<name>_total.
COUNTERS = {
    "lookups": "Requests for which the daemon was asked.",
    "hit_tokens": "Tokens that were loaded instead of computed.",
    "lost_tokens": "Tokens that the daemon had promised and that were computed: a load failed.",
    "left_tokens": "Tokens that the daemon had, and that were computed, for that was sooner than "
                   "they would have come.",
    "loads": "Loads that ended, of every rank.",
    "load_seconds": "What they took, from the step that asked for them.",
    "loaded_bytes": "Bytes copied into KV caches.",
    "failed_loads": "Requests of which a load lost blocks, which were computed.",
    "stored_blocks": "Blocks that nobody had, reserved to be stored.",
    "stored_bytes": "Bytes committed, of every rank.",
    "dropped_stores": "Stores given up, of every rank: the daemon did not answer in time, had no "
                      "room, or a copy or commit failed.",
    "dropped_blocks": "Blocks of stores for which the daemon had no answer in time, or no room.",
    "passed_blocks": "Blocks that were not stored: all that is there is likelier to be asked for.",
    "bypassed_requests": "Requests that were not made, of every rank: an operator had the domain "
                         "bypassed (terrace drain --bypass).",
}



def hit_sources(by_tier: Dict[str, int], token_count: int) -> Dict[Any, int]:
    """What a load's tokens come from, in vLLM's words: they have to be as many. What another host
    stored has no word of its own, nor has what nobody knows of."""
    words = {"hbm": CacheHitSource.HOST, "dram": CacheHitSource.HOST, "nvme": CacheHitSource.DISK}
    found: Dict[Any, int] = {}
    for tier, count in by_tier.items():
        word = words.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)
        found[word] = found.get(word, 0) + count
    if sum(found.values()) != token_count:
        return {CacheHitSource.EXTERNAL_UNSPECIFIED: token_count} if token_count else {}
    return found


if KVConnectorStats is not None:

    class TerraceStats(KVConnectorStats):
        """data: counters since the last one."""

        def reset(self) -> None:
            self.data: Dict[str, Any] = {}

        def is_empty(self) -> bool:
            return not any(self.data.values())

        def aggregate(self, other: Any) -> "TerraceStats":
            return TerraceStats(data=dict(collections.Counter(self.data)
                                          + collections.Counter(other.data)))

        def reduce(self) -> Dict[str, Any]:
            return {name: round(self.data[name], 3) for name in COUNTERS if name in self.data}

    class TerraceMetrics(KVConnectorPromMetrics):
        """A counter each, by engine."""

        def __init__(self, vllm_config: Any, metric_types: Any, labelnames: List[str],
                     per_engine_labelvalues: Dict[int, List[object]]):
            super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
            counters = {name: self._counter_cls(name=f"vllm:terrace_{name}", documentation=text,
                                                labelnames=labelnames)
                        for name, text in COUNTERS.items()}
            self._of_engine = {
                engine: {name: counter.labels(*values) for name, counter in counters.items()}
                for engine, values in per_engine_labelvalues.items()}

        def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
            for name, amount in transfer_stats_data.items():
                counter = self._of_engine[engine_idx].get(name)
                if counter is not None and amount > 0:
                    counter.inc(amount)


class Since:
    """What has been added to counters since it was last asked."""

    def __init__(self) -> None:
        self._told: Dict[str, float] = {}

    def take(self, counters: Dict[str, float]) -> Dict[str, float]:
        added = {name: value - self._told.get(name, 0) for name, value in counters.items()}
        self._told = dict(counters)
        return {name: value for name, value in added.items() if value}
