"""Scores block by block: of what has passed only a statistic is kept, unless one block holds all rows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor

from kgexp.scoring.scorer import Scorer, ids
from kgexp.scoring.targets import Targets
from kgexp.sharding.table import Block

T = TypeVar("T")


@dataclass(frozen=True)
class _Scored:
    """A block with its rows and the queries as leaves, and the scores float[q, k] as a function of them."""

    block: Block
    rows: Tensor
    queries: Tensor
    scores: Tensor


@dataclass
class Blocks(Scorer):
    """As many blocks at a time as the table's team has threads, each by one of them.

    What blocks yield is put together in their order, whoever has done them.

    Args:
        keep: whether `learn` finds the scores of `look`; else it computes them again.
        The others: see `Scorer`.
    """

    keep: bool

    def __post_init__(self) -> None:
        self._learns = torch.is_grad_enabled()
        self._kept: list[_Scored] = []

    def look(self, queries: Tensor, own: Tensor) -> Tensor:
        """See `Scorer.look`."""
        loss, targets = self.loss, self.targets

        def of_block(block: Block) -> tuple[_Scored | None, Tensor]:
            scored = self._score(queries, block)
            pairs, place = _within(targets, block)
            # Out of autograd's sight, and put back: a copy would cost another pass over all scores.
            others = scored.scores.data
            answers = others[place]
            if not loss.answers_first:
                own[pairs] = answers
            others[place] = -math.inf
            statistic = loss.statistic(others, own, targets)
            others[place] = answers
            return scored if self.keep else None, statistic

        # The statistic of no scores changes no other; a rank that owns no rows has nothing but that.
        statistic = loss.statistic(queries.new_empty(len(queries), 0), own, targets)
        with torch.set_grad_enabled(self.keep):
            for scored, part in self._of_blocks(of_block):
                statistic = loss.merge(statistic, part)
                if scored is not None:
                    self._kept.append(scored)
        return statistic

    def learn(self, queries: Tensor, statistic: Tensor, own: Tensor, upstream: Tensor) -> Tensor:
        """See `Scorer.learn`."""
        loss, targets = self.loss, self.targets
        own_gradient = loss.own_gradient(statistic, own, targets)

        def of_scored(scored: _Scored) -> Tensor:
            gradient = loss.gradient(scored.scores.detach(), statistic, own, targets)
            pairs, place = _within(targets, scored.block)
            gradient[place] = own_gradient[pairs]
            gradient.mul_(upstream)
            by_query, by_rows = torch.autograd.grad(scored.scores, (scored.queries, scored.rows), gradient)
            assert scored.block.grad is not None, "blocks come with room for their gradient"
            scored.block.grad.add_(by_rows)
            return by_query

        total = torch.zeros_like(queries)
        with torch.enable_grad():
            if self.keep:
                kept, team = iter(self._kept), self.entity.team
                some = iter(lambda: list(islice(kept, team.threads)), [])
                by_queries: Iterator[Tensor] = chain.from_iterable(team.map(of_scored, part) for part in some)
            else:
                by_queries = self._of_blocks(lambda block: of_scored(self._score(queries, block)))
            for by_query in by_queries:
                total += by_query
        return total

    def _of_blocks(self, work: Callable[[Block], T]) -> Iterator[T]:
        """What `work` makes of every block."""
        blocks = self.entity.candidate_blocks(self.block, grad=self._learns)
        while some := list(islice(blocks, self.entity.team.threads)):
            yield from self.entity.team.map(work, some)

    def _score(self, queries: Tensor, block: Block) -> _Scored:
        """The scores of a block; autograd leads from them to the leaves if it is on."""
        learns = torch.is_grad_enabled()
        rows, leaf = (x.detach().requires_grad_(learns) for x in (block.rows, queries))
        return _Scored(block, rows, leaf, self.model.score(leaf, self.drop(ids(block), rows)))


def _within(targets: Targets, block: Block) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The answers in the block: which they are, int64[x], and their places in its scores."""
    pairs, query, column = targets.within(block.start, block.stop)
    return pairs, (query, column)
