"""Distances between rows: of pairs, of all pairs of a piece, their gradients, and how far rounding moves them.

Letters in shapes: `b` queries, `k` candidates, `d` width of a row, `l` leading indices.
Every gradient at distance zero is zero.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kgexp.models.base import fold
from kgexp.models.pieces import at_a_time


class Distance(ABC):
    """A norm of the difference of two rows.

    Attributes:
        cancels: `between` subtracts large numbers to find small ones, so that it wants float64 where float32
            results have to be accurate.
        kernel: what `kgexp.kernels.distances` calls it; None where it does not know it.
    """

    cancels: bool
    kernel: str | None = None

    @abstractmethod
    def norm(self, rows: Tensor) -> Tensor:
        """float[…, d] to the norms float[…], for autograd."""

    @abstractmethod
    def slopes_(self, rows: Tensor, norms: Tensor, upstream: Tensor) -> Tensor:
        """The derivatives of Σ upstream · norms by the rows float[…, d], for their `norms` and `upstream` float[…], in
        the memory of the rows. No gradient."""

    @abstractmethod
    def norm_alone(self, rows: Tensor) -> Tensor:
        """The same as `norm` without a gradient, by correctly rounded elementwise operations and `fold` only: bits
        depend on the row alone."""

    @abstractmethod
    def between(self, queries: Tensor, candidates: Tensor, scratch: Tensor) -> Tensor:
        """float[l, b, d] and float[l, k, d] to the distances float[l, b, k]. No gradient.

        `scratch` float[any] is resized and overwritten: memory that is asked for anew for every piece costs more than
        what is computed in it.
        """

    @abstractmethod
    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor, scratch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The derivatives of Σ upstream · distances by the queries float[l, b, d] and by the negated candidates
        float[l, k, d], for `distances` and `upstream` float[l, b, k]; `scratch` as for `between`."""

    @abstractmethod
    def error(self, reach: Tensor, dim: int) -> Tensor:
        """float[…], a bound on |`between`, rounded to the dtype of `reach` - the exact distance| for rows float[…, dim]
        whose norms add up to at most `reach` float[…], in any order of summation.

        Where `cancels`, it is that of `between` in float64. It counts 8 units in the last place of `reach` for the
        rounding of queries and results, and what underflows; it is infinite where squares may overflow.
        """


