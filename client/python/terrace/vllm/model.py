"""What vLLM's configuration says of its KV caches: whether they are served, and what their Spaces
are."""
import hashlib
import json
import logging
import os
import pathlib
import platform
import re
import uuid
from typing import Any, Iterable, Optional, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from .messages import GroupLayout
from .worker import describe

try:
    from vllm.v1.core.sched import output as _output
except ImportError:
    _output = None

logger = logging.getLogger("vllm.terrace")
_SPECS = ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "MambaSpec")
_WINDOWED = ("SlidingWindowSpec", "MambaSpec")


def shards_of(parallel: Any) -> int:
    """Tensor parallel ranks in a row that share out the tokens of a block between them."""
    return getattr(parallel, "decode_context_parallel_size", 1)


def block_tokens_of(spec: Any, shards: int) -> int:
    """What the scheduler, and a block's hash, count as one block: the same block of every shard."""
    return spec.block_size * (shards if getattr(spec, "dcp_sharded", True) else 1)


def has_window(group: Any) -> bool:
    """A KV cache group that keeps only what the next token needs."""
    return type(group.kv_cache_spec).__name__ in _WINDOWED


def refusal_of(kv_cache_config: Any, shards: int = 1) -> Optional[str]:
    """Why these KV cache groups are not served."""
    groups = kv_cache_config.kv_cache_groups if kv_cache_config is not None else ()
    if not groups:
        return "the model has no KV cache groups"
    for group in groups:
        name = type(group.kv_cache_spec).__name__
        if name not in _SPECS:
            return f"a KV cache group is a {name}: only {', '.join(_SPECS)} are served yet"
    if all(type(group.kv_cache_spec).__name__ == "MambaSpec" for group in groups):
        return "all layers have states: a group of attention beside them is needed"
    if shards > 1 and any(type(group.kv_cache_spec).__name__ in _WINDOWED for group in groups):
        return (f"decode_context_parallel_size is {shards}, beside a group with a window or "
                "states: that is not served yet")
    sizes = {block_tokens_of(group.kv_cache_spec, shards) for group in groups}
    if len(sizes) > 1:
        return f"the KV cache groups have blocks of {sorted(sizes)} tokens: only one size is served"
    if len(groups) == 1 and not has_window(groups[0]):
        return None
    if len(groups) > 1 and any(getattr(group, "is_eagle_group", False) for group in groups):
        return "a KV cache group belongs to a draft model, beside others: that is not served yet"
    if not hasattr(KVConnectorBase_V1, "get_transfer_results"):
        return ("the model has several KV cache groups, or a window, and this vLLM cannot be told "
                "that a load has failed: start it with --disable-hybrid-kv-cache-manager")
    return None


