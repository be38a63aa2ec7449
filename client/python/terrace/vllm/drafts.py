"""Draft models whose layers have KV caches beside the model's: EAGLE, MTP, a model of its own.

A layer of EAGLE's kind, MTP's too, computes what it keeps of a token from the model's hidden state
there and from the *next* token. So what a block has of its last token follows from one token more
than its hash does; vLLM drops the last block of its own hits for it. Here the token behind a block
is part of its key: such a block is found by prompts that go on with that token, and by no others.

In a step with a sequence that is too long for the draft vLLM computes the draft of none: what the
requests of such a step have from there on is not stored.
"""
import hashlib
import itertools
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

# By how they come to what they keep; parallel ones, dflash and dspark among them, are not known.
_NEXT_TOKEN = ("eagle", "eagle3", "mtp")
_OWN_MODEL = "draft_model"
_TOKEN_BYTES = 8
Behind = Tuple[int, str]  # a token, and what stands for it where that is no text


class Drafting(NamedTuple):
    """looks_ahead: a block's bytes depend on the token behind it, too; sequence_max: tokens of the
    longest sequence with which a step still computes the draft's layers; None: of any."""
    looks_ahead: bool = False
    sequence_max: Optional[int] = None


def method_of(config: Any) -> str:
    """Of a draft with a KV cache of its own; "" without one."""
    speculation = getattr(config, "speculative_config", None)
    uses_cache = getattr(speculation, "uses_draft_kv_cache", None)
    method = str(getattr(speculation, "method", None) or "")
    if method.endswith("mtp"):  # older versions name the model's kind before it
        method = "mtp"
    if callable(uses_cache):
        return method if uses_cache() else ""
    is_known = method in (*_NEXT_TOKEN, _OWN_MODEL, "dflash", "dspark", "extract_hidden_states")
    return method if is_known else ""


def refusal_of(config: Any) -> Optional[str]:
    """Why such a draft is not served."""
    method = method_of(config)
    if not method:
        return None
    speculation = config.speculative_config
    if method not in (*_NEXT_TOKEN, _OWN_MODEL) or getattr(speculation, "parallel_drafting", False):
        return (f"the draft is of method {method!r}{_in_parallel(speculation)}: on which tokens "
                f"its KV cache depends is known of {', '.join((*_NEXT_TOKEN, _OWN_MODEL))}, one "
                "token after the other; leave it out, or the cache")
    ahead = _lookahead_of(config, method)
    if ahead > 1:
        return (f"the draft has modules that read {ahead} tokens ahead and compute the last "
                f"{ahead - 1} of a prompt anew: set num_speculative_tokens to 1")
    limit, model_limit = _length_of(speculation), _max_len(getattr(config, "model_config", None))
    if limit is not None and model_limit is not None and limit < model_limit:
        return (f"the draft takes sequences of {limit} tokens and the model of {model_limit}: with "
                "a longer one in a batch vLLM computes the draft of none; set --max-model-len to "
                f"{limit} at most")
    return None


def _in_parallel(speculation: Any) -> str:
    return ", in parallel" if getattr(speculation, "parallel_drafting", False) else ""


def _lookahead_of(config: Any, method: str) -> int:
    if method == _OWN_MODEL:
        return 0  # it reads tokens alone, each where it stands
    said = getattr(config, "num_prefill_lookahead_tokens", None)
    has_modules = getattr(config.speculative_config, "use_multi_module_mtp", None)
    if said is None and callable(has_modules) and has_modules():
        said = config.speculative_config.num_speculative_tokens
    return max(1, said or 0)


def _max_len(model: Any) -> Optional[int]:
    found = getattr(model, "max_model_len", None)
    return found if isinstance(found, int) else None


def _length_of(speculation: Any) -> Optional[int]:
    return _max_len(getattr(speculation, "draft_model_config", None))


