"""What kv_connector_extra_config may say to the vLLM connector. docs/INTEGRATIONS.md has the table.
"""
import dataclasses
import logging
from typing import Any, Dict, FrozenSet, Mapping, Optional

from .. import parameters
from ..parameters import Parameter

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
        read.update(parameters.read(extra, _PARAMETERS, where="kv_connector_extra_config",
                                    logger=logger))
        return cls(**read)


# None is as if it was not there.
_PARAMETERS: Dict[str, Parameter] = {
    "socket": Parameter("socket", parameters.path, "a path"),
    "revision": Parameter("revision", parameters.text, "a text"),
    "weights_version_file": Parameter("weights_version_file", parameters.path, "a path"),
    "timeout_ms": Parameter("timeout_s", parameters.timeout, parameters.TIMEOUT),
    "lookup_wait_ms": Parameter("lookup_wait_s", parameters.seconds, parameters.MILLISECONDS),
    "load_timeout_ms": Parameter("load_timeout_s", parameters.seconds, parameters.MILLISECONDS),
    "plugin_path": Parameter("plugin_path", parameters.path, "a path"),
    "pinned_gib": Parameter("pinned_bytes_max", parameters.gib, "GiB"),
    "copy_threads": Parameter("copy_threads", parameters.threads, parameters.THREADS),
    "hbm": Parameter("reads_hbm", parameters.flag, parameters.FLAG),
    "codec": Parameter("codec", lambda value: value or None, "a codec's name"),
    "head_units": Parameter("head_units", lambda value: value, "a whole number"),
    "kv_events": Parameter("kv_events", lambda value: value or None, "what kv_events may say"),
    "tool_call_tokens": Parameter("tool_call_tokens",
                                  lambda value: frozenset(parameters.numbers(value)),
                                  "a list of token ids"),
}