def refusal_of_states(kv_cache_config: Any, config: Any) -> Optional[str]:
    """Why groups of states, if there are any, are not served."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups
             if type(group.kv_cache_spec).__name__ == "MambaSpec"]
    if not specs:
        return None
    modes = {getattr(spec, "mamba_cache_mode", None) for spec in specs}
    if modes != {"align"}:
        return (f"states in mamba_cache_mode {sorted(map(str, modes))}: they are at the ends of "
                "blocks in 'align' alone; start vLLM with --enable-prefix-caching")
    if not hasattr(_output, "KVConnectorBlockState"):
        return "this vLLM does not tell a connector which blocks have a state: 0.32 does"
    if any(getattr(spec, "num_speculative_blocks", 0) for spec in specs):
        return "states with speculative decoding: that is not served yet"
    block_tokens = specs[0].block_size
    fine = getattr(kv_cache_config, "hash_block_size", None) or block_tokens
    if fine != block_tokens:
        return (f"prefix_match_unit is {fine} beside states in blocks of {block_tokens} tokens: "
                "leave it out")
    for name in ("use_replayssm", "use_kda_recoverssm"):
        if getattr(config.cache_config, name, False):
            return f"{name} is set: what of a state is in its block then is not known; leave it out"
    return None


def layout_of(config: Any, group: Any, index: int, revision: str, stage: Tuple[int, int],
              tensor: Any, part_bytes: Tuple[int, ...], block_count: int) -> GroupLayout:
    """What the Space of one KV cache group says. stage: which of how many."""
    spec, shape = group.kv_cache_spec, tuple(tensor.shape)
    is_latent = "MLA" in type(spec).__name__
    window = 0
    if type(spec).__name__ == "SlidingWindowSpec":
        # What the next token attends to beside itself; the daemon needs one at least.
        window = max(1, spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0))
    is_state = type(spec).__name__ == "MambaSpec"
    if is_state:
        window = 1
    # Ranks of one latent differ in the tokens they have of it; of others in the heads, at least.
    tp_size = 1 if is_latent else config.parallel_config.tensor_parallel_size
    shards = shards_of(config.parallel_config) if getattr(spec, "dcp_sharded", True) else 1
    fields = {
        "model": str(config.model_config.model),
        "revision": revision,
        "dtype": describe(tensor.dtype),
        "quantisation": str(getattr(config.cache_config, "cache_dtype", "auto")),
        "layout": (_layout_name(tensor, shape, block_count,
                                _backend_of(config, group.layer_names[0]))
                   + _interleaving(config.parallel_config, shards)
                   + (_states(config, spec) if is_state else "")),
        "layers": len(group.layer_names),
        "kv_heads": int(getattr(spec, "num_kv_heads", 1)),
        "head_size": int(getattr(spec, "head_size", shape[-1])),
        "block_tokens": block_tokens_of(spec, shards),
        "salt": computation_of(config.model_config),
        "attention": ("state" if is_state else "sliding" if window else "mla" if is_latent
                      else "gqa"),
        "window_tokens": window,
        "tp_size": tp_size,
        "cp_size": shards,
        "pp_rank": stage[0],
        "pp_size": stage[1],
        "attention_group": index,
    }
    return GroupLayout(fields, part_bytes, max(tp_size, shards), window, is_state)


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
    """What the bytes of a page depend on besides the Space's own fields. The CPU platform packs
    pages for the machine's instructions, as its version pleases; on GPUs a generation's kernels
    have orders of their own."""
    import torch  # pylint: disable=import-outside-toplevel
    import vllm  # pylint: disable=import-outside-toplevel

    sizes = "x".join("B" if n == block_count else str(n) for n in shape)
    order = "".join(str(i) for i, _ in sorted(enumerate(tensor.stride()), key=lambda s: -s[1]))
    if tensor.device.type == "cuda":
        machine = "cuda-{}.{}".format(*torch.cuda.get_device_capability(tensor.device))
    else:
        cpu = getattr(torch.backends, "cpu", None)  # since torch 2.0
        capability = (cpu.get_cpu_capability() if cpu else platform.machine()).replace(" ", "")
        has_tiles = getattr(getattr(torch, "cpu", None), "_is_amx_tile_supported", lambda: False)()
        machine = f"cpu-{capability}{'-AMX' if has_tiles else ''}"
    return f"vllm-{vllm.__version__}-{machine}-{backend}{sizes}-{order}"


def _backend_of(config: Any, layer_name: str) -> str:
    """Which kernels, where the version says so: their pages can be of one shape and differ."""
    name = kernels_of(config, layer_name)
    return f"{name}-" if name else ""


def kernels_of(config: Any, layer_name: str) -> str:
    """vLLM's name of what reads a layer's pages; "" where the version does not say."""
    layers = getattr(getattr(config, "compilation_config", None), "static_forward_context", None)
    layer: Any = (layers or {}).get(layer_name)
    return str(layer.get_attn_backend().get_name()) if hasattr(layer, "get_attn_backend") else ""


def computation_of(model: Any) -> str:
    """What the weights alone do not say, since options override it: the model's configuration as
    it is used, the type that is computed in, the weights' quantisation."""
    configuration: Any = getattr(model, "hf_config", None)
    if hasattr(configuration, "to_dict"):
        configuration = configuration.to_dict()
    said = [configuration, describe(getattr(model, "dtype", "")),
            str(getattr(model, "quantization", None))]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:32]


def revision_of(config: Any) -> str:
    """A digest of what the weights come from; a random word if that is unknown."""
    model, load = config.model_config, config.load_config
    path = pathlib.Path(str(model.model))
    if describe(getattr(load, "load_format", "")).endswith("dummy"):
        seed = getattr(model, "seed", 0)
        return f"dummy-{seed}-" + _digest_of([path / "config.json"])
    if path.is_dir():
        return "files-" + _digest_of(sorted(p for p in path.iterdir() if p.is_file()))
    for commit in (getattr(model.hf_config, "_commit_hash", None), model.revision):
        if re.fullmatch("[0-9a-f]{40}", str(commit)):  # a branch or a tag moves
            return str(commit)
    logger.warning("terrace: the revision of %s is unknown, so nothing is shared with others; name "
                   "it as 'revision' in kv_connector_extra_config", model.model)
    engine = getattr(config.kv_transfer_config, "engine_id", None)  # one for all ranks
    return f"private-{engine or uuid.uuid4().hex}"


def _digest_of(paths: Iterable[pathlib.Path]) -> str:
    """Of names, sizes and times; of the text of what is small."""
    digest = hashlib.sha256()
    for path in paths:
        if not path.exists():
            continue
        about = path.stat()
        digest.update(f"{path.name} {about.st_size}\n".encode())
        if about.st_size < 1 << 20:
            digest.update(path.read_bytes())
        else:
            digest.update(str(about.st_mtime_ns).encode())
    return digest.hexdigest()[:32]


def has_shared_seed(config: Any) -> bool:
    """Whether another process with this configuration has the same block hashes."""
    if os.environ.get("PYTHONHASHSEED") is not None:
        return True
    from vllm.v1.core import kv_cache_utils  # pylint: disable=import-outside-toplevel

    if not hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED"):
        return False  # older: always at random
    return str(getattr(config.cache_config, "prefix_caching_hash_algo", "")).startswith("sha256")
