"""Ends of requests: what is said to the daemon of blocks that are there.

What a request asks for its blocks goes with its stores, and is said of those that were there before
when it has ended and its stores are through: together with why it ended, of its last block.
"""
from typing import List, Tuple

from ..calls import Hints, Keys
from ..errors import Unavailable
from .hints import EngineHints
from .questions import Questions
from .tracked import Tracked


class Endings:
    """Of one scheduler. wait_s: how long saying it may hold the scheduler up."""

    def __init__(self, questions: Questions, hints: EngineHints, wait_s: float, block_tokens: int):
        self._questions = questions
        self._hints = hints
        self._wait_s = wait_s
        self._block_tokens = block_tokens

    def begin(self, tracked: Tracked, computed_tokens: int) -> None:
        """The request has ended, with so many tokens."""
        hints = self._hints.of_end(tracked.said, tracked.request)
        is_of_all = tracked.said.request.is_of_blocks
        last = self._questions.block_count(tracked.request, computed_tokens)
        if tracked.is_stale or last == 0 or not (is_of_all or hints.end_reason != "unknown"):
            return
        runs = self._hints.runs(tracked.said, tracked.request, 0 if is_of_all else last - 1, last,
                                self._block_tokens)
        try:
            tracked.endings = [
                (self._questions.keys(tracked.request, tracked.keys, begin, end),
                 self._hints.of_end(tracked.said, tracked.request, retained))
                for begin, end, retained in runs]
        except Unavailable:
            return
        self._tell_if_due(tracked)

    def store_ended(self, tracked: Tracked) -> None:
        """One of its stores is through, or was given up."""
        tracked.store_count -= 1
        self._tell_if_due(tracked)

    def _tell_if_due(self, tracked: Tracked) -> None:
        """Of a request that has ended, once its blocks are there."""
        if not tracked.endings or tracked.store_count > 0:
            return
        endings, tracked.endings = tracked.endings, []
        if tracked.passed_at is not None and not tracked.said.request.is_of_blocks:
            endings = self._ending_before(tracked, tracked.passed_at, endings)
        for keys, hints in endings:
            self._questions.asker.touch(keys, hints, self._wait_s)

    def _ending_before(self, tracked: Tracked, passed_at: int,
                       endings: List[Tuple[Keys, Hints]]) -> List[Tuple[Keys, Hints]]:
        """The last block that is there has the request's reason; none without a daemon."""
        if passed_at == 0:
            return []
        try:
            keys = self._questions.keys(tracked.request, tracked.keys, passed_at - 1, passed_at)
        except Unavailable:
            return []
        return [(keys, hints) for _, hints in endings]
