"""RotatE (Sun et al., ICLR 2019): a relation rotates every complex component of its heads, h ∘ r ≈ t, |r| = 1.

An entity row holds the real parts first, then the imaginary parts; a relation row holds the angles.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from kgexp.models.angles import cos_sin
from kgexp.models.distance import DistanceModel
from kgexp.models.distances import Euclidean, Moduli
from kgexp.models.initial import initial_rows
from kgexp.randomness import Float64, Int64


class RotatE(DistanceModel):
    """score = margin - ‖h ∘ r - t‖; `dim` reals are `dim / 2` complex components, so `dim` must be even.

    The arguments are those of `DistanceModel`. `init`, `init_scale` and `max_norm` are for entities, angles begin
    uniform in [-π, π). The norm `l1` is the sum of the components' moduli, as in the paper, `l2` the root of the sum of
    their squares; `margin` is γ of the paper.
    """

    relations_are_angles = True
    norms: ClassVar = {"l1": Moduli, "l2": Euclidean}

    @property
    def relation_dim(self) -> int:
        """An angle in radians for every complex component."""
        return self.dim // 2

    def tail_query(self, h: Tensor, r: Tensor) -> Tensor:
        """q = h ∘ exp(i r)."""
        cos, sin = cos_sin(r)
        return _rotate(h, cos, sin)

    def head_query(self, r: Tensor, t: Tensor) -> Tensor:
        """q = t ∘ exp(-i r): a rotation leaves moduli alone, so |h ∘ exp(i r) - t| = |t ∘ exp(-i r) - h|."""
        cos, sin = cos_sin(r)
        return _rotate(t, cos, -sin)

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """|x|² of every complex component of entity rows: float[b, d] to float[b, d / 2]."""
        re, im = rows.chunk(2, dim=-1)
        return re * re + im * im

    def initial_relations(self, stream: int, ids: Int64, num_rows: int) -> Float64:
        """Angles uniform in [-π, π): float64[u, d / 2]."""
        return initial_rows("uniform", math.pi, stream, ids, num_rows, self.relation_dim)


def _rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    re, im = rows.chunk(2, dim=-1)
    return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)
