"""The loss of queries against every entity, in bounded memory.

Scores come block by block from the rows that a process owns; of a block that has passed only a statistic of each
query's scores is kept (its log-sum-exp, say). The backward pass scores each block again, this time for the
gradient: that of the rows goes straight to the table's buffer, that of the queries back through autograd. Where one
block holds all entities its scores are kept, and nothing is computed twice.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Candidates, Drop
from kgexp.scoring.losses import Loss
from kgexp.scoring.targets import Targets
from kgexp.scoring.technique import ScoringTechnique
from kgexp.sharding.table import Block, Table

#: Bytes of scores that are held at once unless a technique's `block` says otherwise.
_SCORE_BYTES = 256 << 20


class AllEntities(ScoringTechnique):
    """What techniques that score against every entity share.

    Args:
        sides: see `ScoringTechnique`.
        block: entities scored at a time; 0 takes as many as make 256 MB of scores. More than one block means
            that scores are computed twice, once for the statistic of the loss and once for the gradient.
    """

    def __init__(self, sides: str = "both", block: int = 0) -> None:
        super().__init__(sides)
        self.block = block

    def candidates(self, batch: Batch, num_entities: int, seed: int) -> Mapping[Side, Candidates]:
        """None are gathered: the table gives blocks of its rows."""
        return {}

    def block_size(self, queries: int, itemsize: int) -> int:
        """How many entities to score at a time, for so many queries and bytes a score."""
        return self.block or max(1, _SCORE_BYTES // (queries * itemsize))


def all_entities_loss(
    queries: Tensor, targets: Targets, model: Model, loss: Loss, entity: Table, drop: Drop, block: int
) -> Tensor:
    """The losses float[q] of queries float[q, d] against all entities.

    Args:
        queries: query rows, from which autograd goes on.
        targets: the answers of the queries.
        model: gives the scores.
        loss: what is made of them.
        entity: the table; `update` must follow the backward pass, for the rows' gradient waits in its buffer.
        drop: see `Rows.drop`.
        block: entities scored at a time.
    """
    losses: Tensor = _AllEntities.apply(queries, targets, _Scorer(model, loss, entity, drop, block))  # type: ignore[no-untyped-call]
    return losses


class _Scorer:
    """The scores of one call, block by block."""

    def __init__(self, model: Model, loss: Loss, entity: Table, drop: Drop, block: int) -> None:
        self.model, self.loss, self.entity, self.drop, self.block = model, loss, entity, drop, block
        self.keep = entity.num_rows <= block

    def blocks(self, queries: Tensor) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Every block with its rows as a leaf, and the scores float[q, k] as a function of queries and rows."""
        for block in self.entity.local_blocks(self.block, grad=True):
            rows = block.rows.detach().requires_grad_(torch.is_grad_enabled())
            ids = torch.arange(block.start, block.stop, device=rows.device)
            yield block, rows, self.model.score(queries, self.drop(ids, rows))

    @torch.no_grad()
    def own(self, queries: Tensor, targets: Targets) -> Tensor:
        """The scores of the answers float[p], before any block."""
        rows = self.drop(targets.entity, self.entity.read(targets.entity))
        return self.model.score_pairs(queries[targets.query], rows)


class _AllEntities(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, targets: Targets, scorer: _Scorer) -> Tensor:
        loss, ctx.kept = scorer.loss, None
        statistic: Tensor | None = None
        own = scorer.own(queries, targets) if loss.answers_first else queries.new_zeros(len(targets.entity))
        with torch.set_grad_enabled(scorer.keep):
            leaf = queries.detach().requires_grad_(scorer.keep)
            for block, rows, scores in scorer.blocks(leaf):
                if scorer.keep:
                    ctx.kept = [(block, rows, scores)], leaf
                pairs, place = _within(targets, block)
                # Out of autograd's sight, and put back: a copy would cost another pass over all scores.
                others = scores.data
                answers = others[place]
                if not loss.answers_first:
                    own[pairs] = answers
                others[place] = -math.inf
                part = loss.statistic(others, own, targets)
                others[place] = answers
                statistic = part if statistic is None else loss.merge(statistic, part)
        assert statistic is not None, "a table has at least one row"
        ctx.scorer, ctx.targets = scorer, targets
        ctx.save_for_backward(queries, statistic, own)
        return loss.value(statistic, own, targets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        queries, statistic, own = ctx.saved_tensors
        scorer, targets, upstream = ctx.scorer, ctx.targets, grads[0].unsqueeze(-1)
        own_gradient = scorer.loss.own_gradient(statistic, own, targets)
        total = torch.zeros_like(queries)
        with torch.enable_grad():
            blocks, leaf = ctx.kept or (None, queries.detach().requires_grad_())
            for block, rows, scores in blocks or scorer.blocks(leaf):
                gradient = scorer.loss.gradient(scores.detach(), statistic, own, targets)
                pairs, place = _within(targets, block)
                gradient[place] = own_gradient[pairs]
                gradient.mul_(upstream)
                by_query, by_rows = torch.autograd.grad(scores, (leaf, rows), gradient)
                total += by_query
                block.grad.add_(by_rows)
        return total, None, None


def _within(targets: Targets, block: Block) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The answers in the block: which they are, int64[x], and their places in its scores."""
    pairs, query, column = targets.within(block.start, block.stop)
    return pairs, (query, column)
