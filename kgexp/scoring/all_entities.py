"""The loss of queries against every entity, in bounded memory.

Scores come block by block from the rows that a process owns; of a block that has passed only a statistic of each
query's scores is kept (its log-sum-exp, say). The backward pass scores each block again, this time for the
gradient: that of the rows goes straight to the table's buffer, that of the queries back through autograd. Where one
block holds all rows of the process its scores are kept, and nothing is computed twice.

Where ranks own the rows, each scores the queries of all ranks against its own: the queries are gathered, statistics
merged over blocks and then over ranks, and the gradient of every query summed over ranks for the rank that has it (the
vocabulary-parallel softmax of Megatron-LM, Shoeybi et al. 2019).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Candidates, Drop
from kgexp.scoring.losses import Loss
from kgexp.scoring.targets import Targets
from kgexp.scoring.technique import Extent, ScoringTechnique
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
        return self.block or max(1, _SCORE_BYTES // (max(1, queries) * itemsize))

    def numbers(self, extent: Extent, own: int, whole: int) -> int:
        """`working_numbers`, for a rank's own queries and those of all ranks: the gradient of its rows and of a block,
        what becomes of the batch's rows and of the queries, and the block's scores with all that a loss makes of them.
        """
        block = min(extent.rows, self.block_size(whole, itemsize=4))
        gathered = 0 if own == whole else 4 * whole
        return (extent.rows + block + 8 * extent.batch + 6 * own + gathered) * extent.dim + 6 * whole * block

    def losses(
        self,
        queries: Tensor,
        targets: Targets,
        sizes: Sequence[int],
        model: Model,
        loss: Loss,
        entity: Table,
        drop: Drop,
    ) -> Tensor:
        """The losses float[q] of this rank's queries float[q, d] against all entities.

        Args:
            queries: query rows, from which autograd goes on.
            targets: their answers.
            sizes: how many queries every rank has.
            model: gives the scores.
            loss: what is made of them.
            entity: the table; `update` must follow the backward pass, for the rows' gradient waits in its buffer.
            drop: see `Rows.drop`.
        """
        if entity.exchange.ranks == 1:  # where every rank holds all rows, each scores its own queries
            sizes = [len(queries)]
        block = self.block_size(sum(sizes), queries.element_size())
        scorer = _Scorer(model, loss, entity, drop, block, sizes, torch.is_grad_enabled())
        losses: Tensor = _AllEntities.apply(queries, targets.of_all(entity.exchange, sizes), scorer)  # type: ignore[no-untyped-call]
        return losses


class _Scorer:
    """The scores of one call, block by block."""

    def __init__(
        self, model: Model, loss: Loss, entity: Table, drop: Drop, block: int, sizes: Sequence[int], learns: bool
    ) -> None:
        self.model, self.loss, self.entity, self.drop, self.block = model, loss, entity, drop, block
        self.sizes, self.exchange, self.learns = sizes, entity.exchange, learns
        self.keep = learns and entity.local_rows <= block

    def blocks(self, queries: Tensor) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Every block with its rows as a leaf, and the scores float[q, k] as a function of queries and rows."""
        for block in self.entity.candidate_blocks(self.block, grad=self.learns):
            rows = block.rows.detach().requires_grad_(torch.is_grad_enabled())
            yield block, rows, self.model.score(queries, self.drop(_ids(block), rows))

    @torch.no_grad()
    def own(self, queries: Tensor, targets: Targets) -> Tensor:
        """The scores of the answers float[p] that this process has rows of, of the others zero, before any block."""
        own = queries.new_zeros(len(targets.entity))
        for block in self.entity.candidate_blocks(self.block):
            pairs, (query, column) = _within(targets, block)
            rows = self.drop(_ids(block)[column], block.rows[column])
            own[pairs] = self.model.score_pairs(queries[query], rows)
        return own

    def of_all_ranks(self, statistic: Tensor) -> Tensor:
        """The statistic float[q, s] of all rows, from that of this rank's."""
        everyone = self.exchange.all_gather(statistic, [len(statistic)] * self.exchange.ranks)
        merged: Tensor = reduce(self.loss.merge, everyone.split(len(statistic)))
        return merged


class _AllEntities(Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, targets: Targets, scorer: _Scorer) -> Tensor:
        loss, exchange, kept = scorer.loss, scorer.exchange, []
        queries = exchange.all_gather(mine, scorer.sizes)
        own = queries.new_zeros(len(targets.entity))
        if loss.answers_first:
            own = exchange.all_sum(scorer.own(queries, targets))
        # The statistic of no scores changes no other; a rank that owns no rows has nothing but that.
        statistic = loss.statistic(queries.new_empty(len(queries), 0), own, targets)
        with torch.set_grad_enabled(scorer.keep):
            leaf = queries.detach().requires_grad_(scorer.keep)
            for block, rows, scores in scorer.blocks(leaf):
                if scorer.keep:
                    kept.append((block, rows, scores))
                pairs, place = _within(targets, block)
                # Out of autograd's sight, and put back: a copy would cost another pass over all scores.
                others = scores.data
                answers = others[place]
                if not loss.answers_first:
                    own[pairs] = answers
                others[place] = -math.inf
                statistic = loss.merge(statistic, loss.statistic(others, own, targets))
                others[place] = answers
        if not loss.answers_first:
            own = exchange.all_sum(own)
        statistic = scorer.of_all_ranks(statistic)
        ctx.scorer, ctx.targets, ctx.kept = scorer, targets, (kept, leaf) if scorer.keep else None
        ctx.save_for_backward(queries, statistic, own)
        losses: list[Tensor] = list(loss.value(statistic, own, targets).split(list(scorer.sizes)))
        return losses[exchange.rank].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        queries, statistic, own = ctx.saved_tensors
        scorer, targets = ctx.scorer, ctx.targets
        upstream = scorer.exchange.all_gather(grads[0].contiguous(), scorer.sizes).unsqueeze(-1)
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
        return scorer.exchange.reduce_scatter(total, scorer.sizes), None, None


def _ids(block: Block) -> Tensor:
    """int64[k], of the block's rows."""
    return torch.arange(block.start, block.stop, device=block.rows.device)


def _within(targets: Targets, block: Block) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The answers in the block: which they are, int64[x], and their places in its scores."""
    pairs, query, column = targets.within(block.start, block.stop)
    return pairs, (query, column)
