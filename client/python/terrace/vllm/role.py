"""What the scheduler's and a worker's side of the vLLM connector have in common: the connection to
the daemon, the group of the whole model, and what turned this side off."""
import functools
import logging
import time
from typing import Any, Callable, Dict, List, Optional, TypeVar, cast

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from ..client import Client
from ..errors import TerraceError, Unavailable
from ..group import Group
from ..space import Space, SpaceGroup
from . import coded, drafts, heads, kinds
from .messages import Layout
from .settings import Settings

logger = logging.getLogger("vllm.terrace")
# Nothing runs yet while an engine starts: it may wait so long for the daemon.
START_WAIT_S = 2.0
# Opening the group later, when the daemon comes up after the engine, waits timeout_ms, this often.
_OPEN_PAUSE_S = 5.0
_PIPELINE_HANDSHAKE = "set_xfer_handshake_metadata_pp_aware"

_Hook = TypeVar("_Hook", bound=Callable[..., Any])


def never_raises(otherwise: Any = None, makes: Any = None) -> Callable[[_Hook], _Hook]:
    """Of a Role's hook: one that fails turns its side off instead of the engine, and says why. It
    answers `otherwise`, or what `makes` makes, then, and for good."""

    def decorate(hook: _Hook) -> _Hook:
        @functools.wraps(hook)
        def guarded(self: Any, *arguments: Any, **named: Any) -> Any:
            if self.refusal is None:
                try:
                    return hook(self, *arguments, **named)
                except Unavailable:
                    pass  # no cache just now
                except Exception as error:  # pylint: disable=broad-except
                    self.refuse(f"{hook.__name__}: {type(error).__name__}: {error}")
            return makes() if makes is not None else otherwise

        return cast(_Hook, guarded)

    return decorate


class Role:
    """One side's connection. refusal: why it is off, for good; None while it is on."""

    def __init__(self, name: str, vllm_config: Any, kv_cache_config: Any):
        self.refusal: Optional[str] = None
        self.client: Optional[Client] = None
        self.layout: Optional[Layout] = None  # of the whole model, once it is known here
        self._config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._wrong_setting: Optional[str] = None
        try:
            self.settings = Settings.of(
                vllm_config.kv_transfer_config.kv_connector_extra_config or {})
        except ValueError as error:
            self.settings, self._wrong_setting = Settings(socket=None), str(error)
        self.stage_count = 1
        self.next_open = 0.0
        self._client_options: Dict[str, Any] = {
            "name": f"vllm-{name}", "default_timeout_s": self.settings.timeout_s,
            "pinned_bytes_max": self.settings.pinned_bytes_max}

    def connect(self) -> None:
        """Begins to connect, if what vLLM is configured for is served."""
        why = self._refusal_of_configuration()
        if why is not None:
            self.refuse(why)
            return
        role = getattr(self._config.kv_transfer_config, "kv_role", "kv_both")
        if role != "kv_both":
            logger.warning("terrace: kv_role is %r: this connector loads and stores all the same; "
                           "set it to 'kv_both'", role)
        if getattr(self._config.kv_transfer_config, "kv_load_failure_policy", "") == "fail":
            logger.warning("terrace: kv_load_failure_policy is 'fail': a block lost on its way "
                           "fails its request; set it to 'recompute'")
        try:
            self.client = Client(str(self.settings.socket), **self._client_options)
        except TerraceError as error:
            self.refuse(str(error))

    def _refusal_of_configuration(self) -> Optional[str]:
        parallel = self._config.parallel_config
        if self._wrong_setting is not None:
            return self._wrong_setting
        if self.settings.socket is None:
            return "kv_connector_extra_config has no 'socket': name the domain's socket"
        why = (kinds.refusal_of(self._kv_cache_config, kinds.shards_of(parallel))
               or kinds.refusal_of_states(self._kv_cache_config, self._config)
               or drafts.refusal_of(self._config)
               or coded.refusal_of_codec(self.settings.codec, self._config, self._kv_cache_config)
               or heads.refusal_of(self.settings.head_units, self._config, self._kv_cache_config))
        if why is not None:
            return why
        if getattr(parallel, "prefill_context_parallel_size", 1) != 1:
            return ("prefill_context_parallel_size is "
                    f"{parallel.prefill_context_parallel_size}: only 1 is served yet")
        self.stage_count = getattr(parallel, "pipeline_parallel_size", 1)
        if self.stage_count > 1 and not hasattr(KVConnectorBase_V1, _PIPELINE_HANDSHAKE):
            return (f"pipeline_parallel_size is {self.stage_count}, and this vLLM tells a "
                    f"connector of one stage only: it needs {_PIPELINE_HANDSHAKE}")
        if getattr(self._config.cache_config, "calculate_kv_scales", False):
            return ("calculate_kv_scales gives every instance scales of its own for an fp8 "
                    "cache, so nobody can share it: take them from the checkpoint")
        return None

    def refuse(self, sentence: str) -> None:
        """Turns this side off, for good."""
        logger.warning("terrace is off: %s", sentence)
        self.refusal = sentence
        self.let_go()

    def let_go(self) -> None:
        """This side is off: nobody asks for what it holds any more."""
        raise NotImplementedError

    @property
    def half(self) -> Any:
        """What works while the daemon is there; None before."""
        raise NotImplementedError

    @property
    def client_counters(self) -> Dict[str, float]:
        """Of the client, since the beginning; stats.COUNTERS says what they are."""
        try:
            return {} if self.client is None else {"bypassed_requests": self.client.bypassed_count}
        except Unavailable:
            return {}  # closed

    @property
    def start_wait_s(self) -> float:
        """How long an engine that starts may wait for the daemon's answer."""
        return START_WAIT_S

    def wait_at_start(self) -> None:
        """Nothing runs yet: the first request should find the cache."""
        assert self.client is not None
        try:
            self.client.wait_connected(START_WAIT_S)
        except TerraceError as error:
            logger.warning("terrace: %s; vLLM serves without the cache until it is there", error)

    def spaces(self) -> List[Space]:
        """Of every member of the SpaceGroup. REQUIRES: the layout is known."""
        assert self.layout is not None
        found = []
        for _, _, group, share in self.layout.shares():
            fields = group.fields
            found.append(Space(**fields, part_bytes=tuple(group.part_bytes),
                               tp_rank=share % fields["tp_size"],
                               cp_rank=share % fields["cp_size"]))
        marker = self.layout.marker
        if marker is not None:
            found.append(Space(**marker.fields, part_bytes=marker.part_bytes))
        return found

    def open_group(self, self_mask: int, timeout_s: float) -> Optional[Group]:
        """The model's group, of which bit m of self_mask says that member m is this process's. None
        if the daemon is not there, or does not answer; then not tried again for a while."""
        now = time.monotonic()
        if self.client is None or not self.client.is_connected or now < self.next_open:
            return None
        members = self.spaces()
        name = SpaceGroup("x", members).check()  # one name a group: nobody else can be in the way
        try:
            return self.client.open(SpaceGroup(f"vllm-{name[:16]}", members), self_mask, timeout_s)
        except Unavailable:
            self.next_open = now + _OPEN_PAUSE_S
            return None

    def shutdown(self) -> None:
        """vLLM ends."""
        if self.half is not None:
            self.half.close()
        if self.client is not None:
            self.client.close()
