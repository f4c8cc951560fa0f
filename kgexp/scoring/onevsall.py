"""1vsAll: every triple's queries against all entities, with the triple's own answer as the one that is right."""

import torch
from torch import Tensor

from kgexp.models.base import Model
from kgexp.scoring.all_entities import AllEntities
from kgexp.scoring.batch import Batch, Rows, weighted_mean
from kgexp.scoring.loss import Loss
from kgexp.scoring.targets import Targets
from kgexp.scoring.technique import Extent
from kgexp.sharding.table import Table


class OneVsAll(AllEntities):
    """The full softmax (or logistic loss) over all entities (Lacroix et al., ICML 2018; Ruffinelli et al. 2020).

    Args:
        sides, block: see `AllEntities`.
    """

    def loss(self, model: Model, loss: Loss, batch: Batch, rows: Rows, entity: Table) -> Tensor:
        """See `ScoringTechnique.loss`."""
        queries, answers = [], []
        for side in self.sides:
            queries.append(model.query(side, rows.entities[side.other], rows.relations[side]))
            answers.append(batch.triples[:, side.column])
        # One product for both sides: the larger, the faster.
        joined, targets = torch.cat(queries), Targets.one_each(torch.cat(answers), entity.num_candidates)
        sizes = [len(self.sides) * size for size in batch.sizes]
        losses = self.losses(joined, targets, sizes, model, loss, entity, rows.drop)
        return weighted_mean(dict(zip(self.sides, losses.chunk(len(self.sides)), strict=True)), batch)

    def placed_entities(self, extent: Extent) -> int:
        """See `ScoringTechnique.placed_entities`."""
        block = self.block_size(len(self.sides) * extent.whole, itemsize=4)
        return 2 * extent.batch + min(extent.rows, block)

    def working_numbers(self, extent: Extent) -> int:
        """See `ScoringTechnique.working_numbers`."""
        return self.numbers(extent, len(self.sides) * extent.batch, len(self.sides) * extent.whole)
