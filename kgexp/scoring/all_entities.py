"""The loss of queries against every entity, in bounded memory.

Scores come block by block from the rows that a process owns; of a block that has passed only a statistic of each
query's scores is kept (its log-sum-exp, say). The backward pass scores each block again, this time for the
gradient: that of the rows goes straight to the table's buffer, that of the queries back through autograd. Where one
block holds all entities its scores are kept, and nothing is computed twice.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgexp.models.base import Model
from kgexp.scoring.losses import Loss
from kgexp.sharding.table import Block, Table


def all_entities_loss(queries: Tensor, answers: Tensor, model: Model, loss: Loss, entity: Table, block: int) -> Tensor:
    """The losses float[q] of queries float[q, d] whose answers are the ids int64[q], against all entities.

    Args:
        queries: query rows, from which autograd goes on.
        answers: ids of the answers.
        model: gives the scores.
        loss: what is made of them.
        entity: the table; `update` must follow the backward pass, for the rows' gradient waits in its buffer.
        block: entities scored at a time.
    """
    losses: Tensor = _AllEntities.apply(queries, answers, _Scorer(model, loss, entity, block))  # type: ignore[no-untyped-call]
    return losses


class _Scorer:
    """The scores of one call, block by block."""

    def __init__(self, model: Model, loss: Loss, entity: Table, block: int) -> None:
        self.model, self.loss, self.entity, self.block = model, loss, entity, block
        self.keep = entity.num_rows <= block

    def blocks(self, queries: Tensor) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Every block with its rows as a leaf, and the scores float[q, k] as a function of queries and rows."""
        for block in self.entity.local_blocks(self.block, grad=True):
            rows = block.rows.detach().requires_grad_(torch.is_grad_enabled())
            yield block, rows, self.model.score(queries, rows)


def _place(block: Block, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Which queries have their answer in the block, int64[p], and in which of its columns, int64[p]."""
    inside = ((answers >= block.start) & (answers < block.stop)).nonzero().squeeze(-1)
    return inside, answers[inside] - block.start


class _AllEntities(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, answers: Tensor, scorer: _Scorer) -> Tensor:
        loss, ctx.kept = scorer.loss, None
        statistic: Tensor | None = None
        own = queries.new_zeros(len(queries))
        with torch.set_grad_enabled(scorer.keep):
            leaf = queries.detach().requires_grad_(scorer.keep)
            for block, rows, scores in scorer.blocks(leaf):
                if scorer.keep:
                    ctx.kept = [(block, rows, scores)], leaf
                with torch.no_grad():
                    inside, column = _place(block, answers)
                    own[inside] = scores[inside, column]
                    part = loss.statistic(scores)
                    statistic = part if statistic is None else loss.merge(statistic, part)
        assert statistic is not None, "a table has at least one row"
        ctx.scorer = scorer
        ctx.save_for_backward(queries, answers, statistic, own)
        return loss.value(statistic, own, scorer.entity.num_rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        queries, answers, statistic, own = ctx.saved_tensors
        scorer, upstream = ctx.scorer, grads[0].unsqueeze(-1)
        n = scorer.entity.num_rows
        answer_gradient = scorer.loss.answer_gradient(statistic, own, n)
        total = torch.zeros_like(queries)
        with torch.enable_grad():
            blocks, leaf = ctx.kept or (None, queries.detach().requires_grad_())
            for block, rows, scores in blocks or scorer.blocks(leaf):
                gradient = scorer.loss.gradient(scores.detach(), statistic, n)
                inside, column = _place(block, answers)
                gradient[inside, column] = answer_gradient[inside]
                gradient.mul_(upstream)
                by_query, by_rows = torch.autograd.grad(scores, (leaf, rows), gradient)
                total += by_query
                block.grad.add_(by_rows)
        return total, None, None
