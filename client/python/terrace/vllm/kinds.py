"""Which kinds of KV cache groups are served, and what of a prompt each keeps.

A group of layers of one kind and several sizes (UniformTypeKVCacheSpecs) has a specification for
each layer in the workers; vLLM's scheduler is told of the first alone.
"""
from typing import Any, List, Optional, Set

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

try:
    from vllm.v1.core.sched import output as _output
except ImportError:
    _output = None

_WINDOWED = ("SlidingWindowSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec", "MambaSpec")
_SPECS = ("FullAttentionSpec", "MLAAttentionSpec", *_WINDOWED)
# Kinds that keep the same tokens, so that one group may have layers of both.
_ALIKE = ({"FullAttentionSpec", "MLAAttentionSpec"}, {"SlidingWindowSpec", "SlidingWindowMLASpec"})


def name_of(spec: Any) -> str:
    return type(spec).__name__


def specs_of(group: Any) -> List[Any]:
    """Of a KV cache group, each once: one, but where its layers have sizes of their own."""
    spec = group.kv_cache_spec
    found: List[Any] = []
    for each in getattr(spec, "kv_cache_specs", {None: spec}).values():
        if each not in found:
            found.append(each)
    return found


def spec_of_layer(group: Any, layer_name: str) -> Any:
    spec = group.kv_cache_spec
    return getattr(spec, "kv_cache_specs", {}).get(layer_name, spec)


def is_latent(spec: Any) -> bool:
    return "MLA" in name_of(spec)


def is_state(spec: Any) -> bool:
    return name_of(spec) == "MambaSpec"


def is_chunked(spec: Any) -> bool:
    """The next token attends to its own chunk of the prompt alone."""
    return name_of(spec) == "ChunkedLocalAttentionSpec"


def shards_of(parallel: Any) -> int:
    """Tensor parallel ranks in a row that share out the tokens of a block between them."""
    return getattr(parallel, "decode_context_parallel_size", 1)


def block_tokens_of(spec: Any, shards: int) -> int:
    """What the scheduler, and a block's hash, count as one block: the same block of every shard."""
    return spec.block_size * (shards if getattr(spec, "dcp_sharded", True) else 1)


def window_of(spec: Any) -> int:
    """Tokens before the next one that it needs, in the daemon's sense, of chunks a chunk's; 0: all.
    """
    if is_state(spec):
        return 1
    if is_chunked(spec):
        return int(spec.attention_chunk_size)
    if name_of(spec) not in _WINDOWED:
        return 0
    # What the next token attends to beside itself; the daemon needs one at least.
    return max(1, spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0))


def has_window(group: Any) -> bool:
    """A KV cache group that keeps only what the next token needs."""
    return name_of(specs_of(group)[0]) in _WINDOWED


def refusal_of(kv_cache_config: Any, shards: int = 1) -> Optional[str]:
    """Why these KV cache groups are not served."""
    groups = kv_cache_config.kv_cache_groups if kv_cache_config is not None else ()
    if not groups:
        return "the model has no KV cache groups"
    specs = [spec for group in groups for spec in specs_of(group)]
    for spec in specs:
        if name_of(spec) not in _SPECS:
            return (f"a KV cache group is a {name_of(spec)}: only {', '.join(_SPECS)} are served "
                    "yet")
        if not getattr(spec, "prefix_cacheable", True):
            return (f"a KV cache group is a {name_of(spec)} whose blocks are of no prefix: vLLM "
                    "computes them anew behind each hit; leave swa_bounded_replay out")
        if getattr(spec, "non_causal", False):
            return (f"a KV cache group is a {name_of(spec)} that is non_causal: what a block holds "
                    "depends on the tokens behind it, so prompts share none; run this model "
                    "without the connector")
    for group in groups:
        why = _refusal_of_mixture(specs_of(group))
        if why is not None:
            return why
    if shards > 1 and any(has_window(group) for group in groups):
        return (f"decode_context_parallel_size is {shards}, beside a group with a window or "
                "states: that is not served yet")
    sizes = {block_tokens_of(spec, shards) for spec in specs}
    if len(sizes) > 1:
        return f"the KV cache groups have blocks of {sorted(sizes)} tokens: only one size is served"
    if len(groups) == 1 and not has_window(groups[0]):
        return None
    if not hasattr(KVConnectorBase_V1, "get_transfer_results"):
        return ("the model has several KV cache groups, or a window, and this vLLM cannot be told "
                "that a load has failed: start it with --disable-hybrid-kv-cache-manager")
    return None


def _refusal_of_mixture(specs: List[Any]) -> Optional[str]:
    """Layers of one group have one table of blocks, so all of them keep the same tokens."""
    names: Set[str] = {name_of(spec) for spec in specs}
    if len(names) > 1 and not any(names <= alike for alike in _ALIKE):
        return (f"a KV cache group has layers that are {' and '.join(sorted(names))}: one kind is "
                "served")
    windows = {window_of(spec) for spec in specs}
    if len(windows) > 1:
        return (f"a KV cache group has layers with windows of {sorted(windows)} tokens: one is "
                "served")
    return None


def refusal_of_states(kv_cache_config: Any, config: Any) -> Optional[str]:
    """Why groups of states, if there are any, are not served."""
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in specs_of(group)
             if is_state(spec)]
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
