"""Decides, for every query, which candidates score higher than its answer and which as high: exactly.

A matrix product rounds differently by shape, by library and by number of threads. So its scores decide only
where they lie outside an error band around the answer's score; what lies inside is scored again, pair by
pair in float64, by a kernel whose bits depend on the two rows alone. Every decision is thereby the one that
the float64 kernel alone would give, and integers made of them do not depend on how the work was cut.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kgexp.models.base import Model

PIECE = 1 << 18  # numbers handled at once outside the matrix product: float64 operands then stay in the cache


@dataclass(frozen=True)
class Queries:
    """A batch of queries, each with the score of its answer.

    Attributes:
        rows: float64[b, d], the query rows.
        exact: float64[b], the answers' scores.
        scored: bool[b], false where the model gives NaN to the answer; `rows` are then zero, and `exact` is
            +inf, so that nothing is compared in vain and no other query's bound is spoilt.
    """

    rows: Tensor
    exact: Tensor
    scored: Tensor

    @classmethod
    def of(cls, model: Model, rows: Tensor, answers: Tensor) -> "Queries":
        """Query rows float64[b, d] with the rows float64[b, d] of their answers."""
        exact = model.rescore_pairs(rows, answers)
        scored = ~exact.isnan()
        return cls(torch.where(scored[:, None], rows, 0.0), torch.where(scored, exact, torch.inf), scored)

    def __len__(self) -> int:
        return len(self.exact)

    def __getitem__(self, part: slice) -> "Queries":
        return Queries(self.rows[part], self.exact[part], self.scored[part])


class Comparison:
    """Some candidates against the answers of a batch of queries.

    Args:
        model: what scores.
        queries: the batch, of b queries.
        candidates: rows float[k, d] shared by all queries, or float[b, k, d], k for each.
        own: int64[b], the column where a query's answer stands among its candidates, or anything outside of
            0 … k-1 where it does not.

    Attributes:
        greater: int64[b], candidates that score higher than the answer.
        equal: int64[b], candidates other than the answer that score exactly as high.
        nan: NaN scores that were met; each counts as -inf.
    """

    def __init__(self, model: Model, queries: Queries, candidates: Tensor, own: Tensor) -> None:
        self._model, self._queries, self._candidates = model, queries, candidates
        rows = queries.rows.to(candidates.dtype)
        shared = candidates.ndim == 2
        self._scores = scores = (
            model.score(rows, candidates) if shared else model.score(rows[:, None], candidates)[:, 0]
        )
        self._low, self._high = band(model, queries, rows, candidates.flatten(0, -2))
        higher = scores > self._high
        # A NaN is neither higher nor lower, so it counts as undecided: no pass over the scores looks for it.
        decided = higher | (scores < self._low)
        self.greater = higher.sum(1, dtype=torch.int32).long()
        self.equal = torch.zeros_like(self.greater)
        self.nan = 0
        self._decide(decided, torch.where(queries.scored, own, -1))

    def sign(self, query: Tensor, column: Tensor) -> Tensor:
        """int8[p] for pairs int64[p]: 1 where the candidate in `column` scores higher than the answer of
        `query`, 0 where it scores as high, -1 where lower."""
        scores = self._scores[query, column]
        greater, less = scores > self._high[query, 0], scores < self._low[query, 0]
        sign = greater.to(torch.int8) - less.to(torch.int8)
        unsure = torch.nonzero(~(greater | less))[:, 0]
        sign[unsure] = self._exact_sign(query[unsure], column[unsure])[0]
        return sign

    def _decide(self, decided: Tensor, own: Tensor) -> None:
        """Counts the candidates that lie in the band, where `decided` bool[b, k] is false."""
        step = max(1, PIECE // decided.shape[1])
        answers = 0
        for start in range(0, len(decided), step):
            query, column = _where(~decided[start : start + step])
            query += start
            other = column != own[query]
            answers += len(other)
            query, column = query[other], column[other]
            answers -= len(query)
            sign, nan = self._exact_sign(query, column)
            self.greater.index_add_(0, query, (sign > 0).long())
            self.equal.index_add_(0, query, (sign == 0).long())
            self.nan += nan
        if answers != int(((own >= 0) & (own < decided.shape[1])).sum()):
            raise RuntimeError(f"{type(self._model).__name__}.score_error is smaller than the error of its score")

    def _exact_sign(self, query: Tensor, column: Tensor) -> tuple[Tensor, int]:
        """`sign` by the float64 kernel alone, and how many of the scores are NaN."""
        sign = torch.empty(len(query), dtype=torch.int8, device=query.device)
        nan = 0
        step = max(1, PIECE // self._queries.rows.shape[1])
        for start in range(0, len(query), step):
            piece = slice(start, start + step)
            q, c = query[piece], column[piece]
            rows = self._candidates[c] if self._candidates.ndim == 2 else self._candidates[q, c]
            scores = self._model.rescore_pairs(self._queries.rows[q], rows.double())
            missing = scores.isnan()
            nan += int(missing.sum())
            scores = torch.where(missing, -torch.inf, scores)
            answer = self._queries.exact[q]
            sign[piece] = (scores > answer).to(torch.int8) - (scores < answer).to(torch.int8)
        return sign, nan


def band(model: Model, queries: Queries, rows: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """The band `(low, high)`, each float[b, 1] in the dtype of `rows` (the query rows float[b, d] as `score`
    saw them): a score outside lies on the side of the answer's score where the float64 kernel would find it.

    Two errors add up: that of the score, and that of the float64 kernel, which is the first one's bound times
    the ratio of the units in the last place. The answer's score has none: it is the very number that the
    kernel's scores are compared with. Where overflow could have spoilt the scores, or a bound is not finite,
    the band is everything.
    """
    info = torch.finfo(rows.dtype)
    error = model.score_error(rows, candidates).double()
    d = rows.shape[1]
    least, most = torch.aminmax(candidates)
    reach = torch.maximum(most, -least).double() + rows.abs().amax(1, keepdim=True)
    # A relative bound leaves out what underflows: squares inside its norms, and products.
    underflow = d * (d * info.eps * info.tiny**0.5 * reach + info.tiny)
    margin = error * (1 + torch.finfo(torch.float64).eps / info.eps) + underflow
    trusted = error < info.max * info.eps / 4
    exact = queries.exact[:, None]
    low = torch.where(trusted, exact - margin, -torch.inf).to(rows.dtype)
    high = torch.where(trusted, exact + margin, torch.inf).to(rows.dtype)
    # One step outward, because the sums above and the conversion were rounded.
    infinity = torch.full_like(low, torch.inf)
    return torch.nextafter(low, -infinity), torch.nextafter(high, infinity)


def _where(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of what is true in bool[b, k]: `torch.nonzero`, but on the CPU several times as fast."""
    if mask.device.type != "cpu":
        row, column = torch.nonzero(mask, as_tuple=True)
        return row, column
    flat = torch.from_numpy(np.flatnonzero(mask.numpy()))
    return flat // mask.shape[1], flat % mask.shape[1]
