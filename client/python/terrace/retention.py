"""How long blocks of a request are worth keeping, by ranges of its tokens: TensorRT-LLM's
KvCacheRetentionConfig, with its names, its rules and its defaults.

A block has the priority of the range that its first token is in; blocks that begin behind the
prompt have the answer's. When a range's duration has passed since the block was stored, or was
asked for with that range again, its priority is the default, 35.
"""
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

DEFAULT_PRIORITY = 35
_NAMES = ("token_range_retention_configs", "decode_retention_priority", "decode_duration_ms")
_RANGE_NAMES = ("token_start", "token_end", "priority", "duration_ms")
_RANGES_MAX = 64
_TEXT_MAX = 1 << 16
_TOKENS_MAX = (1 << 31) - 1
_DURATION_MS_MAX = 1000 * ((1 << 32) - 1)


class TokenRange(NamedTuple):
    """Tokens [start, end); None: to the end of the prompt. duration_ms: None: for good."""
    start: int
    end: Optional[int]
    priority: int
    duration_ms: Optional[int] = None


class BlockRetention(NamedTuple):
    """Of one block. priority: None: what it has, the default if it is new."""
    priority: Optional[int] = None
    duration_ms: Optional[int] = None

    @property
    def duration_s(self) -> int:
        """As the daemon counts, which keeps it no shorter; 0: for good."""
        return 0 if self.duration_ms is None else -(-self.duration_ms // 1000)


class Retention:
    """Of one request. Raises ValueError, which says what is wrong: of ranges only the last may be
    open, none is empty, and they come in order and do not overlap."""

    def __init__(self, ranges: Sequence[TokenRange] = (), decode_priority: int = DEFAULT_PRIORITY,
                 decode_duration_ms: Optional[int] = None):
        if len(ranges) > _RANGES_MAX:
            raise ValueError(f"{len(ranges)} token ranges: {_RANGES_MAX} at most")
        for index, each in enumerate(ranges):
            _number("token_start", each.start, 0, _TOKENS_MAX)
            _check("priority", "duration_ms", each.priority, each.duration_ms)
            if each.end is None:
                if index + 1 < len(ranges):
                    raise ValueError("a token range without an end is the last one")
                continue
            _number("token_end", each.end, 0, _TOKENS_MAX)
            if each.end <= each.start:
                raise ValueError(f"the token range {each.start} to {each.end} is empty")
            if index + 1 < len(ranges) and each.end > ranges[index + 1].start:
                raise ValueError(f"the token ranges that begin at {each.start} and "
                                 f"{ranges[index + 1].start} overlap, or are not in order")
        _check("decode_retention_priority", "decode_duration_ms", decode_priority,
               decode_duration_ms)
        self.ranges = tuple(ranges)
        self._of_answer = BlockRetention(decode_priority, decode_duration_ms)

    @classmethod
    def of(cls, said: Any) -> "Retention":
        """Of TensorRT-LLM's fields, as a mapping or as its JSON."""
        if isinstance(said, str):
            if len(said) > _TEXT_MAX:
                raise ValueError(f"a text of {len(said)} characters: {_TEXT_MAX} at most")
            said = json.loads(said)
        if not isinstance(said, Mapping):
            raise ValueError("it is no mapping")
        _check_names(said, _NAMES)
        ranges = []
        told = said.get(_NAMES[0]) or ()
        if len(told) > _RANGES_MAX:  # before they are looked at: clients choose how many
            raise ValueError(f"{len(told)} token ranges: {_RANGES_MAX} at most")
        for each in told:
            if not isinstance(each, Mapping):
                raise ValueError("a token range is no mapping")
            _check_names(each, _RANGE_NAMES)
            fields: Dict[str, Any] = dict(each)
            ranges.append(TokenRange(fields.get("token_start", 0), fields.get("token_end"),
                                     fields.get("priority", DEFAULT_PRIORITY),
                                     fields.get("duration_ms")))
        priority = said.get(_NAMES[1])
        return cls(ranges, DEFAULT_PRIORITY if priority is None else priority, said.get(_NAMES[2]))

    def runs(self, first: int, last: int, block_tokens: int, prompt_tokens: int
             ) -> List[Tuple[int, int, BlockRetention]]:
        """Blocks [first, last), cut where it changes: of a prompt of so many tokens, its last block
        perhaps not full, and of the answer behind it. Takes as long as there are ranges, however
        many blocks: a scheduler asks in the middle of its step."""
        answer = min(last, -(-prompt_tokens // block_tokens))
        found: List[Tuple[int, int, BlockRetention]] = []
        block = first
        for each in self.ranges:  # in order, and none overlaps
            begin = -(-each.start // block_tokens)  # the first block that begins in it
            end = answer if each.end is None else -(-each.end // block_tokens)
            block = _add(found, block, min(begin, answer), BlockRetention())
            block = _add(found, block, min(end, answer),
                         BlockRetention(each.priority, each.duration_ms))
        block = _add(found, block, answer, BlockRetention())
        _add(found, block, last, self._of_answer)
        return found

    def __eq__(self, other: Any) -> bool:
        return (isinstance(other, Retention)
                and (self.ranges, self._of_answer) == (other.ranges, other._of_answer))

    def __hash__(self) -> int:
        return hash((self.ranges, self._of_answer))


def _add(runs: List[Tuple[int, int, BlockRetention]], first: int, last: int, each: BlockRetention
         ) -> int:
    """Adds blocks [first, last), if there are any, to runs that end at `first`; where they end."""
    if last <= first:
        return first
    if runs and runs[-1][2] == each:
        first = runs.pop()[0]
    runs.append((first, last, each))
    return last


def _number(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}: a number from {least} to {most}")


def _check(priority_name: str, duration_name: str, priority: Any, duration_ms: Any) -> None:
    _number(priority_name, priority, 0, 100)
    if duration_ms is not None:
        _number(duration_name, duration_ms, 1, _DURATION_MS_MAX)


def _check_names(said: Mapping[Any, Any], names: Sequence[str]) -> None:
    wrong = [str(name) for name in said if name not in names]
    if wrong:
        raise ValueError(f"{wrong[0]!r:.40} is none of {', '.join(names)}")
