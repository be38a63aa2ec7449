"""How much of a hit is worth waiting for: what comes from a drive or another host before computing
would have it, and never more.

vLLM computes nothing of a request while a load of it is under way, so a prompt whose first k blocks
are loaded has its answer after the wait for block k and the time that computing the rest takes.
"""
from typing import NamedTuple, Optional, Sequence

from ..calls import Span
from ..prefill_cost import PrefillCost

_WAIT_S_MIN = 0.05  # a load is not given up sooner: machines stumble


class Promise(NamedTuple):
    """Blocks that vLLM is told of, and how long they may take; None: as long as loads may."""
    block_count: int
    wait_s: Optional[float] = None


class Prompt(NamedTuple):
    """Of a question: where its first block begins, and the prompt's tokens."""
    first_token: int
    token_count: int
    block_tokens: int


def worth(spans: Sequence[Span], block_count: int, prompt: Prompt, cost: PrefillCost, *,
          is_whole: bool = False) -> Promise:
    """Of a hit of `block_count` blocks. is_whole: all of it is of use, or nothing. Without anything
    known of what computing costs, and where nothing has to come, it is all of it."""
    coming = [span for span in spans if span.state == "coming" and span.first_block < block_count]
    if not coming or cost.coefficients is None:
        return Promise(block_count)

    def compute_s(first_block: int, last_block: Optional[int] = None) -> float:
        first, end = prompt.first_token, prompt.token_count
        last = end if last_block is None else first + last_block * prompt.block_tokens
        return cost.seconds(first + first_block * prompt.block_tokens, last, end)

    def answer_s(count: int) -> float:
        wait_s = max((span.eta_s for span in coming if span.first_block < count), default=0.0)
        return wait_s + compute_s(count)

    ends = [min(span.first_block + span.block_count, block_count) for span in spans
            if span.first_block < block_count]
    counts = [0, block_count] if is_whole else [0, *ends]
    best = min(reversed(counts), key=answer_s)  # of equals the longest
    if best <= coming[0].first_block:
        return Promise(best)
    return Promise(best, max(_WAIT_S_MIN, compute_s(0, best)))
