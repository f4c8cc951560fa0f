"""Scores that are inner products, all of them in memory at once: a step is three matrix products and what lies between.

The scores of some queries against all rows are made, looked at and overwritten while they are in the cache: with what
the loss wants to keep of them, then with their derivative. All of it meets the rows and the queries in products that
leave nothing to be added up. The memory of the scores is used again in the next step: fresh pages cost as much as the
exponentials.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.scoring.scorer import Scorer, ids
from kgexp.scoring.targets import Targets
from kgexp.sharding.table import Block
from kgexp.team import cut

#: Scores that a thread makes at a time, and the queries that these are of: enough for a product to be fast.
_SCORES, _LEAST, _MOST = 1 << 21, 64, 256

#: Rows whose gradient a thread makes at a time.
_ROWS = 512

#: Rows of scores begin at a multiple of so many numbers: on a cache line.
_LINE = 16


class Spare:
    """Memory for scores: whoever takes some has it alone until it is given back."""

    def __init__(self) -> None:
        self._memory: list[Tensor] = []

    def take(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """float[rows, columns] with whatever was left there, in the dtype of `like`."""
        width = -(-columns // _LINE) * _LINE
        try:  # asking first whether there is some would let another thread take it meanwhile
            memory = self._memory.pop()
        except IndexError:
            memory = like.new_empty(0)
        if memory.numel() < rows * width or memory.dtype != like.dtype:
            memory = like.new_empty(rows * width)
        return memory[: rows * width].view(rows, width)[:, :columns]

    def give(self, scores: Tensor) -> None:
        """Back what was taken."""
        assert scores._base is not None, "what is taken is a view"
        self._memory.append(scores._base)


@dataclass(frozen=True)
class _Rows:
    """A block as it is scored: its rows float[k, d] after dropout, those before it as a leaf, and its columns."""

    block: Block
    leaf: Tensor
    rows: Tensor
    columns: slice


@dataclass(frozen=True)
class _Piece:
    """Some of the queries with their answers, and of their scores what the loss has kept beside them."""

    queries: slice
    pairs: slice
    targets: Targets
    statistic: Tensor
    kept: Tensor | None


@dataclass
class Products(Scorer):
    """Pieces of the queries, then of the rows, shared by the table's team; what they yield does not depend on it.

    Args:
        spare: where the memory of the scores comes from.
        The others: see `Scorer`; a block has all rows.
    """

    spare: Spare

    def look(self, queries: Tensor, own: Tensor) -> Tensor:
        """See `Scorer.look`."""
        self._rows = self._placed()
        self._scores = self.spare.take(len(queries), self._rows[-1].columns.stop, queries)
        most = min(_MOST, max(_LEAST, _SCORES // self._scores.shape[1]))

        def look(some: slice) -> _Piece:
            pairs, targets = self.targets.of_queries(some)
            scores, mine = self._scores[some], own[pairs]
            for part in self._rows:
                torch.mm(queries[some], part.rows.mT, out=scores[:, part.columns])
            for answers, place in self._answers(targets):
                if not self.loss.answers_first:
                    mine[answers] = scores[place]
                scores[place] = -math.inf
            return _Piece(some, pairs, targets, *self.loss.statistic_(scores, mine, targets))

        self._pieces = self.entity.team.map(look, cut(len(queries), most))
        return torch.cat([piece.statistic for piece in self._pieces])

    def learn(self, queries: Tensor, statistic: Tensor, own: Tensor, upstream: Tensor) -> Tensor:
        """See `Scorer.learn`."""
        by_queries, scaled = torch.empty_like(queries), torch.empty_like(queries)

        def of_queries(piece: _Piece) -> None:
            some, gradient, mine = piece.queries, self._scores[piece.queries], own[piece.pairs]
            factor = self.loss.gradient_(gradient, piece.kept, statistic[some], mine, piece.targets)
            by_own = self.loss.own_gradient(statistic[some], mine, piece.targets)
            for answers, (query, column) in self._answers(piece.targets):
                gradient[query, column] = by_own[answers] / factor[query, 0]
            # The rows of both products are multiplied instead of all scores.
            factor = factor * upstream[some]
            torch.mul(queries[some], factor, out=scaled[some])
            by = by_queries[some]
            for number, part in enumerate(self._rows):
                torch.addmm(by, gradient[:, part.columns], part.rows, beta=min(number, 1), out=by)
            by.mul_(factor)

        self.entity.team.map(of_queries, self._pieces)
        for part in self._rows:
            self._learn_rows(part, self._scores[:, part.columns], scaled)
        self.spare.give(self._scores)
        del self._scores
        return by_queries

    def _learn_rows(self, part: _Rows, gradient: Tensor, queries: Tensor) -> None:
        """Adds to the gradient of a block's rows, from that of their scores float[q, k]."""
        assert part.block.grad is not None, "blocks come with room for their gradient"
        as_they_are = part.rows is part.leaf
        by_rows = part.block.grad if as_they_are else torch.zeros_like(part.rows)

        def of_rows(some: slice) -> None:
            by_rows[some].addmm_(gradient[:, some].mT, queries)

        self.entity.team.map(of_rows, cut(len(by_rows), _ROWS))
        if not as_they_are:
            part.block.grad.add_(torch.autograd.grad(part.rows, part.leaf, by_rows)[0])

    def _placed(self) -> list[_Rows]:
        """The blocks beside each other."""
        placed, start = [], 0
        for block in self.entity.candidate_blocks(self.block, grad=True):
            with torch.enable_grad():
                leaf = block.rows.detach().requires_grad_()
                rows = self.drop(ids(block), leaf)
            stop = start + len(block.rows)
            placed.append(_Rows(block, leaf, rows, slice(start, stop)))
            start = stop
        return placed

    def _answers(self, targets: Targets) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """For every block, the answers in it: which they are, int64[x], and their places in the scores."""
        for part in self._rows:
            answers, query, column = targets.within(part.block.start, part.block.stop)
            yield answers, (query, column + part.columns.start)
