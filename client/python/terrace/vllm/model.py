"""What vLLM's configuration says of its KV caches: what their Spaces are."""
import hashlib
import json
import os
import pathlib
import platform
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..pages import Pages
from . import drafts, kinds
from .messages import GroupLayout
from .revision import revision_of
from .worker import describe



class Piece(NamedTuple):
    """Layers of one KV cache group whose pages are alike: a Space of their own."""
    spec: Any
    layer_names: List[str]
    pages: Pages


def pieces_of(group: Any, kv_caches: Dict[str, Any], block_count: int) -> List[Piece]:
    """In the order of their first layers; one, where all layers of the group are of one size."""
    alike: Dict[Any, List[str]] = {}
    for name in group.layer_names:
        spec, tensor = kinds.spec_of_layer(group, name), kv_caches[name]
        looks = (kinds.name_of(spec), tuple(tensor.shape), tuple(tensor.stride()),
                 describe(tensor.dtype))
        alike.setdefault(looks, []).append(name)
    return [Piece(kinds.spec_of_layer(group, names[0]), names,
                  Pages(kv_caches, names, block_count)) for names in alike.values()]


def layout_of(config: Any, piece: Piece, index: int, revision: str, stage: Tuple[int, int],
              tensor: Any, part_bytes: Tuple[int, ...], block_count: int) -> GroupLayout:
    """What the Space of a piece of KV cache group `index` says. stage: which of how many. tensor:
    of its first layer."""
    spec, shape = piece.spec, tuple(tensor.shape)
    is_latent, is_state = kinds.is_latent(spec), kinds.is_state(spec)
    window = kinds.window_of(spec)
    # Ranks of one latent differ in the tokens they have of it; of others in the heads, at least.
    tp_size = 1 if is_latent else config.parallel_config.tensor_parallel_size
    shards = kinds.shards_of(config.parallel_config) if getattr(spec, "dcp_sharded", True) else 1
    fields = {
        "model": str(config.model_config.model),
        "revision": revision,
        "dtype": describe(tensor.dtype),
        "quantisation": str(getattr(config.cache_config, "cache_dtype", "auto")),
        "layout": (_layout_name(tensor, shape, block_count,
                                _backend_of(config, piece.layer_names[0]))
                   + _interleaving(config.parallel_config, shards)
                   + (_states(config, spec) if is_state else "")),
        "layers": len(piece.layer_names),
        "kv_heads": int(getattr(spec, "num_kv_heads", 1)),
        "head_size": int(getattr(spec, "head_size", shape[-1])),
        "block_tokens": kinds.block_tokens_of(spec, shards),
        "salt": computation_of(config.model_config),
        "attention": ("state" if is_state else "chunked" if kinds.is_chunked(spec)
                      else "sliding" if window else "mla" if is_latent else "gqa"),
        "window_tokens": window,
        "tp_size": tp_size,
        "cp_size": shards,
        "pp_rank": stage[0],
        "pp_size": stage[1],
        "attention_group": index,
    }
    return GroupLayout(fields, part_bytes, max(tp_size, shards), window, kinds.is_chunked(spec),
                       is_state)


def _states(config: Any, spec: Any) -> str:
    """What a state's bytes mean, as far as its specification and options say."""
    said = [str(spec), str(getattr(config, "mamba_config", None)),
            os.environ.get("VLLM_SSM_CONV_STATE_LAYOUT", "")]
    return "-states-" + hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _interleaving(parallel: Any, shards: int) -> str:
    """Which tokens of a block a shard has."""
    if shards == 1:
        return ""
    sizes = [getattr(parallel, f"{name}_kv_cache_interleave_size", 1) for name in ("cp", "dcp")]
    return "-shards-of-" + "-".join(map(str, sizes))


def _layout_name(tensor: Any, shape: Tuple[int, ...], block_count: int, backend: str) -> str:
    """What the bytes of a page depend on besides the Space's own fields."""
    sizes = "x".join("B" if n == block_count else str(n) for n in shape)
    order = "".join(str(i) for i, _ in sorted(enumerate(tensor.stride()), key=lambda s: -s[1]))
    return f"{packing_of(tensor)}-{backend}{sizes}-{order}"


