"""What a request may say of its blocks, in the parameters that engines pass through to connectors.

docs/INTEGRATIONS.md has the table. Names begin with terrace_, since other connectors read the same
dictionaries. What cannot be is refused by name, once, and passed over: a request is served whatever
its parameters say.
"""
import dataclasses
import hashlib
import logging
from typing import Any, Callable, Dict, Mapping, Optional, Set

from .calls import Hints
from .retention import BlockRetention, Retention

PREFIX = "terrace_"
_U32_MAX = (1 << 32) - 1
_SESSION_CHARACTERS_MAX = 256


def _whole(least: int, most: int) -> Callable[[Any], Optional[int]]:
    """Reads a number of that range; None for anything else. JSON has 30.0 for 30 in places."""

    def read(value: Any) -> Optional[int]:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
            return None
        return int(value) if least <= value <= most else None

    return read


def _flag(value: Any) -> Optional[bool]:
    """vLLM's vllm_xargs carries no booleans: 0 and 1 stand for them."""
    return bool(value) if value in (0, 1) and isinstance(value, (bool, int)) else None


def _session(value: Any) -> Optional[str]:
    if isinstance(value, int) and value.bit_length() > 4 * _SESSION_CHARACTERS_MAX:
        return None  # Python writes no number of thousands of digits
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    return text if 0 < len(text) <= _SESSION_CHARACTERS_MAX else None


def _retention(value: Any) -> Optional[Retention]:
    try:
        return Retention.of(value)
    except (ValueError, TypeError, RecursionError):
        return None


def _told(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"
    except RecursionError:
        return "lists within lists, too many to be told"


# Of each parameter what reads it, and what it may be.
_PARAMETERS: Dict[str, Any] = {
    "priority": (_whole(0, 100), "a number from 0 (first to go) to 100 (last)"),
    "ttl_s": (_whole(1, _U32_MAX), f"seconds from 1 to {_U32_MAX}"),
    "pin": (_flag, "true or false (1 or 0)"),
    "no_store": (_flag, "true or false (1 or 0)"),
    "session": (_session, f"a text of 1 to {_SESSION_CHARACTERS_MAX} characters, or a number"),
    "ttl_from_hits": (_flag, "true or false (1 or 0)"),
    "retention": (_retention, "TensorRT-LLM's KvCacheRetentionConfig: "
                  "token_range_retention_configs (of token_start, token_end, priority, "
                  "duration_ms; in order, none empty, none overlapping), "
                  "decode_retention_priority, decode_duration_ms"),
    "expected_reuse_ms": (_whole(1, _U32_MAX), f"milliseconds from 1 to {_U32_MAX}"),
}


@dataclasses.dataclass(frozen=True)
class RequestHints:
    """What one request says; None and False: nothing. session: of the conversation it belongs to.
    """
    priority: Optional[int] = None
    ttl_s: Optional[int] = None
    pin: bool = False
    no_store: bool = False
    session: Optional[str] = None
    expected_reuse_ms: Optional[int] = None
    ttl_from_hits: bool = False
    retention: Optional[Retention] = None

    @property
    def is_of_blocks(self) -> bool:
        """Whether it changes blocks that are there already."""
        return (self.priority is not None or self.ttl_s is not None or self.pin or self.no_store
                or self.retention is not None)

    def with_more(self, more: "RequestHints") -> "RequestHints":
        """Where `more` says something, its word counts."""
        said = {field.name: getattr(more, field.name) for field in dataclasses.fields(more)}
        return dataclasses.replace(self, **{name: value for name, value in said.items()
                                            if value is not None and value is not False})

    def hints(self, *, session_hash: int = 0, recompute_ns_per_token: int = 0,
              end_reason: str = "unknown", retained: BlockRetention = BlockRetention()) -> Hints:
        """Of a verb that makes blocks, or is about some. retained: what its ranges say of those; a
        request has one time for the verb, and the priority's goes before the blocks' own."""
        priority = self.priority if retained.priority is None else retained.priority
        is_timed = retained.priority is not None and retained.duration_s > 0
        ttl_s = retained.duration_s if is_timed else self.ttl_s or 0
        return Hints(priority=priority, ttl_s=ttl_s, pin=self.pin, ttl_of_priority=is_timed,
                     ttl_from_hits=self.ttl_from_hits and not is_timed and ttl_s > 0,
                     no_store=self.no_store, expected_reuse_ms=self.expected_reuse_ms or 0,
                     session_hash=session_hash, recompute_ns_per_token=recompute_ns_per_token,
                     end_reason=end_reason)


NOTHING = RequestHints()


def session_hash_of(tenant: Optional[str], session: str) -> int:
    """64 bits, never 0. tenant: what keeps equal names of different owners apart (cache_salt)."""
    # JSON brings halves of surrogate pairs, which plain UTF-8 has no bytes for.
    key = (tenant or "").encode(errors="surrogatepass")
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.blake2b(key).digest()
    digest = hashlib.blake2b(session.encode(errors="surrogatepass"), digest_size=8,
                             person=b"terrace session",
                             key=key).digest()
    return int.from_bytes(digest, "little") or 1


class HintReader:
    """Reads requests' parameters, and says of each wrong one once what is wrong with it."""

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self._refused: Set[str] = set()

    def read(self, *sources: Any) -> RequestHints:
        """Of dictionaries, the last one's word counts; what is no dictionary says nothing."""
        said: Dict[str, Any] = {}
        for source in sources:
            if isinstance(source, Mapping):
                for name, value in source.items():
                    if isinstance(name, str) and name.startswith(PREFIX):
                        self._take(name, value, said)
        return RequestHints(**said) if said else NOTHING

    def _take(self, name: str, value: Any, said: Dict[str, Any]) -> None:
        parameter = _PARAMETERS.get(name[len(PREFIX):])
        if parameter is None:
            self._refuse(name, "is no parameter of Terrace's: there are "
                         + ", ".join(PREFIX + each for each in _PARAMETERS))
            return
        read, allowed = parameter
        found = read(value)
        if found is None:
            if self._is_new(name):  # what a client sends may be long
                self._refuse(name, f"is {_told(value):.80}: it is {allowed}")
        else:
            said[name[len(PREFIX):]] = found

    def _is_new(self, name: str) -> bool:
        return len(self._refused) < 64 and name not in self._refused  # clients choose the names

    def _refuse(self, name: str, what: str) -> None:
        if self._is_new(name):
            self._refused.add(name)
            self._logger.warning("terrace: the parameter %.80s %s; it is passed over, here "
                                 "and wherever it is wrong again", name, what)
