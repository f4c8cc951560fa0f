"""DistMult (Yang et al., ICLR 2015): Σ h r t, an inner product weighted by the relation."""

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.base import BackwardInto, DotProductModel


class DistMult(DotProductModel):
    """Symmetric in head and tail: without reciprocal relations it cannot tell a relation from its inverse."""

    @property
    def relation_dim(self) -> int:
        """As wide as an entity row."""
        return self.dim

    def tail_query(self, h: Tensor, r: Tensor) -> Tensor:
        """q = h ∘ r."""
        return h * r

    def head_query(self, r: Tensor, t: Tensor) -> Tensor:
        """q = r ∘ t."""
        return r * t

    def queried(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, BackwardInto]:
        """See `Model.queried`."""

        def backward(upstream: Tensor, by_entity: Tensor, by_relation: Tensor) -> None:
            torch.mul(upstream, relation, out=by_entity)
            torch.mul(upstream, entity, out=by_relation)

        return entity * relation, backward

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """See `Model.score_relations`: Σ h r t is symmetric in all three."""
        return self.score(self.head_query(h, t), candidates)
