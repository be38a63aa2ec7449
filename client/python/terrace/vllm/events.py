"""KV events of a vLLM's own: what its scheduler knows of blocks, for the relay (terrace.kv_events).
"""
import hashlib
import logging
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence

from ..group import Group
from ..kv_events import Relay, RelaySettings, names_of
from ..kv_events.relay import Batch

logger = logging.getLogger("vllm.terrace")
# Of a request: what makes its blocks others than their tokens say.
_KEYED = ("lora_request", "mm_features", "cache_salt")


class KvEvents:
    """Of one scheduler. The names by which the daemon's events know blocks are made of the same
    digests as keys, so that another adapter's weights, another epoch or layout have others, and so
    has another domain, whose blocks this engine does not find: the daemon's events tell of all
    domains. Raises Gone while there is no connection: a key is of the domain's secret."""

    def __init__(self, relay: Relay, group: Group, block_tokens: int, kv_cache_groups: Sequence[Any]
                 ):
        self.relay = relay
        of_domain = bytes(group.keys_of_digests([bytes(16)])[0])
        self._salt = hashlib.sha256(repr(group.spec).encode() + of_domain).digest()
        self._block_tokens = block_tokens
        self._group_idx, self._kind = _main_of(kv_cache_groups)
        self._hash_of = _external_hashes()
        self._epoch = b""
        self._weights = {""}

    def names(self, digests: Sequence[bytes]) -> List[int]:
        """For the daemon, with blocks that are stored."""
        return names_of(digests, self._salt)

    def begin_epoch(self, mask: bytes) -> None:
        """Of other weights nothing that was announced can be used."""
        if mask != self._epoch:
            self._epoch = mask
            self._weights = {mask[:8].hex()}
            self.relay.use(self._weights)

    def learn(self, request: Any, mask: bytes, first: int, names: Sequence[int],
              hashes: Sequence[bytes]) -> None:
        """What blocks from `first` on are. mask: of its weights, epoch and adapter together. names,
        hashes: theirs, behind those of the block before them, if there is one."""
        weights, lora = mask[:8].hex(), getattr(request, "lora_request", None)
        if lora is not None:
            self.relay.number(lora.lora_name, lora.lora_int_id, weights)
        if weights not in self._weights:
            self._weights.add(weights)
            self.relay.use(self._weights)
        external = [self._hash_of(each) for each in hashes]
        parent = (names[0], external.pop(0)) if first > 0 else (0, None)
        names = list(names[1:] if first > 0 else names)
        if all(self.relay.knows(name) for name in names):
            return
        begin, end = first * self._block_tokens, (first + len(names)) * self._block_tokens
        self.relay.learn(Batch(
            names, external, parent, list(request.all_token_ids[begin:end]), self._block_tokens,
            None if lora is None else lora.lora_int_id, None if lora is None else lora.lora_name,
            self._extra_keys(request, first, first + len(names)), self._group_idx, self._kind,
            weights))

    def _extra_keys(self, request: Any, first: int, last: int) -> Optional[List[Any]]:
        """Of blocks [first, last), as vLLM's own events have them, which begin anywhere, too, with
        the first of its images; None: the request has none."""
        if all(getattr(request, name, None) in (None, []) for name in _KEYED) and (
                getattr(request, "prompt_embeds", None) is None):  # a tensor
            return None
        try:
            from vllm.v1.core import kv_cache_utils  # pylint: disable=import-outside-toplevel

            make = kv_cache_utils.generate_block_hash_extra_keys
            told = getattr(kv_cache_utils, "to_event_extra_keys", list)
        except (ImportError, AttributeError):
            return None
        found, place = [], 0
        for i in range(first, last):
            keys, place = make(request, i * self._block_tokens, (i + 1) * self._block_tokens, place)
            found.append(keys)
        return list(told(found) or [None] * len(found))

    def take(self) -> List[Any]:
        """What vLLM publishes with its own events, in its own classes."""
        return _in_vllms_classes(self.relay.take())

    def close(self) -> None:
        """Ends the relay."""
        self.relay.close()


def events_of(said: Mapping[str, Any], config: Any, group: Group, block_tokens: int,
              kv_cache_groups: Sequence[Any]) -> KvEvents:
    """As kv_connector_extra_config says. Raises ValueError, which names what is wrong."""
    rank = int(getattr(config.parallel_config, "data_parallel_rank", 0) or 0)
    settings = RelaySettings.of(said, rank=rank)
    own = getattr(config, "kv_events_config", None)
    if settings.endpoint is None and not getattr(own, "enable_kv_cache_events", False):
        raise ValueError("kv_events has no endpoint, and vLLM publishes no events itself: name an "
                         "endpoint, or give vLLM a --kv-events-config")
    if settings.endpoint is None and settings.replay_endpoint is not None:
        raise ValueError(f"kv_events.replay_endpoint is {settings.replay_endpoint}, and there is "
                         "no endpoint: name one, or leave both to vLLM's --kv-events-config")
    model = config.model_config
    name = str(getattr(model, "served_model_name", None) or model.model)
    return KvEvents(Relay(settings, name, logger), group, block_tokens, kv_cache_groups)


def _external_hashes() -> Callable[[bytes], Any]:
    """As vLLM's own events have hashes."""
    try:
        from vllm.v1.core import kv_cache_utils  # pylint: disable=import-outside-toplevel

        found: Callable[[bytes], Any] = kv_cache_utils.maybe_convert_block_hash
        return found
    except (ImportError, AttributeError):
        return lambda block_hash: int.from_bytes(block_hash[-8:], "big")


def _main_of(kv_cache_groups: Sequence[Any]) -> Any:
    """Index and kind of the KV cache group under which blocks are announced: the first of full
    attention. A block is in the daemon with all its groups' bytes, or not at all."""
    for index, group in enumerate(kv_cache_groups):
        kind = type(group.kv_cache_spec).__name__
        if kind in ("FullAttentionSpec", "MLAAttentionSpec"):
            return index, "mla_attention" if kind.startswith("MLA") else "full_attention"
    return 0, None


def _in_vllms_classes(events: Iterable[Any]) -> List[Any]:
    if not events:
        return []
    from vllm.distributed import kv_events  # pylint: disable=import-outside-toplevel

    made = []
    for event in events:
        kind = getattr(kv_events, event["type"])
        fields = getattr(kind, "__struct_fields__", tuple(event))
        made.append(kind(**{name: value for name, value in event.items()
                            if name in fields and name != "type"}))
    return made
