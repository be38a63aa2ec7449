"""What kv_connector_extra_config may say to the vLLM connector. docs/INTEGRATIONS.md has the table.
"""
import dataclasses
import difflib
import logging
from typing import Any, Callable, Dict, FrozenSet, Mapping, Optional, Tuple

logger = logging.getLogger("vllm.terrace")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Times in seconds, sizes in bytes.

    socket: of the domain; required. revision: of the weights; None: found from the model's files.
    weights_version_file: its text names the weights that are loaded, where they are exchanged.
    timeout_s: of an answer; lookup_wait_s: how long one question may hold the scheduler up;
    load_timeout_s: how long promised blocks may take. plugin_path: of libterrace_cuda.so; None: the
    one installed with libterrace. pinned_bytes_max: of the arena, registered with a GPU at a time;
    None: all. copy_threads: where the KV cache is host memory; 0: the step itself copies.
    reads_hbm: workers load hits from where they lie in their device's memory. tool_call_tokens: one
    of them in an answer says that it calls a tool; None: those that the tokenizer names so. codec:
    by which blocks are stored smaller, and not exactly (coded.py); None: as they are. head_units:
    what the model's KV heads are cut into, for instances of other numbers of ranks (heads.py);
    None: each rank has its own share. kv_events: of the relay that tells routers (events.py); None:
    the daemon alone does.
    """
    socket: Optional[str]
    revision: Optional[str] = None
    weights_version_file: Optional[str] = None
    timeout_s: float = 0.05
    lookup_wait_s: float = 0.0005
    load_timeout_s: float = 10.0
    plugin_path: Optional[str] = None
    pinned_bytes_max: Optional[int] = None
    copy_threads: int = 0
    reads_hbm: bool = False
    tool_call_tokens: Optional[FrozenSet[int]] = None
    codec: Optional[str] = None
    head_units: Any = None  # as it was given
    kv_events: Optional[Mapping[str, Any]] = None

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> "Settings":
        """Of vLLM's dictionary, whose times are milliseconds. Raises ValueError, which names what
        cannot be read."""
        read: Dict[str, Any] = {"socket": None}
        for name, value in extra.items():
            if name not in _READERS:
                logger.warning("terrace: kv_connector_extra_config has %r, which is no parameter%s",
                               name, _nearest(name))
                continue
            if value is None:
                continue
            field, reader, what = _READERS[name]
            try:
                read[field] = reader(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}: it is {what}"
                                 ) from error
        return cls(**read)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _READERS, 1)
    return f": did you mean {near[0]!r}?" if near else f": there are {', '.join(sorted(_READERS))}"


def _seconds(value: Any) -> float:
    seconds = float(value) / 1e3
    if not 0 <= seconds < float("inf"):
        raise ValueError("no time")
    return seconds


def _count(value: Any) -> int:
    if int(value) < 0:
        raise ValueError("below 0")
    return int(value)


def _as_it_is(value: Any) -> Any:
    return value


# Of each parameter the field, what reads it, and what it may be; None is as if it was not there.
_READERS: Dict[str, Tuple[str, Callable[[Any], Any], str]] = {
    "socket": ("socket", _as_it_is, "a path"),
    "revision": ("revision", str, "a text"),
    "weights_version_file": ("weights_version_file", _as_it_is, "a path"),
    "timeout_ms": ("timeout_s", _seconds, "milliseconds"),
    "lookup_wait_ms": ("lookup_wait_s", _seconds, "milliseconds"),
    "load_timeout_ms": ("load_timeout_s", _seconds, "milliseconds"),
    "plugin_path": ("plugin_path", _as_it_is, "a path"),
    "pinned_gib": ("pinned_bytes_max", lambda value: _count(float(value) * (1 << 30)), "GiB"),
    "copy_threads": ("copy_threads", _count, "a whole number"),
    "hbm": ("reads_hbm", bool, "true or false"),
    "codec": ("codec", lambda value: value or None, "a codec's name"),
    "head_units": ("head_units", _as_it_is, "a whole number"),
    "kv_events": ("kv_events", lambda value: value or None, "what kv_events may say"),
    "tool_call_tokens": ("tool_call_tokens",
                         lambda value: frozenset(int(each) for each in value), "numbers of tokens"),
}
