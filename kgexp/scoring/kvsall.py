"""KvsAll: every distinct query of train against all entities, with the set of all its train answers."""

import torch
from torch import Tensor

from kgexp.models.base import Model
from kgexp.scoring.all_entities import AllEntities
from kgexp.scoring.batch import Batch, Rows, weighted_mean
from kgexp.scoring.loss import Loss
from kgexp.scoring.technique import Extent
from kgexp.sharding.table import Table


class KvsAll(AllEntities):
    """An example is a distinct query (Dettmers et al., AAAI 2018; Ruffinelli et al., ICLR 2020).

    The batch must come with its targets. A regulariser sees one triple of each query, which is drawn anew each time:
    in expectation the mean over the query's triples.

    Args:
        sides, block: see `AllEntities`.
    """

    by_query = True

    def loss(self, model: Model, loss: Loss, batch: Batch, rows: Rows, entity: Table) -> Tensor:
        """See `ScoringTechnique.loss`."""
        assert batch.targets is not None and batch.examples is not None, "the batch holds queries"
        queries = []
        for side in self.sides:
            queries.append(model.query(side, batch.of(side, rows.entities[side.other]), rows.relations[side]))
        joined = torch.cat(queries)  # in the order of the batch: its tail queries come first
        losses = self.losses(joined, batch.targets, batch.sizes, model, loss, entity, rows.drop)
        parts = losses.split([len(part) for part in queries])
        return weighted_mean(dict(zip(self.sides, parts, strict=True)), batch)

    def placed_entities(self, extent: Extent) -> int:
        """See `ScoringTechnique.placed_entities`."""
        return 2 * extent.batch + min(extent.rows, self.block_size(extent.whole, itemsize=4))

    def working_numbers(self, extent: Extent) -> int:
        """See `ScoringTechnique.working_numbers`. The answers' own scores and ids are fewer than the scores."""
        return self.numbers(extent, extent.batch, extent.whole)
