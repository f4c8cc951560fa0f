"""Distances between rows: of pairs, of all pairs of a piece, their gradients, and how far rounding moves them.

Letters in shapes: `b` queries, `k` candidates, `d` width of a row. Every gradient at distance zero is zero.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from kgexp.models.base import fold


class Distance(ABC):
    """A norm of the difference of two rows.

    Attributes:
        expands: `between` makes the differences of all pairs, d numbers for each.
        cancels: `between` subtracts large numbers to find small ones, so that it wants float64 where float32
            results have to be accurate.
    """

    expands: bool
    cancels: bool

    @abstractmethod
    def norm(self, rows: Tensor) -> Tensor:
        """float[…, d] to the norms float[…], for autograd."""

    @abstractmethod
    def norm_alone(self, rows: Tensor) -> Tensor:
        """The same as `norm` without a gradient, by correctly rounded elementwise operations and `fold` only: bits
        depend on the row alone."""

    @abstractmethod
    def between(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """float[…, b, d] and float[…, k, d] to the distances float[…, b, k]."""

    @abstractmethod
    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The derivatives of Σ upstream · distances by the queries float[…, b, d] and by the candidates
        float[…, k, d], for `distances` and `upstream` float[…, b, k]; leading dimensions are not yet summed."""

    @abstractmethod
    def error(self, reach: Tensor, dim: int) -> Tensor:
        """float[…], a bound on |`between`, rounded to the dtype of `reach` - the exact distance| for rows float[…, dim]
        whose norms add up to at most `reach` float[…], in any order of summation.

        Where `cancels`, it is that of `between` in float64. It counts 8 units in the last place of `reach` for the
        rounding of queries and results, and what underflows; it is infinite where squares may overflow.
        """


class Manhattan(Distance):
    """Σ |x|."""

    expands, cancels = True, False

    def norm(self, rows: Tensor) -> Tensor:
        """See `Distance.norm`."""
        return rows.abs().sum(dim=-1)

    def norm_alone(self, rows: Tensor) -> Tensor:
        """See `Distance.norm_alone`."""
        return fold(torch.add, rows.abs())

    def between(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Distance.between`."""
        return _differences(queries, candidates).abs_().sum(dim=-1)

    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Distance.gradients`: the signs of the differences."""
        signs = _differences(queries, candidates).sign_().mul_(upstream.unsqueeze(-1))
        return signs.sum(dim=-2), signs.sum(dim=-3).neg_()

    def error(self, reach: Tensor, dim: int) -> Tensor:
        """See `Distance.error`: γ of one rounding a difference and d - 1 of the sum (Higham, section 3.1)."""
        return _gamma(dim + 8, reach.dtype) * reach


class Moduli(Distance):
    """Σ |z| over complex components, of rows with the real parts first."""

    expands, cancels = True, False

    def norm(self, rows: Tensor) -> Tensor:
        """See `Distance.norm`; unlike a square root, the norm of a pair has a gradient at zero."""
        moduli: Tensor = torch.linalg.vector_norm(rows.unflatten(-1, (2, -1)), dim=-2)
        return moduli.sum(dim=-1)

    def norm_alone(self, rows: Tensor) -> Tensor:
        """See `Distance.norm_alone`."""
        re, im = rows.chunk(2, dim=-1)
        return fold(torch.add, square_root(re * re + im * im))

    def between(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Distance.between`."""
        return self._moduli(_differences(queries, candidates)).sum(dim=-1)

    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Distance.gradients`: z / |z| for every difference z. The smallest normal number goes to |z|², which is
        lost beside all others but makes 0 / 0 zero."""
        z = _differences(queries, candidates)
        moduli = self._moduli(z, torch.finfo(z.dtype).tiny)
        weight = torch.div(upstream.unsqueeze(-1), moduli, out=moduli)
        z.unflatten(-1, (2, -1)).mul_(weight.unsqueeze(-2))
        return z.sum(dim=-2), z.sum(dim=-3).neg_()

    def error(self, reach: Tensor, dim: int) -> Tensor:
        """See `Distance.error`: four roundings a modulus, d / 2 - 1 of the sum. A square that underflows is off by
        less than 2 `tiny`, so a modulus by less than 2 √tiny."""
        info = torch.finfo(reach.dtype)
        bound = _gamma(dim // 2 + 12, reach.dtype) * reach + dim * info.tiny**0.5
        return _where_squares_fit(bound, reach)

    def _moduli(self, z: Tensor, least: float = 0.0) -> Tensor:
        """√(|z|² + least) of every component, float[…, d] to float[…, d / 2]."""
        re, im = z.chunk(2, dim=-1)
        return square_root(torch.addcmul(z.new_tensor(least), re, re).addcmul_(im, im))


class Euclidean(Distance):
    """√Σ x², of all pairs by one matrix product: ‖q - c‖² = ‖q‖² + ‖c‖² - 2 q·c."""

    expands, cancels = False, True

    def norm(self, rows: Tensor) -> Tensor:
        """See `Distance.norm`."""
        norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
        return norms

    def norm_alone(self, rows: Tensor) -> Tensor:
        """See `Distance.norm_alone`."""
        return square_root(fold(torch.add, rows * rows))

    def between(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Distance.between`."""
        squares = (queries @ candidates.mT).mul_(-2)
        squares += queries.square().sum(dim=-1).unsqueeze(-1)
        squares += candidates.square().sum(dim=-1).unsqueeze(-2)
        return squares.clamp_(min=0).sqrt_()

    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Distance.gradients`: (q - c) / ‖q - c‖."""
        weight = upstream / distances.masked_fill(distances == 0, torch.inf)
        by_query = weight.sum(dim=-1).unsqueeze(-1) * queries - weight @ candidates
        return by_query, weight.sum(dim=-2).unsqueeze(-1) * candidates - weight.mT @ queries

    def error(self, reach: Tensor, dim: int) -> Tensor:
        """See `Distance.error`: the terms of the square sum up to reach² at most and are off by γ of it, so the
        root, which may be zero, is off by √γ reach. `float64` makes that less than three units of float32. The
        logarithm is for `norm_alone`, which subtracts and folds."""
        info = torch.finfo(reach.dtype)
        units = math.ceil(math.log2(dim)) / 2 + 12
        bound = (_gamma(dim + 4, torch.float64) ** 0.5 + _gamma(units, reach.dtype)) * reach + (dim * info.tiny) ** 0.5
        return _where_squares_fit(bound, reach)


def square_root(x: Tensor) -> Tensor:
    """√x of float[…], correctly rounded and without a gradient. On the CPU torch's own may be MKL's, which is off by
    a unit in the last place here and there; NumPy's is the processor's."""
    return torch.from_numpy(np.sqrt(x.detach().numpy())) if x.device.type == "cpu" else x.detach().sqrt()


def _differences(queries: Tensor, candidates: Tensor) -> Tensor:
    """float[…, b, d] and float[…, k, d] to float[…, b, k, d]."""
    return queries.unsqueeze(-2) - candidates.unsqueeze(-3)


def _gamma(roundings: float, dtype: torch.dtype) -> float:
    """γ = nu / (1 - nu), the relative error of n roundings; infinite where there are too many for the dtype."""
    share = roundings * torch.finfo(dtype).eps / 2
    return share / (1 - share) if share < 1 else math.inf


def _where_squares_fit(bound: Tensor, reach: Tensor) -> Tensor:
    """The bound, or infinity where the square of `reach` does not fit its dtype."""
    return bound.masked_fill(reach > torch.finfo(reach.dtype).max ** 0.5 / 2, torch.inf)
