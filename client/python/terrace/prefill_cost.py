"""What computing a prompt costs, learned from an engine's own prefill steps.

A step that computes n tokens, of which each attends to those before it, takes
    a + b n + c m seconds, m being the pairs of a token and one before it;
a, b and c are fitted to the last steps, by relative errors, and none is below 0. Steps that are far
off (the first ones compile) count little; those of the last few tokens of prompts that were there
would push out the ones that say something, and are not kept.

No kernel's time is as smooth as that: a step of 2,048 tokens may take longer than one of 2,560, by
the sets of a cache or the tiles of a product. So the fit is corrected by what steps of nearly as
many tokens have taken, to what it says of them: their geometric mean, in which the fit counts a
little.
"""
import collections
import math
from typing import Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

_STEPS_MAX = 32
_FITTED_EVERY = 8  # steps, once there are as many: it takes some 100 microseconds
# A step of so many times fewer tokens than the largest kept is not kept itself, unless nothing else
# has come for a while.
_SMALL = 4
_SMALL_STEPS_MAX = 256
_NS_MAX = (1 << 32) - 1
_NEAR = 0.1  # steps of so much more or fewer tokens (a share) say 0.6 of what those of as many do
_FIT_WEIGHT = 0.3  # of the fit itself in a correction, a step of as many tokens being 1
_CORRECTED_MAX = 3.0  # of what the fit says: what a prompt's tokens add is a difference of two
_CORRECTIONS_MAX = 1024  # that are remembered until the next fit: each takes some 20 microseconds
_FAR_OFF = 0.4  # of a step's time from the fit's, as a logarithm: what is farther counts less


class StepWork(NamedTuple):
    """Prompt tokens that a step computes, and the pairs of one of them and a token before it."""
    tokens: int
    pairs: float

    @classmethod
    def of(cls, chunks: Sequence[Tuple[int, int]]) -> "StepWork":
        """chunks: of each prompt (first token, tokens)."""
        return cls(sum(count for _, count in chunks),
                   sum(count * (first + count / 2) for first, count in chunks))


class _Seconds(NamedTuple):
    said: float  # by the fit
    corrected: float


class PrefillCost:
    """See the page. One thread's."""

    def __init__(self) -> None:
        self._steps: Deque[Tuple[StepWork, float]] = collections.deque(maxlen=_STEPS_MAX)
        self._fit: Optional[Tuple[float, float, float]] = None
        self._corrections: Dict[int, float] = {}  # by tokens, of this fit
        self._new_count = 0
        self._small_count = 0  # since the last one that was kept

    def learn(self, work: StepWork, seconds: float) -> None:
        """What a step has taken."""
        if work.tokens <= 0 or not 0 < seconds < math.inf:
            return
        if _SMALL * work.tokens < max((kept.tokens for kept, _ in self._steps), default=0):
            self._small_count += 1
            if self._small_count < _SMALL_STEPS_MAX:
                return
            self._steps.clear()
        self._small_count = 0
        self._steps.append((work, seconds))
        self._new_count += 1

    @property
    def coefficients(self) -> Optional[Tuple[float, float, float]]:
        """(a, b, c); None before the second step: the first one may have compiled something."""
        if self._new_count and len(self._steps) > 1 and (len(self._steps) <= _FITTED_EVERY
                                or self._new_count >= _FITTED_EVERY):
            self._fit, self._new_count = _fit(self._steps), 0
            self._corrections = {}
        return self._fit

    def seconds(self, first: int, last: int, end: int) -> float:
        """That computing tokens [first, last) adds to a prefill of [first, end), in chunks as large
        as the largest seen; 0 while nothing is known."""
        if self.coefficients is None or last <= first:
            return 0.0
        chunk = max(work.tokens for work, _ in self._steps)
        whole, rest = self._whole(first, end, chunk), self._whole(last, end, chunk)
        said = whole.said - rest.said
        # The rest alone may be of a slow length, and the whole of a quick one.
        return min(max(whole.corrected - rest.corrected, said / _CORRECTED_MAX),
                   said * _CORRECTED_MAX)

    def _whole(self, first: int, end: int, chunk: int) -> "_Seconds":
        """Of a prefill of [first, end), `chunk` tokens a step."""
        steps = (end - first) // chunk
        middle = first + steps * chunk
        chunks = self._part(first, middle, steps, chunk)
        rest = self._part(middle, end, min(1, end - middle), end - middle)
        return _Seconds(chunks.said + rest.said, chunks.corrected + rest.corrected)

    def _part(self, first: int, end: int, steps: int, tokens: int) -> "_Seconds":
        """Of so many steps that compute `tokens` each."""
        if steps == 0:
            return _Seconds(0.0, 0.0)
        base, per_token, per_pair = self._fit or (0.0, 0.0, 0.0)
        said = (base * steps + per_token * (end - first)
                + per_pair * (end * end - first * first) / 2)
        return _Seconds(said, said * self._correction(tokens))

    def _correction(self, tokens: int) -> float:
        """What steps of about so many tokens take, to what the fit says of them."""
        found = self._corrections.get(tokens)
        if found is not None:
            return found
        weights, logarithms = _FIT_WEIGHT, 0.0
        for work, seconds in self._steps:
            said = _dot(self._fit or (0.0, 0.0, 0.0), (1.0, work.tokens, work.pairs))
            away = math.log(work.tokens / tokens) / _NEAR
            if said <= 0 or abs(away) > 4:
                continue
            off = math.log(seconds / said)
            weight = math.exp(-away * away / 2) * min(1.0, (_FAR_OFF / (abs(off) + 1e-9)) ** 2)
            weights, logarithms = weights + weight, logarithms + weight * off
        if len(self._corrections) >= _CORRECTIONS_MAX:
            self._corrections = {}
        self._corrections[tokens] = math.exp(logarithms / weights)
        return self._corrections[tokens]

    def ns_per_token(self, first: int, last: int, end: int) -> int:
        """The same, per token of [first, last); 0 while nothing is known, and then alone."""
        if last <= first or self.coefficients is None:
            return 0
        return min(_NS_MAX, 1 + int(self.seconds(first, last, end) / (last - first) * 1e9))


