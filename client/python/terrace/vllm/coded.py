"""KV caches that are stored smaller, by a codec of Terrace's: `codec` of the extra configuration.

A codec reads numbers, so it must be known how a page lies: a tensor of every layer whose dimensions
are blocks, heads, tokens, and a head's keys and then its values. FlashAttention, Triton's kernels
and FlashInfer have it so, in whatever strides, where the cache is of the computation's own type.
Whatever else there is, is refused by name. Blocks under a codec are those of another Space, of
Terrace's own order: instances share them whatever their strides, versions and kernels are.
"""
import dataclasses
import itertools
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..errors import TerraceError
from ..paged import Device, PagedCache
from ..space import Space, part_bytes_of_layers
from . import kinds

CODECS = ("int8", "fp8", "int4")
_KERNELS = ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER")
_SPECS = ("FullAttentionSpec", "SlidingWindowSpec")
_NUMBERS = {"bfloat16": ("bf16", 2), "float16": ("fp16", 2), "float32": ("fp32", 4)}
_AXES = "BHTPD"  # a letter a dimension, as PagedCache has them


def refusal_of_configuration(codec: Optional[str], config: Any, kv_cache_config: Any
                             ) -> Optional[str]:
    """Why nothing of such a model can be encoded."""
    if codec is None:
        return None
    if codec not in CODECS:
        return f"codec is {codec!r}: there are {', '.join(CODECS)}"
    for spec in itertools.chain(*map(kinds.specs_of, kv_cache_config.kv_cache_groups)):
        name = kinds.name_of(spec)
        if name not in _SPECS:
            return (f"codec is {codec!r}, and a KV cache group is a {name}: keys and values of "
                    "heads are encoded, latents and states are not; leave codec out")
    kind = str(getattr(config.cache_config, "cache_dtype", "auto"))
    if kind not in ("auto", *_NUMBERS):
        return (f"codec is {codec!r}, and cache_dtype is {kind!r}: what is quantised already stays "
                "as it is; leave one of them out")
    shards = getattr(config.parallel_config, "decode_context_parallel_size", 1)
    if shards > 1:
        return (f"codec is {codec!r}, and decode_context_parallel_size is {shards}: a page is a "
                "part of a block then, which is not served yet; leave codec out")
    return None


@dataclasses.dataclass
class CodedPages:
    """The pages of one KV cache group as a codec reads them."""
    layers: List[Any]  # of each a tensor with the dimensions of _AXES
    block_count: int
    kernel_tokens: int  # of a block of the kernels', which may be smaller

    def cache(self, device: Device, space: Space) -> PagedCache:
        """Copies these pages to and from encoded slots."""
        return PagedCache(device, space, self.layers, axes=_AXES, page_count=self.block_count,
                          block_tokens=self.kernel_tokens)


def pages_of(codec: str, spec: Any, tensors: Sequence[Any], kernels: str, block_count: int
             ) -> Tuple[Optional[CodedPages], str]:
    """Of one KV cache group; None, and why, where it is not known how they lie. tensors: of the
    layers; kernels: vLLM's name of those that read them."""
    said = f"codec is {codec!r}, and "
    if kernels not in _KERNELS:
        return None, (f"{said}the attention kernels are {kernels or 'unknown'}: how their pages "
                      f"lie is known of {', '.join(_KERNELS)}; leave codec out")
    layers: Dict[int, Any] = {}
    for tensor in tensors:
        shape, kind = tuple(tensor.shape), str(tensor.dtype).replace("torch.", "")
        if kind not in _NUMBERS:
            return None, f"{said}a layer is of {kind}: {', '.join(_NUMBERS)} are encoded"
        if (len(shape) != 4 or shape[1] != spec.num_kv_heads or shape[3] != 2 * spec.head_size
                or shape[0] * shape[2] != block_count * spec.block_size):
            return None, (f"{said}a layer's shape is {shape}: {block_count} blocks of "
                          f"{spec.block_size} tokens, {spec.num_kv_heads} heads and twice "
                          f"{spec.head_size} numbers were expected; leave codec out")
        layers.setdefault(tensor.data_ptr(), tensor.unflatten(-1, (2, spec.head_size)))
    return CodedPages(list(layers.values()), block_count, tuple(tensors[0].shape)[2]), ""


def encode(codec: str, fields: Dict[str, Any], layer_count: int, kind: str
           ) -> Tuple[Dict[str, Any], Tuple[int, ...], Optional[str]]:
    """A Space's fields and part_bytes under the codec, from those of the engine's own pages; and
    why there are none."""
    name, item_bytes = _NUMBERS[kind]
    layer_bytes = (2 * fields["block_tokens"] * fields["kv_heads"] * fields["head_size"]
                   * item_bytes)
    raw: Dict[str, Any] = {**fields, "dtype": name, "quantisation": "", "layout": "nhd",
                           "layers": layer_count}
    try:
        space = Space(**raw, part_bytes=part_bytes_of_layers(layer_count, layer_bytes)
                      ).encoded(codec)
    except TerraceError as error:
        return fields, (), f"codec is {codec!r}: {error}"
    return {**raw, "quantisation": space.quantisation}, space.part_bytes, None
