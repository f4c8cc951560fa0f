"""Negative sampling: every triple against a few random entities, shared by the triples of a chunk."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.randomness import Purpose, integers, key
from kgexp.scoring.batch import Batch, Rows, weighted_mean
from kgexp.scoring.losses import Loss
from kgexp.scoring.technique import ScoringTechnique
from kgexp.sharding.table import Table

_PURPOSE = {Side.HEAD: Purpose.HEAD_NEGATIVES, Side.TAIL: Purpose.TAIL_NEGATIVES}


class NegativeSampling(ScoringTechnique):
    """Uniform negatives, drawn with replacement, the same for all triples of a chunk.

    Sharing makes the scores of a chunk one matrix product, which is what makes sampling fast.

    Args:
        negatives: how many a side.
        chunk_size: triples that share their negatives.
        sides: see `ScoringTechnique`.
    """

    def __init__(self, negatives: int = 150, chunk_size: int = 1000, sides: str = "both") -> None:
        super().__init__(sides)
        self.negatives = negatives
        self.chunk_size = chunk_size

    def candidates(self, batch: Batch, num_entities: int, seed: int) -> Mapping[Side, Sequence[Tensor]]:
        """See `ScoringTechnique.candidates`."""
        chunks = -(-len(batch) // self.chunk_size)
        counters = np.arange(chunks * self.negatives).reshape(chunks, self.negatives)
        drawn = {}
        for side in self.sides:
            ids = integers(key(seed, _PURPOSE[side], batch.step), counters, num_entities)
            drawn[side] = torch.from_numpy(ids).unbind()
        return drawn

    def loss(self, model: Model, loss: Loss, batch: Batch, rows: Rows, entity: Table) -> Tensor:
        """See `ScoringTechnique.loss`."""
        return weighted_mean([self._side(model, loss, side, rows) for side in self.sides], batch.weights)

    def working_numbers(self, batch_size: int, num_entities: int, dim: int) -> int:
        """See `ScoringTechnique.working_numbers`."""
        chunks = -(-batch_size // self.chunk_size)
        rows = 2 * batch_size + len(self.sides) * chunks * self.negatives
        # Rows: distinct, spread over their places, and the gradients of both; queries and their parts come on top.
        scores = 3 * len(self.sides) * batch_size * self.negatives
        return 4 * rows * dim + 6 * len(self.sides) * batch_size * dim + scores

    def _side(self, model: Model, loss: Loss, side: Side, rows: Rows) -> Tensor:
        """The losses float[b] of one side's examples."""
        other = Side.HEAD if side is Side.TAIL else Side.TAIL
        queries = model.query(side, rows.entities[other], rows.relations[side])
        answers = model.score_pairs(queries, rows.entities[side])
        losses = [
            loss.sampled(answer, model.score(query, candidates))
            for query, answer, candidates in zip(
                queries.split(self.chunk_size), answers.split(self.chunk_size), rows.candidates[side], strict=True
            )
        ]
        return torch.cat(losses)
