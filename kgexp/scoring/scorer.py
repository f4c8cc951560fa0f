"""Who scores queries against every entity: what a loss over all of them asks of the rows of a process."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from kgexp.models.base import Model
from kgexp.scoring.batch import Drop
from kgexp.scoring.loss import Loss
from kgexp.scoring.targets import Targets
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.table import Block, Table


@dataclass
class Scorer(ABC):
    """The scores of one call: q queries, those of all ranks, against the rows that this process owns.

    Args:
        model: gives the scores.
        loss: what is made of them.
        entity: the table.
        targets: the answers of the q queries.
        drop: see `Rows.drop`.
        block: entities scored at a time.
        sizes: how many of the queries every rank has.
    """

    model: Model
    loss: Loss
    entity: Table
    targets: Targets
    drop: Drop
    block: int
    sizes: Sequence[int]

    @property
    def exchange(self) -> Exchange:
        """Over the ranks that own the table's rows."""
        return self.entity.exchange

    @abstractmethod
    def look(self, queries: Tensor, own: Tensor) -> Tensor:
        """The statistic float[q, s] of the process's rows, for queries float[q, d].

        The answers' scores float[p] are known if the loss is `answers_first`; else those among these rows are put
        there."""

    @abstractmethod
    def learn(self, queries: Tensor, statistic: Tensor, own: Tensor, upstream: Tensor) -> Tensor:
        """Adds to the rows' gradient buffer, and returns the derivative float[q, d] by the queries.

        Args:
            queries: float[q, d], as in `look`.
            statistic: float[q, s], of all rows.
            own: float[p], the scores of all answers.
            upstream: float[q, 1], the derivative by the losses.
        """

    @torch.no_grad()
    def own(self, queries: Tensor) -> Tensor:
        """The scores of the answers float[p] that this process has rows of, of the others zero, before any block."""
        own = queries.new_zeros(len(self.targets.entity))
        for block in self.entity.candidate_blocks(self.block):
            pairs, query, column = self.targets.within(block.start, block.stop)
            rows = self.drop(ids(block)[column], block.rows[column])
            own[pairs] = self.model.score_pairs(queries[query], rows)
        return own

    def of_all_ranks(self, statistic: Tensor) -> Tensor:
        """The statistic float[q, s] of all rows, from that of this rank's."""
        everyone = self.exchange.all_gather(statistic, [len(statistic)] * self.exchange.ranks)
        merged: Tensor = reduce(self.loss.merge, everyone.split(len(statistic)))
        return merged


def ids(block: Block) -> Tensor:
    """int64[k], of the block's rows."""
    return torch.arange(block.start, block.stop, device=block.rows.device)
