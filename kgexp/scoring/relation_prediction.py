"""Relation prediction as an auxiliary objective (Chen et al., AKBC 2021): which relation leads from head to tail?"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Rows, weighted_mean


class RelationPrediction:
    """weight · mean over the examples of the cross-entropy of the right relation row among all of them.

    With reciprocal relations the head query (?, r, t) of a triple is the example (t, r⁻¹, h) among 2m rows, so both
    directions are learnt. Without them both queries of a triple give the same example, among m rows.

    Args:
        weight: λ of the paper.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def loss(self, model: Model, batch: Batch, rows: Rows, num_relations: int) -> Tensor:
        """The weighted mean over the batch's examples, a scalar for autograd.

        Args:
            model: gives the scores.
            batch: the triples; its examples and weights count as they do for the scoring technique.
            rows: has the entities of the triples and `every_relation`.
            num_relations: m.
        """
        assert rows.every_relation is not None, "all relation rows are candidates"
        sides = tuple(rows.relations)
        if not model.reciprocal and batch.examples is None:
            sides = sides[:1]  # the other side's examples are the same
        heads, tails, right, sizes = [], [], [], []
        for side in sides:
            inverse = model.reciprocal and side is Side.HEAD
            h, t = (Side.TAIL, Side.HEAD) if inverse else (Side.HEAD, Side.TAIL)
            heads.append(batch.of(side, rows.entities[h]))
            tails.append(batch.of(side, rows.entities[t]))
            right.append(model.relation_rows(batch.of(side, batch.triples[:, 1]), side, num_relations))
            sizes.append(len(right[-1]))
        scores = model.score_relations(torch.cat(heads), rows.every_relation, torch.cat(tails))
        losses = F.cross_entropy(scores, torch.cat(right), reduction="none")
        return self.weight * weighted_mean(dict(zip(sides, losses.split(sizes), strict=True)), batch)

    def working_numbers(self, examples: int, classes: int, dim: int, relation_dim: int) -> int:
        """The most numbers that a step holds for it at once, an estimate from above: the scores and what becomes of
        them, the relation rows and their gradients, the queries and a piece of what pairs make."""
        return 4 * examples * classes + 4 * classes * relation_dim + 14 * examples * dim
