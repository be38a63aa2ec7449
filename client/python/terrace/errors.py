"""What a call can answer other than a result: one class a status."""
import ctypes
import operator
import reprlib
from typing import Any

from . import _native


class TerraceError(Exception):
    """A call was refused; `status` is its name, the message says why and what to do."""

    status = "unknown"


class Unavailable(TerraceError):
    """An everyday answer: go on without the cache."""


class NotFound(Unavailable):
    """It is not there: recompute."""
    status = "not found"


class NoSpace(Unavailable):
    """No room now: skip caching."""
    status = "no space"


class Busy(Unavailable):
    """Time is up or a queue is full: skip, or retry later."""
    status = "busy"


class Corrupt(Unavailable):
    """A checksum did not match: a miss."""
    status = "corrupt"


class Gone(Unavailable):
    """The daemon went away, or the lease was revoked: start again."""
    status = "gone"


class Exists(TerraceError):
    """Somebody committed these bytes already: drop yours."""
    status = "exists"


class Invalid(TerraceError, ValueError):
    """The call is wrong: fix it."""
    status = "invalid"


class WrongType(Invalid, TypeError):
    """The call was given a thing of another kind: fix it."""


class IoError(TerraceError, OSError):
    """The operating system said no."""
    status = "i/o error"


class Unsupported(TerraceError):
    """This build, machine or configuration cannot do it."""
    status = "unsupported"


class ReadOnly(Unsupported, Unavailable):
    """The client is a reader, and asked for what writers may: go on without storing."""


# What keeps a connection from being made until a person has done something is for that person, and
# for a program all the same as no daemon.


class Unreachable(IoError, Unavailable):
    """This user may not open the daemon's socket, it is none, or this process has no descriptors
    left: go on without the cache."""


class Refused(Invalid, Unavailable):
    """The daemon does not take this process for a client: go on without the cache."""


class Incompatible(Unsupported, Unavailable):
    """Library and daemon have no version in common: go on without the cache."""


_BY_CODE = {1: NotFound, 2: Exists, 3: NoSpace, 4: Busy, 5: Invalid, 6: Corrupt, 7: IoError,
            8: Gone, 9: Unsupported}


_BY_CODE_UNCONNECTED = {5: Refused, 7: Unreachable, 9: Incompatible}


def is_everyday(code: int) -> bool:
    """Whether the status is an everyday answer: Unavailable."""
    return issubclass(_BY_CODE.get(code, TerraceError), Unavailable)


def from_status(code: int, doing: str, sentence: str = "", *, is_read_only: bool = False,
                is_of_connecting: bool = False) -> TerraceError:
    """The exception for a status code, with the library's own sentence where there is one.
    is_read_only: a reader asked for what writers may. is_of_connecting: it says why there is no
    connection."""
    kind = _BY_CODE.get(code, TerraceError)
    if is_of_connecting:
        kind = _BY_CODE_UNCONNECTED.get(code, kind)
    if kind is Unsupported and is_read_only:
        kind = ReadOnly
    name = _native.lib.terrace_status_name(code).decode()
    return kind(f"{doing}: {name}" + (f": {sentence}" if sentence else ""))


def wrong_type(name: str, value: Any, expected: str) -> WrongType:
    """What `name` was given instead of what is expected."""
    return WrongType(f"{name}: a {type(value).__name__} was given, {reprlib.repr(value)}: pass "
                     f"{expected}")


def number(name: str, value: Any, bits: int = 32) -> int:
    """An integer for a C field of so many bits, which would cut it in silence."""
    try:
        found = operator.index(value)
    except TypeError:
        raise Invalid(f"{name} is {value!r}: pass an integer") from None
    if not 0 <= found < 1 << bits:
        raise Invalid(f"{name} is {found}: it goes from 0 to 2^{bits} - 1")
    return found


def text_of(name: str, value: Any) -> bytes:
    """For C, where a zero character would end it: two names must not become one."""
    if not isinstance(value, str):
        raise wrong_type(name, value, "a text")
    if "\0" in value:
        raise Invalid(f"{name} is {value!r}: it must not contain a zero character")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{name} is {value!r}, which is no UTF-8: write other characters") from None


def numbers(name: str, values: Any, bits: int = 64) -> "ctypes.Array[Any]":
    """Integers as an array of C's, of which none is cut in silence. At least one place long."""
    kind = {32: ctypes.c_uint32, 64: ctypes.c_uint64}[bits]
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    try:
        if values and not (min(values) >= 0 and max(values) < 1 << bits):
            number(name, min(values) if min(values) < 0 else max(values), bits)
        return (kind * max(len(values), 1))(*values)
    except TypeError:
        for value in values:
            number(name, value, bits)
        raise
