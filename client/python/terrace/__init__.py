"""Terrace: shares the attention keys and values (KV) of prompts between inference processes.

    import terrace

    space = terrace.Space.from_hf_config(config, revision="r1")
    with terrace.Client("/run/terrace/default.sock") as client:
        group = client.open(terrace.SpaceGroup("my-model", [space]))
        keys = group.hash(token_ids)
        with group.acquire(keys) as lease:          # a prefix of what is asked, pinned
            lease.wait_ready()
            lease.copy_into(pages)
        with group.reserve(keys) as lease:          # what nobody has yet
            lease.write(pages)
            lease.commit()

Calls answer by their deadline. `except terrace.Unavailable` is where a program goes on without the
cache. terrace.aio is the asyncio face, terrace.torch saves and restores whole caches.
"""
from typing import TYPE_CHECKING

from ._version import version_of_package as _version_of_package
from .calls import BlockInfo, Evicted, Hints, Keys, Match, ReservedKey, Token
from .client import Client
from .errors import (Busy, Corrupt, Exists, Gone, Incompatible, Invalid, IoError, NoSpace,
                     NotFound, ReadOnly, Refused, TerraceError, Unavailable, Unreachable,
                     Unsupported, WrongType)
from .group import ACQUIRE_BY_PARTS, ACQUIRE_DEVICE, ACQUIRE_FOLLOW, KEYS_FLAT, Group
from .leases import ReadLease, WriteLease
from .paged import HOST, Copy, Device, PagedCache, Rope
from .space import Space, SpaceGroup

__all__ = [
    "ACQUIRE_BY_PARTS", "ACQUIRE_DEVICE", "ACQUIRE_FOLLOW", "BlockInfo", "Busy", "Client",
    "Copy", "Corrupt", "Device", "Evicted", "Exists", "Gone", "Group", "Hints", "HOST",
    "Incompatible", "Invalid", "IoError", "Keys", "KEYS_FLAT", "Match", "NoSpace", "NotFound",
    "PagedCache", "ReadLease", "ReadOnly", "Refused", "ReservedKey", "Rope", "Space",
    "SpaceGroup", "TerraceError", "Token", "Unavailable", "Unreachable", "Unsupported",
    "WriteLease", "WrongType",
]

if TYPE_CHECKING:
    __version__: str
else:
    def __getattr__(name):  # what it takes to find out, only who asks for it
        """__version__: of the package."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _version_of_package()
