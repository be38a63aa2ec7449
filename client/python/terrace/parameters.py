"""What the configuration of a connector may say, read in one way for all engines.

Engines hand over what came from JSON, YAML or a command line. What is wrong is told with its name,
its value and what it may be: a value by whoever reads, with a ValueError, since nobody can tell
what was meant; a name that is none in the log, with the nearest, since newer versions have more.
"""
import difflib
import logging
import os
from typing import Any, Callable, Collection, Dict, Iterable, Mapping, NamedTuple

from .calls import TIMEOUT_S_MAX

FLAG = "true or false (1 or 0)"
MILLISECONDS = f"milliseconds, at most {TIMEOUT_S_MAX * 1000}"
TIMEOUT = MILLISECONDS + ", and more than 0"
_THREADS_MAX = 64
THREADS = f"a whole number, at most {_THREADS_MAX}"


class Parameter(NamedTuple):
    """field: under which the value is answered. read: raises ValueError or TypeError for what it
    cannot be. allowed: what it may be, in words."""
    field: str
    read: Callable[[Any], Any]
    allowed: str


def read(said: Mapping[str, Any], known: Mapping[str, Parameter], *, where: str,
         logger: logging.Logger, others: Collection[str] = (), prefix: str = "") -> Dict[str, Any]:
    """By field; None is as if it was not there. where: the configuration's name. others: names that
    somebody else reads, and prefix, if any, how more of them begin. Raises ValueError."""
    if not isinstance(said, Mapping):
        raise ValueError(f"{where} is {said!r:.80}: it has names and values, as JSON's objects do")
    found: Dict[str, Any] = {}
    for name, value in said.items():
        if name not in known:
            if name not in others and not (prefix and str(name).startswith(prefix)):
                logger.warning("terrace: %s has %.80r, which is no parameter%s", where, name,
                               _nearest(str(name), known))
        elif value is not None:
            parameter = known[name]
            try:
                found[parameter.field] = parameter.read(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{where}: {name} is {value!r:.80}: it is {parameter.allowed}"
                                 ) from error
    return found


def _nearest(name: str, known: Mapping[str, Parameter]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(known))}"


def flag(value: Any) -> bool:
    """A text is none: "false" is as true as any other to a program."""
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise ValueError("no flag")


def seconds(milliseconds: Any) -> float:
    """Not negative, and no more than a call takes."""
    found = _number(milliseconds) / 1e3
    if not 0 <= found <= TIMEOUT_S_MAX:
        raise ValueError("no time")
    return found


def timeout(milliseconds: Any) -> float:
    """In seconds: in no time at all nobody answers."""
    found = seconds(milliseconds)
    if found == 0:
        raise ValueError("no time to answer in")
    return found


def count(value: Any) -> int:
    """Not negative."""
    number = _number(value)
    if number < 0 or number != number // 1:
        raise ValueError("no count")
    return int(number)


def threads(value: Any) -> int:
    """No more than a device of host memory takes."""
    found = count(value)
    if found > _THREADS_MAX:
        raise ValueError("too many")
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("a flag")
    return float(value)


def numbers(value: Any) -> Iterable[int]:
    """A text is no list of its digits."""
    if isinstance(value, (str, bytes)):
        raise ValueError("no list")
    return [count(each) for each in value]


def path(value: Any) -> str:
    """A number would be an open file's."""
    found = os.fspath(value)
    if not isinstance(found, str) or "\0" in found:
        raise ValueError("no path")
    return found


def text(value: Any) -> str:
    """Or a number, which stands for its digits."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("no text")
    return str(value)


def gib(value: Any) -> int:
    """In bytes, which the library counts in 64 bits."""
    found = count(_number(value) * (1 << 30) // 1)
    if found >= 1 << 64:
        raise ValueError("too many")
    return found
