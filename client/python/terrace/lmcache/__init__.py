"""The LMCache adapter: terraced as a tier below LMCache's own memory (an L2 adapter).

    lmcache server … --l2-adapter '{"type": "plugin", "module_path": "terrace.lmcache",
        "class_name": "TerraceL2Adapter", "adapter_params": {
            "socket": "/run/terrace/default.sock", "revision": "REVISION"}}'

Parameters: socket and revision (required; a revision has to change whenever the weights or what is
computed of them do between two starts: LMCache's keys name neither), weights_version_file, whose
text names the weights that are loaded, where they are exchanged while engines run, chunk_size (256,
as LMCache's own: for statistics), apart (a text; instances with another one share nothing),
timeout_ms (50), load_timeout_ms (10000), threads (2, of stores and of loads each), and the
terrace_… of request_hints.py, of every object of the instance. Nothing here raises into LMCache:
what the daemon does not answer is a miss, a store it does not take is reported as failed.

An object is one chunk's bytes of one rank and one object group. Its key is all that LMCache's own
key says; its Space is what LMCache says of its memory, LMCache's version and the revision. Bytes
go between LMCache's memory and leased slots in one copy. A lock is a lease.

THREADING: LMCache calls from a store and a prefetch thread, at once; verbs run on threads of the
adapter's own.
"""
from .adapter import TerraceL2Adapter

__all__ = ["TerraceL2Adapter"]