def drafting_of(config: Any, groups: Sequence[Any]) -> Drafting:
    """Of a configuration that is served. groups: the KV cache groups."""
    method = method_of(config)
    if not method:
        is_marked = any(getattr(group, "is_eagle_group", False) for group in groups)
        return Drafting(is_marked)
    speculation = config.speculative_config
    limits = [limit for limit in (_length_of(speculation),
                                  _max_len(getattr(config, "model_config", None)))
              if limit is not None]
    drafted = getattr(speculation, "num_speculative_tokens", None) or 0
    return Drafting(_lookahead_of(config, method) > 0,
                    min(limits) - drafted if limits else None)


class Drafts:
    """Of one scheduler: which blocks in vLLM's hands are what their keys would say. Without a draft
    that looks ahead, or is left out of long steps, all of them are, and nothing is kept."""

    def __init__(self, drafting: Drafting, block_tokens: int):
        self._drafting = drafting
        self._block_tokens = block_tokens
        self._after: Dict[int, Behind] = {}  # by block id: before what it was computed

    @property
    def keep_book(self) -> bool:
        return self._drafting.looks_ahead or self._drafting.sequence_max is not None

    def _follows(self, request: Any, position: int) -> Behind:
        """What says that a block that ends before `position` is what follows from the request."""
        return behind(request, position) if self._drafting.looks_ahead else (0, "")

    def written(self, table: Sequence[Sequence[int]], first: int) -> None:
        """The blocks of `table`, of each KV cache group, from `first` on get other bytes."""
        if self.keep_book:
            for block_id in itertools.chain(*(block_ids[first:] for block_ids in table)):
                self._after.pop(block_id, None)

    def computed(self, table: Sequence[Sequence[int]], first: int, request: Any,
                 given_away: AbstractSet[int] = frozenset()) -> None:
        """`table`, from a prompt's block `first` on, is, or will be before anybody reads it, what
        follows from the request; but blocks that vLLM has given away since."""
        for block_ids in table:
            for i, block_id in enumerate(block_ids, first):
                if block_id not in given_away:
                    self._after[block_id] = self._follows(request, (i + 1) * self._block_tokens)

    def are_right(self, table: Sequence[Sequence[int]], count: int, request: Any) -> bool:
        """Whether the first blocks of `table` are what follows from the request. What a window has
        passed is none: block 0."""
        n = self._block_tokens
        return not self.keep_book or all(
            block_id == 0 or self._after.get(block_id) == self._follows(request, (i + 1) * n)
            for block_ids in table for i, block_id in enumerate(block_ids[:count]))

    def undrafted(self, output: Any) -> Dict[str, int]:
        """Of a step with a sequence that is too long for the draft all requests, by how many of
        their tokens had been computed before it."""
        if self._drafting.sequence_max is None:
            return {}
        cached = output.scheduled_cached_reqs
        begins = dict(zip(cached.req_ids, cached.num_computed_tokens))
        begins.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
        longest = max((begin + output.num_scheduled_tokens.get(request_id, 0)
                       for request_id, begin in begins.items()), default=0)
        return begins if longest > self._drafting.sequence_max else {}


def behind(request: Any, position: int) -> Behind:
    """What a draft reads as a request's token there: an image has the same tokens as another."""
    token = int(request.all_token_ids[position])
    features = getattr(request, "mm_features", None) or ()  # in the order of the prompt
    first, last = 0, len(features)  # those that begin behind the position are from `last` on
    while first < last:
        middle = (first + last) // 2
        if features[middle].mm_position.offset <= position:
            first = middle + 1
        else:
            last = middle
    if first > 0:
        place = features[first - 1].mm_position
        if position < place.offset + place.length:
            return token, f"{position - place.offset} of {features[first - 1].identifier}"
    return token, ""


def is_told_apart(request: Any) -> bool:
    """Whether `behind` says what a draft reads; of a prompt of embeddings tokens say nothing."""
    return getattr(request, "prompt_embeds", None) is None


def keyed(digests: Sequence[bytes], after: Sequence[Behind]) -> List[bytes]:
    """Digests of blocks and of what is behind each of them together."""
    return [hashlib.sha256(digest + token.to_bytes(_TOKEN_BYTES, "little", signed=True)
                           + thing.encode()).digest()[:len(digest)]
            for digest, (token, thing) in zip(digests, after)]
