"""Decides, for every query, which candidates score higher than an answer of it and which as high: exactly.

A matrix product rounds differently by shape, by library and by number of threads. So its scores decide only
where they lie outside an error band around the answer's score; what lies inside is scored again, pair by
pair in float64, by a kernel whose bits depend on the two rows alone. Every decision is thereby the one that
the float64 kernel alone would give, and integers made of them do not depend on how the work was cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_

import numpy as np
import torch
from torch import Tensor

from kgexp.evaluation.batches import splits_of
from kgexp.evaluation.tally import Flags, Scratch
from kgexp.models.base import Model
from kgexp.models.pieces import at_a_time
from kgexp.team import cut

PIECE = 1 << 18  # numbers handled at once outside the matrix product: float64 operands then stay in the cache


@dataclass(frozen=True)
class Queries:
    """u queries, and b answers to them with their scores.

    Attributes:
        rows: float64[u, d], the query rows.
        rounded: float[u, d], the same in the dtype of the candidates.
        asks: int64[b], the query of each answer.
        exact: float64[b], the answers' scores.
        scored: bool[b], false where the model gives NaN to the answer. Rows with a NaN are then zero, so that no other
            query's bound is spoilt.
    """

    rows: Tensor
    rounded: Tensor
    asks: Tensor
    exact: Tensor
    scored: Tensor

    @classmethod
    def of(cls, model: Model, rows: Tensor, answers: Tensor, asks: Tensor, dtype: torch.dtype) -> "Queries":
        """Query rows float64[u, d] with the rows float64[b, d] of the answers; `dtype` is that of candidates."""
        exact = model.rescore_pairs(rows[asks], answers)
        rows = torch.where(rows.isnan().any(dim=1, keepdim=True), 0.0, rows)
        return cls(rows, rows.to(dtype), asks, exact, ~exact.isnan())

    def __len__(self) -> int:
        return len(self.exact)

    def each(self, part: slice) -> "Queries":
        """Some of the answers, each with a query of its own."""
        asks = self.asks[part]
        own = torch.arange(len(asks), device=asks.device)
        return Queries(self.rows[asks], self.rounded[asks], own, self.exact[part], self.scored[part])


@dataclass(frozen=True)
class Known:
    """p pairs of a query and a candidate that may be no candidates.

    Attributes:
        query: int64[p].
        column: int64[p], ascending: where the candidate stands among those compared.
        splits: uint8[p], the bits that rule a pair out: a filter whose mask has one of them leaves it out.
    """

    query: Tensor
    column: Tensor
    splits: Tensor

    def under(self, mask: int) -> tuple[Tensor, Tensor]:
        """The query and the column of those that a filter leaves out."""
        out = torch.nonzero(self.splits & mask)[:, 0]
        return self.query[out], self.column[out]

    def splits_at(self, query: Tensor, column: Tensor) -> Tensor:
        """uint8[v], the bits of other pairs int64[v]; 0 where they are not among these."""
        given = (x.cpu().numpy() for x in (self.query, self.column, self.splits, query, column))
        return torch.from_numpy(splits_of(*given)).to(query.device)


class Comparison:
    """Some candidates against the answers to a batch of queries.

    Args:
        model: what scores.
        queries: u queries with b answers.
        candidates: rows float[k, d] shared by all queries, or float[u, k, d], k for each.
        own: int64[b], the column where an answer stands among the candidates, or anything outside of 0 … k-1 where it
            does not.
        scratch: memory for what is computed on the way.
    """

    def __init__(self, model: Model, queries: Queries, candidates: Tensor, own: Tensor, scratch: Scratch) -> None:
        self._model, self._queries, self._candidates = model, queries, candidates
        self._low, self._high, self._trusted = band(model, queries, candidates.flatten(0, -2))
        self._length = candidates.shape[-2]
        self._memory = partial(scratch.of, rows=len(queries), device=candidates.device)
        inside = torch.nonzero(queries.scored & (own >= 0) & (own < self._length))[:, 0]
        self._answer = inside[torch.argsort(own[inside])]  # those that stand here, by column
        self._own = own[self._answer]

    def counts(self, known: Known, masks: Sequence[int]) -> tuple[Tensor, int]:
        """int64[2, f, b], the candidates that score higher than the answer, and those other than it that score exactly
        as high, without those of the `known` pairs that each of f filters leaves out; and the number of NaN scores.

        Raises:
            RuntimeError: the model's `score_error` does not hold.
        """
        # No filter leaves out less than this one, so what is undecided under it is all that is undecided under any.
        least = reduce(and_, masks, 255)
        above = {mask: self._flags(f"above {mask}") for mask in {least, *masks}}
        below = self._flags("below")
        self._flag(known, above, least, below)
        found = self._queries.asks.new_zeros((2, len(masks), len(self._queries)))
        greater = {mask: flags.count() for mask, flags in above.items()}
        for number, mask in enumerate(masks):
            found[0, number] = greater[mask]
        nan = 0
        for answer, column in self._undecided(above[least], below, self._length - greater[least] - below.count()):
            sign, missing = self._exact_sign(answer, column)
            splits = known.splits_at(self._queries.asks[answer], column)
            for number, mask in enumerate(masks):
                left = (splits & mask) == 0
                for value, counts in ((1, found[0, number]), (0, found[1, number])):
                    counts += torch.bincount(answer[left & (sign == value)], minlength=len(counts))
            nan += missing
        return found, nan

    def _flags(self, name: str) -> Flags:
        return Flags(self._memory(name, columns=Flags.width(self._length), dtype=torch.bool), self._length)

    def _flag(self, known: Known, above: Mapping[int, Flags], least: int, below: Flags) -> None:
        """Scores the candidates, some at a time, and flags those above the band under each mask, and those below it
        under the mask `least`."""
        asks, answer = self._queries.asks, self._answer
        pieces = cut(self._length, scored_at_once(len(self._queries), asks.device))
        out = {mask: _places(pieces, *known.under(mask)) for mask in above}
        own, scored = (_places(pieces, rows, self._own) for rows in (answer, asks[answer]))
        answers = [self._high.new_empty(0)]
        for number, piece in enumerate(pieces):
            scores = self._score(piece)
            flat = scores.view(-1)
            answers.append(flat.take(scored[number]))
            spread = scores
            if len(scores) < len(asks):
                spread = self._memory("spread", columns=scores.shape[1], dtype=scores.dtype)
            for mask, flags in above.items():
                # -inf is below every band: where a pair is left out, and where the answer itself stands.
                place = out[mask][number]
                kept = flat.take(place)
                flat.index_fill_(0, place, -torch.inf)
                if spread is not scores:
                    torch.index_select(scores, 0, asks, out=spread)
                spread.view(-1).index_fill_(0, own[number], -torch.inf)
                flags.above(piece, spread, self._high)
                if mask == least:
                    below.below(piece, spread, self._low)
                flat.index_copy_(0, place, kept)
        self._check(torch.cat(answers))

    def _score(self, piece: slice) -> Tensor:
        """float[u, c] for some of the candidates; 0 where the scores cannot be trusted, for they are decided anew."""
        queries, candidates = self._queries.rounded, self._candidates[..., piece, :]
        shared = candidates.ndim == 2
        scores = (
            self._model.score(queries, candidates)
            if shared
            else self._model.score(queries[:, None], candidates)[:, 0].contiguous()
        )
        return scores if self._trusted is None else scores.masked_fill_(~self._trusted, 0)

    def _check(self, scores: Tensor) -> None:
        """The scores of the answers lie in the band, or the bound is none."""
        low, high = (bound[self._answer, 0] for bound in (self._low, self._high))
        if not bool(((scores >= low) & (scores <= high)).all()):
            raise RuntimeError(f"{type(self._model).__name__}.score_error is smaller than the error of its score")

    def _undecided(self, above: Flags, below: Flags, number: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Answer and column, int64[v] each, of the pairs that are neither above nor below, some at a time; `number`
        int64[b] for each answer. A NaN is neither, so no pass over the scores looks for it."""
        rows = torch.nonzero(number)[:, 0]
        group = number[rows].cumsum(0) // PIECE
        for some in rows.split(torch.bincount(group).tolist()):
            row, column = _where(~(above.values[some] | below.values[some]))
            yield some[row], column

    def _exact_sign(self, answer: Tensor, column: Tensor) -> tuple[Tensor, int]:
        """For pairs int64[v], by the float64 kernel alone, int8[v]: 1 where the candidate in `column` scores higher
        than the answer, 0 where it scores as high, -1 where lower; and how many of the scores are NaN."""
        sign = torch.empty(len(answer), dtype=torch.int8, device=answer.device)
        nan = 0
        step = max(1, PIECE // self._queries.rows.shape[1])
        for start in range(0, len(answer), step):
            piece = slice(start, start + step)
            a, c = answer[piece], column[piece]
            q = self._queries.asks[a]
            rows = self._candidates[c] if self._candidates.ndim == 2 else self._candidates[q, c]
            scores = self._model.rescore_pairs(self._queries.rows[q], rows.double())
            missing = scores.isnan()
            nan += int(missing.sum())
            scores = torch.where(missing, -torch.inf, scores)
            exact = self._queries.exact[a]
            sign[piece] = (scores > exact).to(torch.int8) - (scores < exact).to(torch.int8)
        return sign, nan


def band(model: Model, queries: Queries, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The band `(low, high)` of each answer, float[b, 1] in the dtype of the candidates float[k, d]: a score outside
    lies on the side of the answer's score where the float64 kernel would find it. And bool[u, 1], for which queries
    that holds, or None for all; the band of the others is that of a score that is zero.

    Two errors add up: that of the score, and that of the float64 kernel, which is the first one's bound times
    the ratio of the units in the last place. The answer's score has none: it is the very number that the
    kernel's scores are compared with. Where overflow could spoil the scores, or a bound is not finite, nothing holds.
    An answer without a score is above all.
    """
    rows = queries.rounded
    info = torch.finfo(rows.dtype)
    error = model.score_error(rows, candidates).double()
    d = rows.shape[1]
    least, most = torch.aminmax(candidates)
    reach = torch.maximum(most, -least).double() + rows.abs().amax(1, keepdim=True)
    # A relative bound leaves out what underflows: squares inside its norms, and products.
    underflow = d * (d * info.eps * info.tiny**0.5 * reach + info.tiny)
    margin = error * (1 + torch.finfo(torch.float64).eps / info.eps) + underflow
    trusted = error < info.max * info.eps / 4
    margin, holds, exact = margin[queries.asks], trusted[queries.asks], queries.exact[:, None]
    low, high = (torch.where(holds, exact + sign * margin, sign).to(rows.dtype) for sign in (-1.0, 1.0))
    infinity = torch.full_like(low, torch.inf)
    # One step outward, because the sums above and the conversion were rounded. -inf has to be below the band.
    low, high = torch.nextafter(low, -infinity).clamp_(min=-info.max), torch.nextafter(high, infinity)
    low, high = (torch.where(queries.scored[:, None], bound, infinity) for bound in (low, high))
    return low, high, None if bool(trusted.all()) else trusted


def scored_at_once(answers: int, device: torch.device) -> int:
    """How many candidates: on the CPU their scores stay in the cache until they are counted, and are enough that the
    operations, twenty a piece, take long."""
    return 2 * at_a_time(answers, device)


def _places(pieces: Sequence[slice], row: Tensor, column: Tensor) -> tuple[Tensor, ...]:
    """Pairs int64[p] by the piece of the columns that their ascending column is in: for each piece, where they stand
    in a matrix of its columns."""
    start = torch.tensor([piece.start for piece in pieces], device=column.device)
    width = torch.tensor([piece.stop - piece.start for piece in pieces], device=column.device)
    number = torch.searchsorted(start, column, right=True) - 1
    place = row * width[number] + column - start[number]
    return place.tensor_split(torch.searchsorted(column, start[1:]).tolist())


def _where(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of what is true in bool[b, k]: `torch.nonzero`, but on the CPU several times as fast."""
    if mask.device.type != "cpu":
        row, column = torch.nonzero(mask, as_tuple=True)
        return row, column
    flat = torch.from_numpy(np.flatnonzero(mask.numpy()))
    return flat // mask.shape[1], flat % mask.shape[1]
