"""TransE (Bordes et al., NIPS 2013): a relation moves its heads to its tails, h + r ≈ t."""

from typing import ClassVar

from torch import Tensor

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

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """See `Model.score_relations`: ‖h + r - t‖ = ‖(t - h) - r‖, so the head query with h for r."""
        return self.score(self.head_query(h, t), candidates)
