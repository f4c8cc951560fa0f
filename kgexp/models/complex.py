"""ComplEx (Trouillon et al., ICML 2016): Re ⟨h, r, conj(t)⟩ over complex vectors.

A row holds the real parts first, then the imaginary parts; no complex dtype appears in tables or files.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgexp.data.sides import Side
from kgexp.models.base import BackwardInto, DotProductModel


class ComplEx(DotProductModel):
    """`dim` reals are `dim / 2` complex components, so `dim` must be even."""

    @property
    def relation_dim(self) -> int:
        """As wide as an entity row."""
        return self.dim

    def tail_query(self, h: Tensor, r: Tensor) -> Tensor:
        """q = h ∘ r, so that Re ⟨q, conj(t)⟩ is the plain inner product of the rows q and t."""
        return _product(h, r)

    def head_query(self, r: Tensor, t: Tensor) -> Tensor:
        """q = conj(r) ∘ t: Re ⟨h, r, conj(t)⟩ = Re ⟨h, conj(conj(r) ∘ t)⟩."""
        return _product(t, r, conj=True)

    def queried(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, BackwardInto]:
        """See `Model.queried`."""
        conj = side is Side.HEAD and not self.reciprocal

        def backward(upstream: Tensor, by_entity: Tensor, by_relation: Tensor) -> None:
            _by_factors(upstream, entity, relation, conj, by_entity, by_relation)

        return _multiply(entity, relation, conj), backward

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """See `Model.score_relations`: Re ⟨h, r, conj(t)⟩ = Re ⟨r, conj(conj(h) ∘ t)⟩, the head query with h for r."""
        return self.score(self.head_query(h, t), candidates)

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """|x|² of every complex component: float[b, d] to float[b, d / 2]."""
        re, im = rows.chunk(2, dim=-1)
        return re * re + im * im


def _product(x: Tensor, y: Tensor, conj: bool = False) -> Tensor:
    """x ∘ y, or x ∘ conj(y), of rows of complex numbers float[…, d] that broadcast."""
    product: Tensor = _Product.apply(x, y, conj)  # type: ignore[no-untyped-call]
    return product


class _Product(Function):
    """Half as many passes as autograd makes over products, sums and halves of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, conj: bool) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.conj = conj
        return _multiply(x, y, conj)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y = ctx.saved_tensors
        by_x, by_y = _by_factors(grads[0], x, y, ctx.conj)
        return by_x.sum_to_size(x.shape), by_y.sum_to_size(y.shape), None


def _by_factors(
    upstream: Tensor, x: Tensor, y: Tensor, conj: bool, by_x: Tensor | None = None, by_y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """From the derivative by the product of x and y, or conj(y), to those by the two."""
    # As inner products of real rows: ⟨g, x ∘ y⟩ = ⟨g ∘ conj(y), x⟩ = ⟨g ∘ conj(x), y⟩, and ⟨g, x ∘ conj(y)⟩ =
    # ⟨g ∘ y, x⟩ = ⟨conj(g) ∘ x, y⟩.
    factors = (x, upstream) if conj else (upstream, x)
    return _multiply(upstream, y, not conj, by_x), _multiply(*factors, True, by_y)


def _multiply(x: Tensor, y: Tensor, conj: bool, out: Tensor | None = None) -> Tensor:
    """x ∘ y or x ∘ conj(y), without autograd, in memory that is given or fresh."""
    x_re, x_im = x.chunk(2, dim=-1)
    y_re, y_im = y.chunk(2, dim=-1)
    if out is None:
        # The function that knows broadcasting takes as long as a product of some hundred rows.
        out = x.new_empty(x.shape if x.shape == y.shape else torch.broadcast_shapes(x.shape, y.shape))
    re, im = out.chunk(2, dim=-1)
    sign = -1 if conj else 1
    torch.mul(x_re, y_re, out=re).addcmul_(x_im, y_im, value=-sign)
    torch.mul(x_im, y_re, out=im).addcmul_(x_re, y_im, value=sign)
    return out