_TERMS = ((1,), (0, 1), (1, 2), (0, 1, 2))  # what a fit may consist of
_Row = Tuple[float, float, float]


def _fit(steps: Sequence[Tuple[StepWork, float]]) -> Tuple[float, float, float]:
    """Least squares of relative errors, the best of those subsets that have no negative term; then
    again with less weight for what was far off."""
    rows = [(1 / seconds, work.tokens / seconds, work.pairs / seconds) for work, seconds in steps]
    best = _best(rows, [1.0] * len(rows))
    for _ in range(2):
        errors = [abs(1 - _dot(best, row)) for row in rows]
        limit = 3 * sorted(errors)[len(errors) // 2] + 0.02
        best = _best(rows, [1.0 if error <= limit else (limit / error) ** 2 for error in errors])
    return best


def _dot(fit: Sequence[float], row: Sequence[float]) -> float:
    return fit[0] * row[0] + fit[1] * row[1] + fit[2] * row[2]


def _best(rows: Sequence[_Row], weights: Sequence[float]) -> Tuple[float, float, float]:
    weighted = [(w * x, w * y, w * z) for w, (x, y, z) in zip(weights, rows)]
    sums = [sum(column) for column in zip(*weighted)]
    squares = [[0.0] * 3 for _ in range(3)]
    for i in range(3):
        for j in range(i, 3):
            squares[i][j] = squares[j][i] = sum(v[i] * row[j] for v, row in zip(weighted, rows))
    best, least = (0.0, 0.0, 0.0), math.inf
    for terms in _TERMS:
        found = _solve(squares, sums, terms)
        if found is None or min(found) < 0:
            continue
        error = (sum(weights) - 2 * _dot(found, (sums[0], sums[1], sums[2]))
                 + sum(found[i] * found[j] * squares[i][j] for i in terms for j in terms))
        if error < least * 0.98 - 1e-12:  # a term more has to be worth it
            best, least = (found[0], found[1], found[2]), error
    return best


def _solve(squares: Sequence[Sequence[float]], sums: Sequence[float], terms: Sequence[int]
           ) -> Optional[List[float]]:
    """The normal equations of these terms, of columns scaled to one length; None where they do not
    tell the terms apart."""
    scale = [math.sqrt(squares[t][t]) or 1.0 for t in terms]
    matrix = [[squares[s][t] / (scale[i] * scale[j]) for j, t in enumerate(terms)]
              + [sums[s] / scale[i]] for i, s in enumerate(terms)]
    count = len(terms)
    for i in range(count):
        if matrix[i][i] < 1e-4:  # columns of nearly one direction
            return None
        for j in range(i + 1, count):
            factor = matrix[j][i] / matrix[i][i]
            matrix[j] = [x - factor * y for x, y in zip(matrix[j], matrix[i])]
    found = [0.0] * 3
    for i in reversed(range(count)):
        known = sum(matrix[i][j] * found[terms[j]] * scale[j] for j in range(i + 1, count))
        found[terms[i]] = (matrix[i][count] - known) / matrix[i][i] / scale[i]
    return found
