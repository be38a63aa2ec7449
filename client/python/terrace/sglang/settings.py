"""What SGLang's extra configuration may say to the backend; the package's page explains it."""
import dataclasses
import logging
from typing import Any, Dict, Mapping, Optional

from .. import parameters
from ..parameters import Parameter
from ..request_hints import PREFIX

logger = logging.getLogger("sglang.terrace")
WHERE = "the extra configuration"
# SGLang's own, of which it takes some away before a backend sees them.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size",
              "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
              "prefetch_timeout_max", "hicache_storage_pass_prefix_keys")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Times in seconds. recompute_ns_per_token: as it was given."""
    socket: Optional[str] = None
    revision: Optional[str] = None
    timeout_s: float = 0.5
    flush_keeps: bool = False
    one_namespace: bool = False
    recompute_ns_per_token: Any = 0

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> "Settings":
        """Raises ValueError, which names what cannot be read."""
        return cls(**parameters.read(extra, _PARAMETERS, where=WHERE, logger=logger,
                                     others=_OF_SGLANG, prefix=PREFIX))


_PARAMETERS: Dict[str, Parameter] = {
    "socket": Parameter("socket", parameters.path, "a path"),
    "revision": Parameter("revision", parameters.text, "a text"),
    "timeout_ms": Parameter("timeout_s", parameters.timeout, parameters.TIMEOUT),
    "flush_keeps": Parameter("flush_keeps", parameters.flag, parameters.FLAG),
    "one_namespace": Parameter("one_namespace", parameters.flag, parameters.FLAG),
    "recompute_ns_per_token": Parameter("recompute_ns_per_token", lambda value: value,
                                        "a whole number"),
}
