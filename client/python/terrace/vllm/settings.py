"""What kv_connector_extra_config may say to the vLLM connector. docs/INTEGRATIONS.md has the table.
"""
import dataclasses
from typing import Any, FrozenSet, Mapping, Optional


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
        """Of vLLM's dictionary, whose times are milliseconds."""
        pinned_gib, tokens = extra.get("pinned_gib"), extra.get("tool_call_tokens")
        return cls(
            socket=extra.get("socket"), revision=extra.get("revision"),
            weights_version_file=extra.get("weights_version_file"),
            timeout_s=float(extra.get("timeout_ms", 50)) / 1e3,
            lookup_wait_s=float(extra.get("lookup_wait_ms", 0.5)) / 1e3,
            load_timeout_s=float(extra.get("load_timeout_ms", 10_000)) / 1e3,
            plugin_path=extra.get("plugin_path"),
            pinned_bytes_max=None if pinned_gib is None else int(float(pinned_gib) * (1 << 30)),
            copy_threads=int(extra.get("copy_threads", 0)),
            reads_hbm=bool(extra.get("hbm", False)),
            codec=extra.get("codec") or None, head_units=extra.get("head_units"),
            kv_events=extra.get("kv_events") or None,
            tool_call_tokens=None if tokens is None else frozenset(int(each) for each in tokens))
