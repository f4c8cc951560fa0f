"""ComplEx (Trouillon et al., ICML 2016): Re ⟨h, r, conj(t)⟩ over complex vectors.

A row holds the real parts first, then the imaginary parts; no complex dtype appears in tables or files.
"""

import torch
from torch import Tensor

from kgexp.models.base import DotProductModel


class ComplEx(DotProductModel):
    """`dim` reals are `dim / 2` complex components, so `dim` must be even."""

    @property
    def relation_dim(self) -> int:
        """As wide as an entity row."""
        return self.dim

    def tail_query(self, h: Tensor, r: Tensor) -> Tensor:
        """q = h ∘ r, so that Re ⟨q, conj(t)⟩ is the plain inner product of the rows q and t."""
        h_re, h_im = h.chunk(2, dim=-1)
        r_re, r_im = r.chunk(2, dim=-1)
        return torch.cat([h_re * r_re - h_im * r_im, h_re * r_im + h_im * r_re], dim=-1)

    def head_query(self, r: Tensor, t: Tensor) -> Tensor:
        """q = conj(r) ∘ t: Re ⟨h, r, conj(t)⟩ = Re ⟨h, conj(conj(r) ∘ t)⟩."""
        r_re, r_im = r.chunk(2, dim=-1)
        t_re, t_im = t.chunk(2, dim=-1)
        return torch.cat([t_re * r_re + t_im * r_im, t_im * r_re - t_re * r_im], dim=-1)

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """See `Model.score_relations`: Re ⟨h, r, conj(t)⟩ = Re ⟨r, conj(conj(h) ∘ t)⟩, the head query with h for r."""
        return self.score(self.head_query(h, t), candidates)

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """|x|² of every complex component: float[b, d] to float[b, d / 2]."""
        re, im = rows.chunk(2, dim=-1)
        return re * re + im * im
