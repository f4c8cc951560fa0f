"""Ranking against a sample of the entities, for graphs where all of them are too many.

Its numbers are not comparable with those of the full ranking (Kochsiek and Gemulla, VLDB 2021), so
`sampled_name` is the protocol's own segment of every metric's name.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kgexp.data.graph import Graph
from kgexp.evaluation.batches import Batch, splits_of
from kgexp.evaluation.compare import Comparison, Known, Queries
from kgexp.evaluation.counts import content_bits
from kgexp.evaluation.ranker import Ranker
from kgexp.models.base import Model
from kgexp.randomness import Int64, Purpose, integers, key
from kgexp.scoring.share import Share
from kgexp.sharding.table import Table

ROWS = 1 << 24  # numbers in the candidate rows of a batch

_ANSWER = 8  # marks the drawn entities that are the answer, beside the bits of the splits


def sampled_name(candidates: int) -> str:
    """How metric names call a ranking against `candidates` uniformly drawn entities."""
    return f"sampled@{candidates}(uniform)"


class SampledRanker(Ranker):
    """Ranks each answer among `candidates` entities drawn uniformly, with replacement, without the known
    ones; of the answer's type where entities have types.

    Which are drawn depends on the seed, the side and the triple's ids alone. Drawn entities that a known
    triple of the filter's splits names, and the answer, are taken out, so |C| is at most `candidates` + 1.
    The filters given to `rank` should be called what `sampled_name` says.

    Args:
        model: scores.
        entity: rows float[n, d].
        relation: rows float[model.num_relation_rows(m), e].
        graph: for its splits and known triples.
        candidates: entities drawn for a query.
        seed: of the draw.
        queries: queries of a batch, at most; fewer where their candidates' rows are many.
        progress: called with (queries done, queries in all) after every batch.
    """

    def __init__(
        self,
        model: Model,
        entity: Table,
        relation: Table,
        graph: Graph,
        *,
        candidates: int,
        seed: int,
        queries: int = 512,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        size = max(1, min(queries, ROWS // (candidates * model.dim)))
        super().__init__(model, entity, relation, graph, queries=size, progress=progress)
        self.candidates, self._seed = candidates, seed

    def draw(self, batch: Batch) -> Int64:
        """The entities int64[b, candidates] drawn for the queries of a batch."""
        stream = key(self._seed, Purpose.EVALUATION_CANDIDATES, batch.side)
        base = content_bits(batch.triples, stream)[:, None]
        places = integers(stream, base + np.arange(self.candidates, dtype=np.uint64), len(batch.ids))
        return batch.ids.start + places

    def _count(self, batch: Batch, queries: Queries, masks: list[int]) -> tuple[Tensor, Int64, int]:
        drawn = self.draw(batch)
        splits = splits_of(batch.query, batch.entity, batch.splits, batch.asks[:, None], drawn)
        splits[drawn == batch.answers[:, None]] |= _ANSWER
        masks = [mask | _ANSWER for mask in masks]
        candidates = np.stack([((splits & mask) == 0).sum(axis=1) for mask in masks]) + 1
        # Where ranks own the rows, each counts for its part of the queries.
        mine = slice(*Share(self.entity.exchange.rank, self.entity.exchange.ranks).of(len(batch)))
        device = self.entity.device
        found = torch.zeros((2, len(masks), len(batch)), dtype=torch.int64, device=device)
        rows = self.entity.read(torch.from_numpy(drawn[mine]).to(device))
        if not len(rows):
            return found, candidates, 0
        own = torch.full((len(rows),), -1, device=device)
        comparison = Comparison(self.model, queries.each(mine), rows, own, self._scratch)
        column, query = np.nonzero(splits[mine].T)
        known = Known(*(torch.from_numpy(x).to(device) for x in (query, column, splits[mine][query, column])))
        found[:, :, mine], nan = comparison.counts(known, masks)
        return found, candidates, nan
