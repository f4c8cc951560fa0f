"""The loss of queries against every entity, in bounded memory.

Scores come block by block from the rows that a process owns; of a block that has passed only a statistic of each
query's scores is kept (its log-sum-exp, say). The backward pass scores each block again, this time for the
gradient: that of the rows goes straight to the table's buffer, that of the queries back through autograd. Where one
block holds all rows of the process its scores are kept, and nothing is computed twice; where they are inner products
too, on the CPU, a step is three products (`kgexp.scoring.products`).

Where ranks own the rows, each scores the queries of all ranks against its own: the queries are gathered, statistics
merged over blocks and then over ranks, and the gradient of every query summed over ranks for the rank that has it (the
vocabulary-parallel softmax of Megatron-LM, Shoeybi et al. 2019).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgexp.data.sides import Side
from kgexp.models.base import DotProductModel, Model
from kgexp.scoring.batch import Batch, Candidates, Drop
from kgexp.scoring.blocks import Blocks
from kgexp.scoring.loss import Loss
from kgexp.scoring.products import Products, Spare
from kgexp.scoring.scorer import Scorer
from kgexp.scoring.targets import Targets
from kgexp.scoring.technique import Extent, ScoringTechnique
from kgexp.sharding.table import Table

#: Bytes of scores that are held at once unless a technique's `block` says otherwise.
_SCORE_BYTES = 256 << 20

#: Scores that a thread makes at a time on the CPU: more of them do not stay in the cache.
_SCORES = 1 << 19


class AllEntities(ScoringTechnique):
    """What techniques that score against every entity share.

    Args:
        sides: see `ScoringTechnique`.
        block: entities scored at a time; 0 takes as many as make 256 MB of scores. More than one block means
            that scores are computed twice, once for the statistic of the loss and once for the gradient.
    """

    def __init__(self, sides: str = "both", block: int = 0) -> None:
        super().__init__(sides)
        self.block, self._spare = block, Spare()

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
        by_threads = extent.threads * whole  # the gradients of the queries by the blocks under way
        rows = extent.rows + block + 8 * extent.batch + 6 * own + gathered + by_threads
        return rows * extent.dim + 6 * whole * block

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
        everyones = targets.of_all(entity.exchange, sizes)
        whole, given = sum(sizes), (loss, entity, everyones, drop)
        fits, on_cpu = self.block_size(whole, queries.element_size()), entity.device.type == "cpu"
        keep = torch.is_grad_enabled() and entity.local_rows <= fits
        if keep and on_cpu and isinstance(model, DotProductModel) and whole and entity.local_rows:
            scorer: Scorer = Products(model, *given, fits, sizes, self._spare)
        else:
            block = fits
            if on_cpu and not self.block:
                # The gradient of all queries comes out of every block: narrow ones would spend their time adding it up.
                block = max(1, min(fits, max(2 * entity.dim, _SCORES // max(1, whole))))
            scorer = Blocks(model, *given, block, sizes, keep=keep)
        losses: Tensor = _AllEntities.apply(queries, scorer)  # type: ignore[no-untyped-call]
        return losses


class _AllEntities(Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, scorer: Scorer) -> Tensor:
        loss, exchange, targets = scorer.loss, scorer.exchange, scorer.targets
        queries = exchange.all_gather(mine, scorer.sizes)
        own = queries.new_zeros(len(targets.entity))
        if loss.answers_first:
            own = exchange.all_sum(scorer.own(queries))
        statistic = scorer.look(queries, own)
        if not loss.answers_first:
            own = exchange.all_sum(own)
        statistic = scorer.of_all_ranks(statistic)
        ctx.scorer = scorer
        ctx.save_for_backward(queries, statistic, own)
        losses: list[Tensor] = list(loss.value(statistic, own, targets).split(list(scorer.sizes)))
        return losses[exchange.rank].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        scorer: Scorer = ctx.scorer
        upstream = scorer.exchange.all_gather(grads[0].contiguous(), scorer.sizes).unsqueeze(-1)
        queries, statistic, own = ctx.saved_tensors
        total = scorer.learn(queries, statistic, own, upstream)
        return scorer.exchange.reduce_scatter(total, scorer.sizes), None
