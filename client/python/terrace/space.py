"""Space: everything that must be equal for KV bytes to be interchangeable; SpaceGroup: the Spaces
of one model instance, ranks in order."""
import ctypes
import dataclasses
import hashlib
import json
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

from . import _native
from .errors import Invalid, from_status, number, text_of, wrong_type

ATTENTION_KINDS = ("mha", "gqa", "mla", "sliding", "state", "chunked")
PARTS_MAX = 128
CODEC_PREFIX = "terrace:"  # of a quantisation that Terrace itself makes
CHUNK_LAYOUT = "chunk-nhd"  # of blocks that are used away from their prompt

# Bytes of one element, by the names in use for KV caches.
ELEMENT_BYTES = {
    "float32": 4, "fp32": 4, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2,
    "float8_e4m3fn": 1, "fp8_e4m3": 1, "float8_e5m2": 1, "fp8_e5m2": 1, "int8": 1, "uint8": 1,
}


@dataclasses.dataclass(frozen=True)
class Space:
    """One rank's share of one attention group of one model.

    part_bytes: bytes of each part of a block in its slot, in layer order, 1 to 128 parts. Every
    field is part of the identity: Spaces that differ anywhere do not share a byte.
    """
    model: str
    revision: str
    dtype: str
    layout: str
    layers: int
    kv_heads: int
    head_size: int
    block_tokens: int
    part_bytes: Tuple[int, ...]
    attention: str = "gqa"
    adapter: str = ""
    quantisation: str = ""
    salt: str = ""
    window_tokens: int = 0
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_rank: int = 0
    cp_size: int = 1
    attention_group: int = 0
    is_remote: bool = False

    @property
    def block_bytes(self) -> int:
        """Payload bytes of one block."""
        return sum(self.part_bytes)

    @property
    def engine_part_bytes(self) -> Tuple[int, ...]:
        """Bytes of each part as they are written and read: other than part_bytes under a codec."""
        if not self.quantisation.startswith(CODEC_PREFIX):
            return self.part_bytes
        return self._codec_parts()[1]

    def encoded(self, codec: str, part_count: Optional[int] = None) -> "Space":
        """The Space of the same blocks under a lossy codec of Terrace's: "int8", "fp8" or "int4".

        It is another Space: what is stored under one is not found under the other. The engine
        writes and reads what it did, in parts of whole layers, each layer's keys [block_tokens,
        kv_heads, head_size] and then its values (layout "nhd").
        """
        if not isinstance(codec, str):
            raise wrong_type("codec", codec, "\"int8\", \"fp8\" or \"int4\"")
        if self.quantisation:
            raise Invalid(f"quantisation is {self.quantisation!r}: what is quantised already stays "
                          "as it is")
        if self.is_of_chunks:
            raise Invalid(f"layout is {self.layout!r}: encode first, then make chunks of it")
        count = len(self.part_bytes) if part_count is None else part_count
        return self._cut_in(count, quantisation=CODEC_PREFIX + codec)

    @property
    def is_of_chunks(self) -> bool:
        """Whether its blocks are used away from the prompt they were computed in."""
        return self.layout == CHUNK_LAYOUT

    def chunks(self) -> "Space":
        """The Space of the same blocks as chunks, such as retrieved documents: they are found by
        their own tokens, whatever stood before them, and a PagedCache with a Rope turns their keys
        to where they are wanted. Of layout "nhd", raw or encoded; part 0 is then a header.

        It is another Space, in a group of its own. A chunk's keys are exact where it stood; used
        elsewhere they are an approximation, because no token has seen what is before it now. Which
        ones to compute again is the engine's matter.
        """
        if self.layout != "nhd":
            raise Invalid(f"layout is {self.layout!r}: chunks are of 'nhd', a layer's keys "
                          "[tokens][heads][head_size] and then its values")
        return self._cut_in(len(self.part_bytes) + 1, layout=CHUNK_LAYOUT)

    def _cut_in(self, part_count: int, **fields: Any) -> "Space":
        """The Space of these fields, in so many parts of the sizes that they then have."""
        named = dataclasses.replace(self, part_bytes=(1,) * part_count, **fields)
        return dataclasses.replace(
            named, part_bytes=named._codec_parts()[0])  # pylint: disable=protected-access

    def _codec_parts(self) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
        native, _keep = self._native()
        in_slots, engine = [(ctypes.c_uint64 * max(len(self.part_bytes), 1))() for _ in range(2)]
        why = ctypes.create_string_buffer(1024)
        status = _native.lib.terrace_space_codec_parts(ctypes.byref(native), in_slots, engine, why,
                                                       len(why))
        if status:
            raise from_status(status, f"quantisation {self.quantisation!r}", why.value.decode())
        return tuple(in_slots), tuple(engine)

    def part_offset(self, part: int) -> int:
        """Where part `part` begins in a slot, in bytes."""
        native, _keep = self._native()
        offset = ctypes.c_uint64()
        status = _native.lib.terrace_space_layout(ctypes.byref(native), number("part", part),
                                                  ctypes.byref(offset), None)
        if status:
            raise from_status(status, f"part {part} of {len(self.part_bytes)} of the Space")
        return offset.value

    def _native(self) -> Tuple[Any, Any]:
        if self.attention not in ATTENTION_KINDS:
            raise Invalid(f"attention is {self.attention!r}: use one of {ATTENTION_KINDS}")
        parts = (ctypes.c_uint64 * max(len(self.part_bytes), 1))(
            *(number(f"part_bytes[{part}]", value, 64)
              for part, value in enumerate(self.part_bytes)))
        texts = {name: text_of(name, getattr(self, name))
                 for name in ("model", "revision", "adapter", "dtype", "quantisation", "layout",
                              "salt")}
        numbers = {name: number(name, getattr(self, name))
                   for name in ("layers", "kv_heads", "head_size", "window_tokens", "block_tokens",
                                "tp_rank", "tp_size", "pp_rank", "pp_size", "cp_rank", "cp_size",
                                "attention_group")}
        native = _native.Space(attention=ATTENTION_KINDS.index(self.attention), part_bytes=parts,
                               part_count=len(self.part_bytes), is_remote=int(self.is_remote),
                               **texts, **numbers)
        return native, (parts, texts)

    @classmethod
    def from_hf_config(cls, config: Union[Mapping[str, Any], Any], *, revision: str,
                       model: Optional[str] = None, dtype: Optional[str] = None,
                       layout: str = "layer-kv-hnd", block_tokens: int = 16, tp_rank: int = 0,
                       tp_size: int = 1, adapter: str = "", salt: str = "") -> "Space":
        """The Space of a HuggingFace model configuration (a dict or a PretrainedConfig).

        One part a layer, or a few layers where there are more than 128: K then V of
        [kv_heads, block_tokens, head_size] each; of an MLA model one latent of kv_lora_rank +
        qk_rope_head_dim per token. `revision` has to change whenever the weights do, and `adapter`
        with those of a LoRA adapter. All else of the configuration, the scaling of positions among
        it, goes into `salt` as a digest, behind yours. Invalid for one that cannot be told.
        """
        computed = computation_of(config)
        get = config.get if isinstance(config, Mapping) else lambda k, d=None: getattr(config, k, d)

        def need(name: str) -> Any:
            value = get(name)
            if value is None:
                raise Invalid(f"the model configuration has no {name!r}: pass the Space's fields "
                              "yourself")
            return value

        layers, heads = need("num_hidden_layers"), need("num_attention_heads")
        dtype = str(dtype or get("dtype") or need("torch_dtype")).replace("torch.", "")
        if dtype not in ELEMENT_BYTES:
            raise Invalid(f"dtype is {dtype!r}: use one of {sorted(ELEMENT_BYTES)}")
        if get("kv_lora_rank"):
            attention, kv_heads = "mla", 1
            head_size = get("kv_lora_rank") + need("qk_rope_head_dim")
            planes = 1
        else:
            total = get("num_key_value_heads") or heads
            kv_heads = max(1, total // tp_size)
            attention = "mha" if total == heads else "gqa"
            head_size = get("head_dim") or need("hidden_size") // heads
            planes = 2
        layer_bytes = planes * kv_heads * head_size * block_tokens * ELEMENT_BYTES[dtype]
        return cls(model=model or get("_name_or_path") or need("model_type"), revision=revision,
                   dtype=dtype, layout=layout, layers=layers, kv_heads=kv_heads,
                   head_size=head_size, block_tokens=block_tokens, attention=attention,
                   part_bytes=part_bytes_of_layers(layers, layer_bytes), adapter=adapter,
                   salt=f"{salt}-{computed}" if salt else computed, tp_rank=tp_rank,
                   tp_size=tp_size)


# Of a configuration, at any depth: what changes nothing of what is computed.
_NOT_COMPUTED = frozenset((
    "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "use_cache",
    "output_attentions", "output_hidden_states", "return_dict"))


def computation_of(config: Union[Mapping[str, Any], Any]) -> str:
    """A digest of a model's configuration, but for names and paths, and for its own type, which is
    a field of the Space. Two that differ in anything else have two; Invalid for what cannot be told
    from another."""
    said = config
    if not isinstance(config, Mapping) and callable(getattr(config, "to_dict", None)):
        said = config.to_dict()
    if not isinstance(said, Mapping):
        raise Invalid(f"the model configuration is of type {type(config).__name__}, of which not "
                      "all that changes what is computed can be told: pass a dict, or one of "
                      "transformers")
    own = {name: value for name, value in said.items() if name not in ("dtype", "torch_dtype")}
    try:
        text = json.dumps(_plain(own, "the model configuration"), sort_keys=True)
    except RecursionError:
        raise Invalid("the model configuration is within itself, or too deep: pass what JSON has"
                      ) from None
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any, where: str) -> Any:
    """As JSON has it, so that equal texts are equal values."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{where}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, Mapping):
        names = [name for name in value if not isinstance(name, (str, int))]
        if not names and len(set(map(str, value))) == len(value):
            return {str(name): _plain(each, f"{where}[{name!r}]") for name, each in value.items()
                    if name not in _NOT_COMPUTED}
        raise Invalid(f"{where} has names that are no texts, or are alike: pass it as JSON has it")
    raise Invalid(f"{where} is of type {type(value).__name__}, which cannot be told from another: "
                  "pass what JSON has, or leave it out and name it in salt")


def part_bytes_of_layers(layers: int, layer_bytes: int) -> Tuple[int, ...]:
    """Parts of whole layers, one each as long as there are no more than 128."""
    layers_per_part = -(-layers // PARTS_MAX)
    full, rest = divmod(layers, layers_per_part)
    return ((layers_per_part * layer_bytes,) * full
            + ((rest * layer_bytes,) if rest else ()))


@dataclasses.dataclass(frozen=True)
class SpaceGroup:
    """All ranks and attention groups of one model instance. The name is for people: equal members
    are one group, under the name that it had first."""
    name: str
    members: Sequence[Space]

    def check(self) -> str:
        """The group's id in hex; needs no daemon. Raises Invalid with the field, the value, the
        limit and the remedy."""
        native, _keep = self._native()
        found = _native.Id()
        why = ctypes.create_string_buffer(1024)
        status = _native.lib.terrace_group_spec_check(ctypes.byref(native), ctypes.byref(found),
                                                      why, len(why))
        if status:
            raise from_status(status, f"group {self.name!r}", why.value.decode())
        return str(found)

    def _native(self) -> Tuple[Any, Any]:
        for member in self.members:
            if not isinstance(member, Space):
                raise wrong_type("a member", member, "a Space")
        members = [member._native() for member in self.members]  # pylint: disable=protected-access
        pointers = (ctypes.POINTER(_native.Space) * max(len(members), 1))(
            *[ctypes.pointer(native) for native, _ in members])
        return _native.GroupSpec(member_count=len(members), name=text_of("name", self.name),
                                 members=pointers), (members, pointers)
