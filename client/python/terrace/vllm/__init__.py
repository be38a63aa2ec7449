"""The vLLM connector: shares the prefixes of vLLM instances through a terraced.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TerraceConnector",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": "/run/terrace/default.sock"}}'

What the extra configuration may say is in settings.py. Nothing here raises into the engine or waits
longer than the times named there: without a daemon vLLM serves on, without the cache.

Today: KV caches in host memory (vLLM's CPU platform) and on NVIDIA GPUs, of which it has run on
none yet; full attention, MLA, sliding windows, local chunks and states (Mamba, linear attention;
mamba_cache_mode align), in one KV cache group or several of one block size, also where layers of a
group differ in size; drafts that read one token ahead at most; tensor, pipeline and decode context
parallel. What it cannot serve it says in the log, once, and stays out of the way.

    connector         what vLLM calls: hands each hook to the role of its process
    scheduler_role    the hooks of the scheduler's process ► scheduler: what is loaded and stored
    worker_role       the hooks of a worker's process ► worker: the copies ► copies: how
    role              what both have: the connection, and what turned it off
    kinds, drafts     which KV cache groups, and drafts, are served; model: what their Spaces are
    messages          what roles tell each other
    coded, heads      pages that a codec stores smaller, or that are stored by heads
    kv_memory         whether the caches' memory is there: sleep mode
    tier              another form: below vLLM's own CPU tier (terrace.vllm_tier)
"""
from ..vllm_plugin import register
from .connector import TerraceConnector

__all__ = ["TerraceConnector"]

register()