def packing_of(tensor: Any) -> str:
    """The CPU platform packs pages for the machine's instructions, as its version pleases; on GPUs
    a generation's kernels have orders of their own."""
    import torch  # pylint: disable=import-outside-toplevel
    import vllm  # pylint: disable=import-outside-toplevel

    if tensor.device.type == "cuda":
        machine = "cuda-{}.{}".format(*torch.cuda.get_device_capability(tensor.device))
    else:
        cpu = getattr(torch.backends, "cpu", None)  # since torch 2.0
        capability = (cpu.get_cpu_capability() if cpu else platform.machine()).replace(" ", "")
        has_tiles = getattr(getattr(torch, "cpu", None), "_is_amx_tile_supported", lambda: False)()
        machine = f"cpu-{capability}{'-AMX' if has_tiles else ''}"
    return f"vllm-{vllm.__version__}-{machine}"


def _backend_of(config: Any, layer_name: str) -> str:
    """Which kernels, where the version says so: their pages can be of one shape and differ."""
    name = kernels_of(config, layer_name)
    return f"{name}-" if name else ""


def kernels_of(config: Any, layer_name: str) -> str:
    """vLLM's name of what reads a layer's pages; "" where the version does not say."""
    layers = getattr(getattr(config, "compilation_config", None), "static_forward_context", None)
    layer: Any = (layers or {}).get(layer_name)
    return str(layer.get_attn_backend().get_name()) if hasattr(layer, "get_attn_backend") else ""


# Of vLLM's multimodal_config: what media become before the model sees them.
_OF_MEDIA = ("mm_processor_kwargs", "media_io_kwargs")


def computation_of(model: Any) -> str:
    """What the weights alone do not say, since options override it: the model's configuration as
    it is used, the type that is computed in, the weights' quantisation, the length by which some
    models turn keys or temper attention, tokens of videos that are left out, how images and other
    media are read and prepared (vLLM's hashes of them name a request's own options alone); and
    vLLM's own digest of all that changes the graph, which is silent of media."""
    configuration: Any = getattr(model, "hf_config", None)
    if hasattr(configuration, "to_dict"):
        configuration = configuration.to_dict()
    videos: Any = getattr(model, "multimodal_config", None)
    said = [configuration, describe(getattr(model, "dtype", "")),
            str(getattr(model, "quantization", None)), str(getattr(model, "max_model_len", None)),
            str(getattr(videos, "video_pruning_rate", None)),
            str(getattr(videos, "video_pruning_method", None))]
    said += [[name, getattr(videos, name)] for name in _OF_MEDIA if getattr(videos, name, None)]
    if hasattr(model, "compute_hash"):
        said.append(model.compute_hash())
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:32]


def weights_of(config: Any, revision: Optional[str]) -> str:
    """Of the model, and of a draft that has a KV cache, too. revision: as the configuration names
    it, if it does; a branch of the draft's is then taken for what it says."""
    found = revision or revision_of(config)
    method = drafts.method_of(config)
    if not method:
        return found
    draft = getattr(config.speculative_config, "draft_model_config", None)
    said = [method, computation_of(draft)]
    if draft is not None and str(draft.model) != str(config.model_config.model):
        said += [str(draft.model), str(draft.revision)]
        if not revision or pathlib.Path(str(draft.model)).is_dir():
            said.append(revision_of(config, draft))
    return f"{found}-draft-{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]}"


def has_shared_seed(config: Any) -> bool:
    """Whether another process with this configuration has the same block hashes."""
    if os.environ.get("PYTHONHASHSEED") is not None:
        return True
    from vllm.v1.core import kv_cache_utils  # pylint: disable=import-outside-toplevel

    if not hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED"):
        return False  # older: always at random
    return str(getattr(config.cache_config, "prefix_caching_hash_algo", "")).startswith("sha256")
