"""Cosine and sine whose bits depend on the angle alone.

A library's functions may take another path for the last elements of an array than for the others, and round
differently there. Ranks are compared by bits, so these are made of operations that IEEE 754 rounds correctly,
each over the whole tensor.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

#: π/2 as a number of 33 bits, whose products with whole numbers below 2²⁰ are exact, and the rest of it.
_HALF_PI = math.floor(math.pi / 2 * 2**32) / 2**32
_HALF_PI_REST = (math.pi / 2 - _HALF_PI) + 6.123233995736766e-17

#: Taylor series in x², up to terms below 2⁻⁵⁵ for |x| <= π/4.
_COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(9)]
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9)]


def cos_sin(angles: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of angles float[…] in radians, each float[…] of the same dtype.

    Computed in float64, to an absolute error of 2⁻⁵² for angles up to 2²⁰, and rounded to the dtype; wrong for
    angles beyond 2⁵⁰, where float64 no longer knows the quadrant.
    """
    cos, sin = _CosSin.apply(angles)  # type: ignore[no-untyped-call]
    return cos, sin


class _CosSin(Function):
    @staticmethod
    def forward(ctx: Any, angles: Tensor) -> tuple[Tensor, Tensor]:
        exact = angles.double()
        turns = torch.round(exact * (2 / math.pi))
        x = exact - turns * _HALF_PI - turns * _HALF_PI_REST
        square = x * x
        cos, sin = _polynomial(_COSINE, square), _polynomial(_SINE, square).mul_(x)
        # Turned by whole quarters, with 1, 0 and -1 for their cosine and sine: exact, and faster than choosing.
        quarters = turns - 4 * torch.round(turns / 4)
        size = quarters.abs()
        by_cos, by_sin = 1 - size, quarters.mul_(2 - size)
        cos, sin = (
            (cos * by_cos).sub_(sin * by_sin).to(angles.dtype),
            (sin * by_cos).add_(cos * by_sin).to(angles.dtype),
        )
        ctx.save_for_backward(cos, sin)
        return cos, sin

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        cos, sin = ctx.saved_tensors
        gradient: Tensor = grads[1] * cos - grads[0] * sin
        return gradient


def _polynomial(coefficients: list[float], x: Tensor) -> Tensor:
    """Σ coefficient k · xᵏ by Horner's rule; product and sum are rounded one by one, not fused."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value.mul_(x).add_(coefficient)
    return value
