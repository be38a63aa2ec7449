"""Bytes of KV events: msgpack as vLLM writes it, an array of a time, events and a data parallel
rank, each event a map with its type first. Hashes are numbers of 64 bits, or bytes."""
import hashlib
import importlib
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

Event = Dict[str, Any]
CLEARED: Event = {"type": "AllBlocksCleared"}
END_OF_REPLAY = b"\xff" * 8


def _codec() -> Tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    try:
        msgpack = importlib.import_module("msgspec.msgpack")
        return msgpack.encode, msgpack.decode
    except ImportError:
        msgpack = importlib.import_module("msgpack")
        return msgpack.packb, lambda data: msgpack.unpackb(data, strict_map_key=False)


pack, unpack = _codec()


def batch(events: Sequence[Event], rank: int = 0) -> bytes:
    """A message's payload."""
    return pack([time.time(), list(events), rank])


def events_in(payload: bytes) -> List[Event]:
    """Of a message of the daemon's, in either encoding. Raises ValueError on what is none."""
    try:
        _, events, _ = unpack(payload)
        return [each if isinstance(each, dict) else _named(each) for each in events]
    except Exception as error:  # of three libraries
        raise ValueError(f"no batch of KV events: {error}") from error


def _named(fields: Sequence[Any]) -> Event:
    """An event of the encoding in which names are left out."""
    event = {"type": fields[0]}
    if fields[0] == "BlockStored":
        event.update(block_hashes=fields[1], medium=fields[6])
    elif fields[0] == "BlockRemoved":
        event.update(block_hashes=fields[1], medium=fields[2])
    return event


def names_of(digests: Sequence[bytes], salt: bytes) -> List[int]:
    """By which a relay and the daemon's events know blocks, 64 bits and never 0: of equal digests
    under other salts (models, layouts) other names."""
    return [int.from_bytes(hashlib.blake2b(bytes(digest), digest_size=8, key=salt).digest(), "big")
            or 1 for digest in digests]
