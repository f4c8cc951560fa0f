"""DistMult (Yang et al., ICLR 2015): Σ h r t, an inner product weighted by the relation."""

from torch import Tensor

from kgexp.models.base import DotProductModel


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

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """See `Model.score_relations`: Σ h r t is symmetric in all three."""
        return self.score(self.head_query(h, t), candidates)