class ComponentSum(Distance):
    """Σ |z| over the components z of a difference, which are pairs of all first and all second reals, or single reals.

    It is computed a few components at a time for all pairs of rows, so that the operations are long and contiguous and
    the differences of all pairs are never held together.

    Attributes:
        width: w, the reals in a component.
    """

    cancels = False
    width: int

    @abstractmethod
    def _sizes(self, q: Tensor, c: Tensor, out: Tensor) -> Tensor:
        """The sizes float[t, l, b, k] of the differences of t components float[w, t, l, b, 1] and float[w, t, l, 1, k],
        in the memory of `out` float[w, t, l, b, k]."""

    @abstractmethod
    def _slopes(self, q: Tensor, c: Tensor, upstream: Tensor, out: Tensor) -> None:
        """Writes upstream · z / |z| into `out`, z the differences, for `upstream` float[l, b, k]; else as `_sizes`."""

    def between(self, queries: Tensor, candidates: Tensor, scratch: Tensor) -> Tensor:
        """See `Distance.between`."""
        distances = queries.new_zeros((*queries.shape[:-1], candidates.shape[-2]))
        q, c = self._components(queries, candidates)
        memory = self._memory(q, c, scratch)
        for some_q, some_c in self._some(q.unsqueeze(-1), c.unsqueeze(-2), step=memory.shape[1]):
            sizes = self._sizes(some_q, some_c, out=memory[:, : some_q.shape[1]])
            for summand in sizes if len(sizes) < 8 else [sizes.sum(dim=0)]:  # torch sums few slower than it adds them
                distances += summand
        return distances

    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor, scratch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Distance.gradients`."""
        q, c = self._components(queries, candidates)
        by_query, by_candidate = torch.empty_like(q), torch.empty_like(c)
        memory = self._memory(q, c, scratch)
        every = (q.unsqueeze(-1), c.unsqueeze(-2), by_query, by_candidate)
        for some_q, some_c, by_q, by_c in self._some(*every, step=memory.shape[1]):
            slopes = memory[:, : some_q.shape[1]]
            self._slopes(some_q, some_c, upstream, out=slopes)
            torch.sum(slopes, dim=-1, out=by_q)
            torch.sum(slopes, dim=-2, out=by_c)
        return _rows(by_query), _rows(by_candidate)

    def _components(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """float[l, b, d] and float[l, k, d] to float[w, d / w, l, b] and float[w, d / w, l, k]. A lone query leaves the
        memory as it is: there to move every candidate would cost more than all the rest."""
        parts = (rows.unflatten(-1, (self.width, -1)).movedim((-2, -1), (0, 1)) for rows in (queries, candidates))
        q, c = parts if queries.shape[-2] == 1 else (part.contiguous() for part in parts)
        return q, c

    def _memory(self, q: Tensor, c: Tensor, scratch: Tensor) -> Tensor:
        """Room in `scratch` for what a few components make of all pairs, float[w, t, l, b, k]."""
        width, num, lead, b = q.shape
        k = c.shape[-1]
        step = min(num, at_a_time(lead * b * k, q.device))
        needed = width * step * lead * b * k
        if len(scratch) < needed:  # at once as large as any piece needs it: what NumPy has seen cannot grow any more
            scratch.resize_(max(needed, width * at_a_time(1, q.device)))
        if b == 1:  # in the order of the rows
            return scratch[:needed].view(width, lead, b, k, step).movedim(-1, 1)
        return scratch[:needed].view(width, step, lead, b, k)

    @staticmethod
    def _some(*every: Tensor, step: int) -> Iterator[tuple[Tensor, ...]]:
        """Of tensors float[w, d / w, …] some components at a time, cut at once: slice by slice takes several calls."""
        return zip(*(x.split(step, dim=1) for x in every), strict=True)


class Manhattan(ComponentSum):
    """Σ |x|."""

    kernel = "manhattan"
    width = 1

    def norm(self, rows: Tensor) -> Tensor:
        """See `Distance.norm`."""
        return rows.abs().sum(dim=-1)

    def slopes_(self, rows: Tensor, norms: Tensor, upstream: Tensor) -> Tensor:
        """See `Distance.slopes_`."""
        return rows.sign_().mul_(upstream.unsqueeze(-1))

    def norm_alone(self, rows: Tensor) -> Tensor:
        """See `Distance.norm_alone`."""
        return fold(torch.add, rows.abs())

    def error(self, reach: Tensor, dim: int) -> Tensor:
        """See `Distance.error`: γ of one rounding a difference and d - 1 of the sum (Higham, section 3.1)."""
        return _gamma(dim + 8, reach.dtype) * reach

    def _sizes(self, q: Tensor, c: Tensor, out: Tensor) -> Tensor:
        return torch.sub(q, c, out=out)[0].abs_()

    def _slopes(self, q: Tensor, c: Tensor, upstream: Tensor, out: Tensor) -> None:
        """upstream · sign(z): the derivative of a smooth L1 loss whose smooth part ends at the smallest normal number.
        One pass over memory, where difference, sign and product take three."""
        tiny = torch.finfo(q.dtype).tiny
        torch.ops.aten.smooth_l1_loss_backward.grad_input(upstream, q, c, 0, tiny, grad_input=out)


class Moduli(ComponentSum):
    """Σ |z| over complex components, of rows with the real parts first."""

    kernel = "moduli"
    width = 2

    def norm(self, rows: Tensor) -> Tensor:
        """See `Distance.norm`. The root of a zero, whose gradient is infinite, is left out."""
        re, im = rows.chunk(2, dim=-1)
        squares = re * re + im * im
        zero = squares == 0
        return squares.masked_fill(zero, 1).sqrt().masked_fill(zero, 0).sum(dim=-1)

    def slopes_(self, rows: Tensor, norms: Tensor, upstream: Tensor) -> Tensor:
        """See `Distance.slopes_`."""
        _over_moduli_(rows.unflatten(-1, (2, -1)).movedim(-2, 0), upstream.unsqueeze(-1))
        return rows

    def norm_alone(self, rows: Tensor) -> Tensor:
        """See `Distance.norm_alone`."""
        re, im = rows.chunk(2, dim=-1)
        return fold(torch.add, square_root(re * re + im * im))

    def error(self, reach: Tensor, dim: int) -> Tensor:
        """See `Distance.error`: four roundings a modulus, one more by a GPU's root, d / 2 - 1 of the sum. A square that
        underflows is off by less than 2 `tiny`, so a modulus by less than 2 √tiny."""
        info = torch.finfo(reach.dtype)
        bound = _gamma(dim // 2 + 13, reach.dtype) * reach + dim * info.tiny**0.5
        return _where_squares_fit(bound, reach)

    def _sizes(self, q: Tensor, c: Tensor, out: Tensor) -> Tensor:
        re, im = torch.sub(q, c, out=out).unbind()
        _root_(re.mul_(re).addcmul_(im, im))
        return re

    def _slopes(self, q: Tensor, c: Tensor, upstream: Tensor, out: Tensor) -> None:
        _over_moduli_(torch.sub(q, c, out=out), upstream)


class Euclidean(Distance):
    """√Σ x², of all pairs by one matrix product: ‖q - c‖² = ‖q‖² + ‖c‖² - 2 q·c."""

    cancels = True
    kernel = "euclidean"

    def norm(self, rows: Tensor) -> Tensor:
        """See `Distance.norm`."""
        norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
        return norms

    def slopes_(self, rows: Tensor, norms: Tensor, upstream: Tensor) -> Tensor:
        """See `Distance.slopes_`."""
        return rows.mul_(_over_distances(upstream, norms).unsqueeze(-1))

    def norm_alone(self, rows: Tensor) -> Tensor:
        """See `Distance.norm_alone`."""
        return square_root(fold(torch.add, rows * rows))

    def between(self, queries: Tensor, candidates: Tensor, scratch: Tensor) -> Tensor:
        """See `Distance.between`."""
        squares = (queries @ candidates.mT).mul_(-2)
        squares += queries.square().sum(dim=-1).unsqueeze(-1)
        squares += candidates.square().sum(dim=-1).unsqueeze(-2)
        return squares.clamp_(min=0).sqrt_()

    def gradients(
        self, queries: Tensor, candidates: Tensor, distances: Tensor, upstream: Tensor, scratch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Distance.gradients`: (q - c) / ‖q - c‖."""
        weight = _over_distances(upstream, distances)
        by_query = weight.sum(dim=-1).unsqueeze(-1) * queries - weight @ candidates
        return by_query, weight.mT @ queries - weight.sum(dim=-2).unsqueeze(-1) * candidates

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


def _rows(components: Tensor) -> Tensor:
    """float[w, d / w, l, b] to float[l, b, d]."""
    return components.movedim((0, 1), (-2, -1)).flatten(-2)


def _over_distances(upstream: Tensor, distances: Tensor) -> Tensor:
    """upstream / distances, zero where the distance is."""
    return upstream / distances.masked_fill(distances == 0, torch.inf)


def _over_moduli_(z: Tensor, upstream: Tensor) -> None:
    """Makes of complex components float[2, …] upstream · z / |z|, for `upstream` that broadcasts with a part. At zero
    this is 0 / √tiny."""
    re, im = z.unbind()
    moduli = (re * re).addcmul_(im, im).clamp_min_(torch.finfo(z.dtype).tiny)
    _root_(moduli)
    z.mul_(torch.div(upstream, moduli, out=moduli))


def _root_(x: Tensor) -> None:
    """√x in place; on the CPU NumPy's, as in `square_root`, which is also faster than MKL's on some processors."""
    if x.device.type == "cpu":
        np.sqrt(x.numpy(), out=x.numpy())
    else:
        x.sqrt_()


def _gamma(roundings: float, dtype: torch.dtype) -> float:
    """γ = nu / (1 - nu), the relative error of n roundings; infinite where there are too many for the dtype."""
    share = roundings * torch.finfo(dtype).eps / 2
    return share / (1 - share) if share < 1 else math.inf


def _where_squares_fit(bound: Tensor, reach: Tensor) -> Tensor:
    """The bound, or infinity where the square of `reach` does not fit its dtype."""
    return bound.masked_fill(reach > torch.finfo(reach.dtype).max ** 0.5 / 2, torch.inf)
