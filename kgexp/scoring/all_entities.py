"""The loss of queries against every entity, in bounded memory.

Scores come block by block from the rows that a process owns; of a block that has passed only a statistic of each
query's scores is kept (its log-sum-exp, say). The backward pass scores each block again, this time for the
gradient: that of the rows goes straight to the table's buffer, that of the queries back through autograd. Where one
block holds all rows of the process its scores are kept, and nothing is computed twice.

Where ranks own the rows, each scores the queries of all ranks against its own: the queries are gathered, statistics
merged over blocks and then over ranks, and the gradient of every query summed over ranks for the rank that has it (the
vocabulary-parallel softmax of Megatron-LM, Shoeybi et al. 2019).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

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

#: Scores that a thread makes at a time on the CPU: more of them do not stay in the cache.
_SCORES = 1 << 19

T = TypeVar("T")


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
        fits = self.block_size(sum(sizes), queries.element_size())
        block, keep = fits, torch.is_grad_enabled() and entity.local_rows <= fits
        if not self.block and entity.device.type == "cpu":
            # The gradient of all queries comes out of every block: narrow ones would spend their time adding it up.
            block = max(1, min(fits, max(2 * entity.dim, _SCORES // max(1, sum(sizes)))))
        everyones = targets.of_all(entity.exchange, sizes)
        scorer = _Scorer(model, loss, entity, everyones, drop, block, sizes, keep)
        losses: Tensor = _AllEntities.apply(queries, scorer)  # type: ignore[no-untyped-call]
        return losses


@dataclass(frozen=True)
class _Scored:
    """A block with its rows and the queries as leaves, and the scores float[q, k] as a function of them."""

    block: Block
    rows: Tensor
    queries: Tensor
    scores: Tensor


class _Scorer:
    """The scores of one call, block by block: as many at a time as the table's team has threads, each by one of them.

    What blocks yield is put together in their order, whoever has done them.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        entity: Table,
        targets: Targets,
        drop: Drop,
        block: int,
        sizes: Sequence[int],
        keep: bool,
    ) -> None:
        self.model, self.loss, self.entity, self.targets, self.drop = model, loss, entity, targets, drop
        self.block, self.sizes, self.exchange, self.keep = block, sizes, entity.exchange, keep
        self.learns = torch.is_grad_enabled()

    def of_blocks(self, work: Callable[[Block], T]) -> Iterator[T]:
        """What `work` makes of every block."""
        blocks = self.entity.candidate_blocks(self.block, grad=self.learns)
        while some := list(itertools.islice(blocks, self.entity.team.threads)):
            yield from self.entity.team.map(work, some)

    def score(self, queries: Tensor, block: Block) -> _Scored:
        """The scores of a block; autograd leads from them to the leaves if it is on."""
        learns = torch.is_grad_enabled()
        rows, leaf = (x.detach().requires_grad_(learns) for x in (block.rows, queries))
        return _Scored(block, rows, leaf, self.model.score(leaf, self.drop(_ids(block), rows)))

    @torch.no_grad()
    def own(self, queries: Tensor) -> Tensor:
        """The scores of the answers float[p] that this process has rows of, of the others zero, before any block."""
        own = queries.new_zeros(len(self.targets.entity))
        for block in self.entity.candidate_blocks(self.block):
            pairs, (query, column) = _within(self.targets, block)
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
    def forward(ctx: Any, mine: Tensor, scorer: _Scorer) -> Tensor:
        loss, exchange, targets, kept = scorer.loss, scorer.exchange, scorer.targets, []
        queries = exchange.all_gather(mine, scorer.sizes)
        own = queries.new_zeros(len(targets.entity))
        if loss.answers_first:
            own = exchange.all_sum(scorer.own(queries))

        def look(block: Block) -> tuple[_Scored | None, Tensor]:
            scored = scorer.score(queries, block)
            pairs, place = _within(targets, block)
            # Out of autograd's sight, and put back: a copy would cost another pass over all scores.
            others = scored.scores.data
            answers = others[place]
            if not loss.answers_first:
                own[pairs] = answers
            others[place] = -math.inf
            statistic = loss.statistic(others, own, targets)
            others[place] = answers
            return scored if scorer.keep else None, statistic

        # The statistic of no scores changes no other; a rank that owns no rows has nothing but that.
        statistic = loss.statistic(queries.new_empty(len(queries), 0), own, targets)
        with torch.set_grad_enabled(scorer.keep):
            for scored, of_block in scorer.of_blocks(look):
                statistic = loss.merge(statistic, of_block)
                kept.append(scored)
        if not loss.answers_first:
            own = exchange.all_sum(own)
        statistic = scorer.of_all_ranks(statistic)
        ctx.scorer, ctx.kept = scorer, kept
        ctx.save_for_backward(queries, statistic, own)
        losses: list[Tensor] = list(loss.value(statistic, own, targets).split(list(scorer.sizes)))
        return losses[exchange.rank].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        queries, statistic, own = ctx.saved_tensors
        scorer, targets, kept = ctx.scorer, ctx.scorer.targets, iter(ctx.kept)
        upstream = scorer.exchange.all_gather(grads[0].contiguous(), scorer.sizes).unsqueeze(-1)
        own_gradient = scorer.loss.own_gradient(statistic, own, targets)

        def learn(scored: _Scored) -> Tensor:
            gradient = scorer.loss.gradient(scored.scores.detach(), statistic, own, targets)
            pairs, place = _within(targets, scored.block)
            gradient[place] = own_gradient[pairs]
            gradient.mul_(upstream)
            by_query, by_rows = torch.autograd.grad(scored.scores, (scored.queries, scored.rows), gradient)
            assert scored.block.grad is not None, "blocks come with room for their gradient"
            scored.block.grad.add_(by_rows)
            return by_query

        total = torch.zeros_like(queries)
        with torch.enable_grad():
            if scorer.keep:
                team = scorer.entity.team
                parts = (team.map(learn, some) for some in iter(lambda: list(itertools.islice(kept, team.threads)), []))
                by_queries = itertools.chain.from_iterable(parts)
            else:
                by_queries = scorer.of_blocks(lambda block: learn(scorer.score(queries, block)))
            for by_query in by_queries:
                total += by_query
        return scorer.exchange.reduce_scatter(total, scorer.sizes), None


def _ids(block: Block) -> Tensor:
    """int64[k], of the block's rows."""
    return torch.arange(block.start, block.stop, device=block.rows.device)


def _within(targets: Targets, block: Block) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The answers in the block: which they are, int64[x], and their places in its scores."""
    pairs, query, column = targets.within(block.start, block.stop)
    return pairs, (query, column)
