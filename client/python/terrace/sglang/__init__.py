"""The SGLang HiCache backend: pages between SGLang's host pool and a terraced, one copy each way.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "terrace",
      "module_path": "terrace.sglang", "class_name": "TerraceHiCache", "interface_v1": 1,
      "socket": "/run/terrace/default.sock", "revision": "REVISION"}'

Extra configuration: socket and revision (required; a revision has to change whenever the weights,
the adapter or what is computed of them do between two starts), one_namespace (true: this server has
no LoRA adapters, extra keys and cache salts, which an older SGLang's hashes do not name),
flush_keeps (false; true: weights are never exchanged while SGLang runs, so a flush of its cache
says nothing of them), timeout_ms (500: of all that one call asks; what it copies comes on top),
recompute_ns_per_token (0: unknown), and the terrace_… of request_hints.py, of every page of the
instance: SGLang tells its backend of pages, not of requests. A daemon that does not answer is left
alone for a while, longer each time.
Nothing raises into SGLang: a rank whose storage thread dies would leave the others waiting for it.
Every rank makes the same calls, and answers them from its own share.

SGLang flushes its cache behind every update of weights. Another epoch begins there: that of the
weight_version that came with the update, which all instances share that were told the same, else
one of this instance's own.

Of hybrid models (interface v2) every pool beside the attention's own, of states or windows, has a
Space of its own under the same hashes; SGLang decides from what each pool has which prefix it can
restore.

With tp_lcm_size (layout page_head) a page's heads are stored in as many shares as the instance with
the most ranks has, so that instances of fewer ranks share its pages.

THREADING: SGLang calls from a prefetch, a transfer and a backup thread, at once.
"""
from .hicache import TerraceHiCache

__all__ = ["TerraceHiCache"]
