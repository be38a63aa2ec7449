"""KV caches of which it is known how their pages lie: that are stored smaller by a codec of
Terrace's (`codec` of the extra configuration), or by heads (`head_units`, heads.py).

A codec reads numbers, so it must be known how a page lies: a tensor of every layer whose dimensions
are blocks, heads, tokens, and a head's keys and then its values. FlashAttention, Triton's kernels
and FlashInfer have it so, in whatever strides, where the cache is of the computation's own type.
Whatever else there is, is refused by name. Such blocks are those of another Space, of Terrace's own
order: instances share them whatever their strides, versions and kernels are.
"""
import dataclasses
import itertools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import TerraceError
from ..paged import Device, PagedCache
from ..space import Space, part_bytes_of_layers
from . import kinds

CODECS = ("int8", "fp8", "int4")
KERNELS = ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER")
_SPECS = ("FullAttentionSpec", "SlidingWindowSpec")
_NUMBERS = {"bfloat16": ("bf16", 2), "float16": ("fp16", 2), "float32": ("fp32", 4)}
_AXES = "BHTPD"  # a letter a dimension, as PagedCache has them


class Asked(NamedTuple):
    """What of the extra configuration asks for pages of which it is known how they lie."""
    name: str
    value: Any
    kernels: Tuple[str, ...] = KERNELS  # whose pages it can be asked of

    def refusal(self, why: str) -> str:
        return f"{self.name} is {self.value!r}, and {why}"

    def leave_out(self, why: str) -> str:
        return f"{self.refusal(why)}; leave {self.name} out"


def refusal_of_codec(codec: Optional[str], config: Any, kv_cache_config: Any) -> Optional[str]:
    """Why nothing of such a model can be encoded."""
    if codec is None:
        return None
    if codec not in CODECS:
        return f"codec is {codec!r}: there are {', '.join(CODECS)}"
    return refusal_of_configuration(Asked("codec", codec), config, kv_cache_config)


def refusal_of_configuration(asked: Asked, config: Any, kv_cache_config: Any) -> Optional[str]:
    """Why the pages of such a model are not known."""
    for spec in itertools.chain(*map(kinds.specs_of, kv_cache_config.kv_cache_groups)):
        name = kinds.name_of(spec)
        if name not in _SPECS:
            return asked.leave_out(f"a KV cache group is a {name}: it is served of keys and values "
                                   f"of heads ({', '.join(_SPECS)}), not of others")
    kind = str(getattr(config.cache_config, "cache_dtype", "auto"))
    if kind not in ("auto", *_NUMBERS):
        return asked.refusal(f"cache_dtype is {kind!r}: what is quantised already stays as it is; "
                             "leave one of them out")
    shards = kinds.shards_of(config.parallel_config)
    if shards > 1:
        return asked.leave_out(f"decode_context_parallel_size is {shards}: a page is a part of a "
                               "block then, which is not served yet")
    return None


@dataclasses.dataclass
class CodedPages:
    """The pages of one KV cache group as numbers."""
    layers: List[Any]  # of each a tensor with the dimensions of _AXES
    block_count: int
    kernel_tokens: int  # of a block of the kernels', which may be smaller

    def cache(self, device: Device, space: Space) -> PagedCache:
        """Copies these pages to and from the Space's slots."""
        return PagedCache(device, space, self.layers, axes=_AXES, page_count=self.block_count,
                          block_tokens=self.kernel_tokens)

    def of_heads(self, first: int, count: int) -> "CodedPages":
        """The part of each page that these heads are."""
        return dataclasses.replace(self, layers=[
            layer.narrow(_AXES.index("H"), first, count) for layer in self.layers])


def pages_of(asked: Asked, spec: Any, tensors: Sequence[Any], kernels: str, block_count: int
             ) -> Tuple[Optional[CodedPages], str]:
    """Of one KV cache group; None, and why, where it is not known how they lie. tensors: of the
    layers; kernels: vLLM's name of those that read them."""
    if kernels not in asked.kernels:
        return None, asked.leave_out(f"the attention kernels are {kernels or 'unknown'}: how their "
                                     f"pages lie is known of {', '.join(asked.kernels)}")
    layers: Dict[int, Any] = {}
    for tensor in tensors:
        shape, kind = tuple(tensor.shape), str(tensor.dtype).replace("torch.", "")
        if kind not in _NUMBERS:
            return None, asked.leave_out(f"a layer is of {kind}: it is served of "
                                         f"{', '.join(_NUMBERS)}")
        if (len(shape) != 4 or shape[1] != spec.num_kv_heads or shape[3] != 2 * spec.head_size
                or shape[0] * shape[2] != block_count * spec.block_size):
            return None, asked.leave_out(
                f"a layer's shape is {shape}: {block_count} blocks of {spec.block_size} tokens, "
                f"{spec.num_kv_heads} heads and twice {spec.head_size} numbers were expected")
        layers.setdefault(tensor.data_ptr(), tensor.unflatten(-1, (2, spec.head_size)))
    return CodedPages(list(layers.values()), block_count, tuple(tensors[0].shape)[2]), ""


def fields_of(codec: Optional[str], fields: Dict[str, Any], layer_count: int, kind: str
              ) -> Tuple[Dict[str, Any], Tuple[int, ...], Optional[str]]:
    """Fields and part_bytes of the Space of these pages, under the codec if there is one, from the
    fields of the engine's own pages; and why there is none."""
    name, item_bytes = _NUMBERS[kind]
    layer_bytes = (2 * fields["block_tokens"] * fields["kv_heads"] * fields["head_size"]
                   * item_bytes)
    raw: Dict[str, Any] = {**fields, "dtype": name, "quantisation": "", "layout": "nhd",
                           "layers": layer_count}
    part_bytes = part_bytes_of_layers(layer_count, layer_bytes)
    if codec is None:
        return raw, part_bytes, None
    try:
        space = Space(**raw, part_bytes=part_bytes).encoded(codec)
    except TerraceError as error:
        return fields, (), f"codec is {codec!r}: {error}"
    return {**raw, "quantisation": space.quantisation}, space.part_bytes, None
