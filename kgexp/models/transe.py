"""TransE (Bordes et al., NIPS 2013): a relation moves its heads to its tails, h + r ≈ t."""

from typing import ClassVar

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.base import BackwardInto
from kgexp.models.distance import DistanceModel
from kgexp.models.distances import Euclidean, Manhattan


class TransE(DistanceModel):
    """score = margin - ‖h + r - t‖, by the norm `l1` or `l2`.

    Without reciprocal relations it can hardly model a relation that is symmetric or one-to-many.

    The arguments are those of `DistanceModel`.
    """

    norms: ClassVar = {"l1": Manhattan, "l2": Euclidean}

    @property
    def relation_dim(self) -> int:
        """As wide as an entity row."""
        return self.dim

    def tail_query(self, h: Tensor, r: Tensor) -> Tensor:
        """q = h + r."""
        return h + r

    def head_query(self, r: Tensor, t: Tensor) -> Tensor:
        """q = t - r: ‖h + r - t‖ = ‖(t - r) - h‖."""
        return t - r

    def queried(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, BackwardInto]:
        """See `Model.queried`."""
        back = side is Side.HEAD and not self.reciprocal

        def backward(upstream: Tensor, by_entity: Tensor, by_relation: Tensor) -> None:
            by_entity.copy_(upstream)
            torch.neg(upstream, out=by_relation) if back else by_relation.copy_(upstream)

        return self.query(side, entity, relation), backward

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """See `Model.score_relations`: ‖h + r - t‖ = ‖(t - h) - r‖, so the head query with h for r."""
        return self.score(self.head_query(h, t), candidates)
