"""What the scheduler's half says to the daemon beside keys: what a request asks for its blocks, the
conversation it belongs to, what computing its prompt would take, and why it ended.
"""
import collections
import dataclasses
import json
import logging
import os
import time
from typing import Any, Deque, FrozenSet, List, Optional, Tuple

from ..calls import Hints
from ..prefill_cost import PrefillCost, StepWork
from ..request_hints import NOTHING, HintReader, RequestHints, session_hash_of
from ..retention import BlockRetention

logger = logging.getLogger("vllm.terrace")
# A step that decodes more than this share beside its prompts says little of what prompts cost, and
# one of fewer prompt tokens little of anything.
_DECODE_SHARE_MAX = 0.1
_STEP_TOKENS_MIN = 32
# How models begin a call of a tool, in the vocabularies of the day.
_TOOL_CALL_NAMES = frozenset((
    "<tool_call>", "<tool_calls>", "<|tool_call|>", "<|tool_call_begin|>", "<|tool_call_start|>",
    "<|tool_calls_section_begin|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
    "<minimax:tool_call>", "<start_function_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|eom_id|>",
    "<|call|>"))
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json")


@dataclasses.dataclass(frozen=True)
class Said:
    """Of one request: its parameters, and its session."""
    request: RequestHints = NOTHING
    session_hash: int = 0


class EngineHints:
    """Of one engine. tool_call_tokens: tokens of which one in an answer says that it calls a tool.
    """

    def __init__(self, tool_call_tokens: FrozenSet[int] = frozenset(), depth: int = 1):
        self.cost = PrefillCost()
        self.clock = StepClock(self.cost, depth)
        self._tool_call_tokens = tool_call_tokens
        self._reader = HintReader(logger)

    @classmethod
    def of_config(cls, config: Any, tool_call_tokens: Optional[FrozenSet[int]]) -> "EngineHints":
        """tool_call_tokens: None: those that the model's tokenizer names so."""
        if tool_call_tokens is None:
            tool_call_tokens = tool_call_tokens_of(getattr(config, "model_config", None))
        is_async = getattr(getattr(config, "scheduler_config", None), "async_scheduling", False)
        stages = getattr(config.parallel_config, "pipeline_parallel_size", 1)
        return cls(tool_call_tokens, max(stages, 2 if is_async else 1))

    def of_request(self, request: Any) -> Said:
        """What a new request says: in vLLM's kv_transfer_params, or among its extra arguments."""
        parameters = getattr(request, "sampling_params", None)
        said = self._reader.read(getattr(parameters, "extra_args", None),
                                 getattr(request, "kv_transfer_params", None))
        session = (said.session or getattr(request, "session_id", None)
                   or f"request {request.request_id}")
        return Said(said, session_hash_of(getattr(request, "cache_salt", None), str(session)))

    def of_lookup(self, said: Said, first: int, last: int, end: int) -> Hints:
        """Of a question about tokens [first, last) of a prompt of `end`."""
        return Hints(session_hash=said.session_hash,
                     recompute_ns_per_token=self.cost.ns_per_token(first, last, end))

    @staticmethod
    def runs(said: Said, request: Any, first: int, last: int, block_tokens: int
             ) -> List[Tuple[int, int, BlockRetention]]:
        """Blocks [first, last) of a request, cut where what it asks for them changes."""
        if said.request.retention is None:
            return [(first, last, BlockRetention())]
        prompt_tokens = getattr(request, "num_prompt_tokens", last * block_tokens)
        return said.request.retention.runs(first, last, block_tokens, prompt_tokens)

    def of_store(self, said: Said, first: int, last: int,
                 retained: BlockRetention = BlockRetention()) -> Hints:
        """Of blocks that are stored."""
        return said.request.hints(session_hash=said.session_hash, retained=retained,
                                  recompute_ns_per_token=self.cost.ns_per_token(first, last, last))

    def of_end(self, said: Said, request: Any, retained: BlockRetention = BlockRetention()
               ) -> Hints:
        """Of what a request that ends was about."""
        return said.request.hints(session_hash=said.session_hash, retained=retained,
                                  end_reason=self.end_reason_of(request))

    def end_reason_of(self, request: Any) -> str:
        """As far as vLLM's core knows. Whether the answer calls a tool shows in its tokens only."""
        status = getattr(getattr(request, "status", None), "name", "")
        if status == "FINISHED_STOPPED":
            tokens = getattr(request, "output_token_ids", ())
            return ("end_of_turn" if self._tool_call_tokens.isdisjoint(tokens) else "tool_call")
        if status in ("FINISHED_LENGTH_CAPPED", "FINISHED_IGNORED"):
            return "length"
        if not status.startswith("FINISHED_"):
            return "unknown"
        # A front end ends a request so, too, when it has met a text at which to stop.
        stops = getattr(getattr(request, "sampling_params", None), "stop", None)
        return "unknown" if stops and status == "FINISHED_ABORTED" else "aborted"


class StepClock:
    """How long steps take, seen from the scheduler: what it schedules begins at once if nothing is
    under way, else when the step before it ends, which is just before the scheduler's next turn.
    depth: steps that may be under way at a time."""

    def __init__(self, cost: PrefillCost, depth: int):
        self._cost = cost
        self._depth = depth
        self._under_way: Deque[Optional[StepWork]] = collections.deque()
        self._began = 0.0

    def begin(self, chunks: List[Tuple[int, int]], token_count: int) -> None:
        """A step has been scheduled: of each prompt (first token, tokens), and tokens in all."""
        while len(self._under_way) >= self._depth:
            self._under_way.popleft()  # nobody told of its end
        work = StepWork.of(chunks) if chunks else None
        if work is not None and (work.tokens < _STEP_TOKENS_MIN
                                 or token_count - work.tokens > _DECODE_SHARE_MAX * work.tokens):
            work = None
        self._under_way.append(work)
        self._began = time.monotonic()

    def end(self) -> None:
        """The result of the oldest one has been seen."""
        work = self._under_way.popleft() if self._under_way else None
        if work is not None:
            self._cost.learn(work, time.monotonic() - self._began)


def tool_call_tokens_of(model_config: Any) -> FrozenSet[int]:
    """By which the tokenizer's own vocabulary begins a call of a tool; none where it does not say.
    """
    place = getattr(model_config, "tokenizer", None) or getattr(model_config, "model", None)
    found = set()
    for name in _TOKENIZER_FILES:
        try:
            path = _file_of(str(place), name)
            if path is None:
                continue
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            named = document.get("added_tokens_decoder") or {
                token["id"]: token for token in document.get("added_tokens") or ()}
            found = {int(number) for number, token in named.items()
                     if token.get("content") in _TOOL_CALL_NAMES}
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            logger.info("terrace: %s of %s says nothing of tool calls: %s", name, place, error)
        if found:
            break
    return frozenset(found)


def _file_of(place: str, name: str) -> Optional[str]:
    """In a directory, or in what the hub's client has fetched of a repository."""
    if os.path.isdir(place):
        path = os.path.join(place, name)
        return path if os.path.isfile(path) else None
    try:
        from huggingface_hub import try_to_load_from_cache  # pylint: disable=C0415
    except ImportError:
        return None
    path = try_to_load_from_cache(place, name)
    return path if isinstance(path, str) else None
