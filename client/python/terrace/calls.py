"""What calls are given and what they answer: hints and deadlines, keys, and facts about blocks."""
import ctypes
import dataclasses
import re
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import _native
from .errors import Invalid, number, wrong_type

TIERS = ("hbm", "dram", "nvme", "redis")
SPAN_STATES = ("ready", "coming", "following")

END_REASONS = ("unknown", "tool_call", "end_of_turn", "length", "aborted")
_HINTS = {"pin": 1, "no_store": 2, "exact": 4, "ttl_from_hits": 8, "ttl_of_priority": 16}
_HINT_NUMBERS = {"recompute_ns_per_token": 32, "session_hash": 64, "ttl_s": 32, "min_tokens": 32,
                 "expected_reuse_ms": 32}
_KEY_TEXT = re.compile("[0-9a-fA-F]{32}")
_FIELD_NUMBERS = {"member_mask": 64, "flags": 32, "first_position": 32}


@dataclasses.dataclass(frozen=True)
class Hints:
    """What an engine knows of a request; all optional. priority: 0 first to go … 100 last.
    ttl_from_hits: ttl_s counts from the last hit; ttl_of_priority: it is how long the priority
    holds, and the blocks stay."""
    recompute_ns_per_token: int = 0
    session_hash: int = 0
    ttl_s: int = 0
    min_tokens: int = 0
    expected_reuse_ms: int = 0
    end_reason: str = "unknown"
    priority: Optional[int] = None
    pin: bool = False
    no_store: bool = False
    exact: bool = False
    ttl_from_hits: bool = False
    ttl_of_priority: bool = False


class Keys(Sequence[Any]):
    """BlockKeys in the library's own form; slices share nothing."""

    def __init__(self, native: "ctypes.Array[Any]"):
        self.native = native

    @classmethod
    def from_hex(cls, texts: Sequence[str]) -> "Keys":
        """What hex() gives: 32 digits a key."""
        native = (_native.Id * len(texts))()
        for key, text in zip(native, texts):
            if not isinstance(text, str):
                raise wrong_type("a key", text, "a text of 32 hex digits")
            if not _KEY_TEXT.fullmatch(text):
                raise Invalid(f"{text!r} is no key: a key is 32 hex digits, this has {len(text)}")
            key.high, key.low = int(text[:16], 16), int(text[16:], 16)
        return cls(native)

    def hex(self) -> List[str]:
        """32 digits a key, as `terrace ls` prints them."""
        return [str(key) for key in self.native]

    def __repr__(self) -> str:
        shown = ", ".join(self[:4].hex()) + (", ..." if len(self) > 4 else "")
        return f"<Keys: {len(self)}{': ' if len(self) else ''}{shown}>"

    def __len__(self) -> int:
        return len(self.native)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self.native[index]
        first, last, step = index.indices(len(self))
        if step != 1:
            chosen = self.native[index]
            return Keys((_native.Id * len(chosen))(*chosen))
        count = max(0, last - first)  # an object a key would take milliseconds of a long prompt
        native = (_native.Id * count)()
        size = ctypes.sizeof(_native.Id)
        ctypes.memmove(native, ctypes.addressof(self.native) + first * size, count * size)
        return Keys(native)

    def __add__(self, other: "Keys") -> "Keys":
        native_of(other)
        size = ctypes.sizeof(_native.Id)
        native = (_native.Id * (len(self) + len(other)))()
        ctypes.memmove(native, self.native, len(self) * size)
        ctypes.memmove(ctypes.addressof(native) + len(self) * size, other.native,
                       len(other) * size)
        return Keys(native)


def native_of(keys: Keys) -> "Tuple[ctypes.Array[Any], int]":
    """Of a call's keys: for C, and how many."""
    if not isinstance(keys, Keys):
        raise wrong_type("keys", keys, "the Keys that Group.hash, Group.keys_of_digests or "
                         "Keys.from_hex answers, or a slice of them")
    return keys.native, len(keys)


class Token(NamedTuple):
    """Lets another process Join a lease."""
    high: int
    low: int


class Match(NamedTuple):
    """How far a prefix is there. is_bound: a remote member is unknown, an upper bound."""
    block_count: int
    token_count: int
    is_bound: bool


class Span(NamedTuple):
    """A run of a lease's blocks, as it was answered. state: ready, coming, following. tier: where
    the bytes were found. eta_s: of what is coming, until its last block is ready, as predicted."""
    first_block: int
    block_count: int
    state: str
    tier: str
    eta_s: float


class BlockInfo(NamedTuple):
    """What is known of one block. state: absent, reserved, sealed."""
    state: str
    tiers: Tuple[str, ...]
    priority: int
    is_persisted: bool
    is_pinned: bool
    lease_count: int
    commit_id: int
    is_no_store: bool = False


class Evicted(NamedTuple):
    """Of an evict: skipped_count are leased, pinned, or have a child that is."""
    block_count: int
    byte_count: int
    skipped_count: int


class ReservedKey(NamedTuple):
    """status: ok (write it), exists, busy (somebody else is at it), no space. is_passed_by, with no
    space: all that is there is likelier to be asked for; there is no use in offering it again."""
    status: str
    writer_age_ms: int
    commit_id: int
    is_passed_by: bool = False


TIMEOUT_S_MAX = 10**9


def microseconds(timeout_s: Optional[float]) -> int:
    """0, the default, for None."""
    if timeout_s is None:
        return 0
    if not isinstance(timeout_s, (int, float)) and not hasattr(timeout_s, "__float__"):
        raise wrong_type("timeout_s", timeout_s, "seconds, a number")
    if not 0 <= timeout_s <= TIMEOUT_S_MAX:  # which a NaN is not
        raise Invalid(f"timeout_s is {timeout_s}: pass 0 to {TIMEOUT_S_MAX} seconds, or None "
                      "for the client's default")
    return max(1, int(timeout_s * 1e6))


def request_of(timeout_s: Optional[float], hints: Optional[Hints] = None,
               **fields: Any) -> _native.Request:
    """A native request."""
    for name, bits in _FIELD_NUMBERS.items():
        if name in fields:
            fields[name] = number(name, fields[name], bits)
    request = _native.Request(deadline_us=microseconds(timeout_s), **fields)
    if hints is not None:
        if not isinstance(hints, Hints):
            raise wrong_type("hints", hints, "terrace.Hints")
        for name, bits in _HINT_NUMBERS.items():
            setattr(request, name, number(name, getattr(hints, name), bits))
        if hints.end_reason not in END_REASONS:
            raise Invalid(f"end_reason is {hints.end_reason!r}: use one of {END_REASONS}")
        request.end_reason = END_REASONS.index(hints.end_reason)
        if hints.priority is not None:
            if not 0 <= number("priority", hints.priority) <= 100:
                raise Invalid(f"priority is {hints.priority}: it goes from 0 to 100")
            request.priority = hints.priority
        request.hint_flags = sum(bit for name, bit in _HINTS.items() if getattr(hints, name))
    return request
