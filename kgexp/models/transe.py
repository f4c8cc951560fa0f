"""TransE (Bordes et al., NIPS 2013): a relation moves its heads to its tails, h + r ≈ t."""

from torch import Tensor

from kgexp.models.distance import DistanceModel
from kgexp.models.distances import Euclidean, Manhattan


class TransE(DistanceModel):
    """score = margin - ‖h + r - t‖, by the norm `l1` or `l2`.

    Without reciprocal relations it can hardly model a relation that is symmetric or one-to-many.

    Args:
        dim, reciprocal, init, init_scale, max_norm, entity_dropout, relation_dropout: see `Model`.
        norm: `l1` or `l2`.
        margin: see `DistanceModel`.
    """

    def __init__(
        self,
        dim: int,
        reciprocal: bool = True,
        init: str = "normal",
        init_scale: float = 0.1,
        max_norm: float | None = None,
        norm: str = "l2",
        margin: float = 0.0,
        entity_dropout: float = 0.0,
        relation_dropout: float = 0.0,
    ) -> None:
        distance = {"l1": Manhattan, "l2": Euclidean}[norm]()
        super().__init__(
            dim, reciprocal, init, init_scale, max_norm, distance, margin, entity_dropout, relation_dropout
        )

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
