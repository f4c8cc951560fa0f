"""Models whose score is a distance, computed piece by piece so that no differences of all pairs are held."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgexp.kernels import usable
from kgexp.models.base import Backward, BackwardInto, Model
from kgexp.models.distances import Distance
from kgexp.models.pieces import at_a_time


class DistanceModel(Model):
    """score = margin - distance(query, candidate).

    Args:
        dim, reciprocal, init, init_scale, max_norm, entity_dropout, relation_dropout: see `Model`.
        norm: of the difference of query and candidate, a name of `norms`.
        margin: the score of a triple that holds exactly. It moves all scores alike: the logistic loss needs it
            (γ of Sun et al. 2019), for the softmax and for rankings it does not matter.

    Attributes:
        norms: the distance of each norm that a model may be given.
    """

    norms: ClassVar[Mapping[str, type[Distance]]]

    def __init__(
        self,
        dim: int,
        reciprocal: bool = True,
        init: str = "normal",
        init_scale: float = 0.1,
        max_norm: float | None = None,
        norm: str = "l1",
        margin: float = 0.0,
        entity_dropout: float = 0.0,
        relation_dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, reciprocal, init, init_scale, max_norm, entity_dropout, relation_dropout)
        if relation_dropout and self.relations_are_angles:
            raise ValueError("relation rows that are angles cannot be dropped: leave relation_dropout at 0")
        self.distance = self.norms[norm]()
        self.margin = margin

    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score`. `score_error` is a bound where no gradient is wanted; where one is, the Euclidean
        distance is that of a matrix product in the rows' dtype, less accurate near zero, unless a kernel does it."""
        lead = torch.broadcast_shapes(queries.shape[:-2], candidates.shape[:-2])
        q, c = (x.expand(*lead, -1, -1).reshape(lead.numel(), *x.shape[-2:]) for x in (queries, candidates))
        if torch.is_grad_enabled() and (queries.requires_grad or candidates.requires_grad):
            scores: Tensor = _Scores.apply(q, c, self.distance, self.margin)  # type: ignore[no-untyped-call]
        else:
            scores = _scores(q, c, self.distance, self.margin, torch.float64 if self.distance.cancels else q.dtype)
        return scores.reshape(*lead, *scores.shape[-2:])

    def scored(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, Backward]:
        """See `Model.scored`: the differences of each piece are made again for the gradient."""
        q, c = (rows.reshape(-1, *rows.shape[-2:]) for rows in (queries, candidates))
        scores = _scores(q, c, self.distance, self.margin, q.dtype)
        kept = scores.clone()

        def backward(upstream: Tensor) -> tuple[Tensor, Tensor]:
            by_q, by_c = _gradients(q, c, kept, upstream.reshape(kept.shape), self.distance, self.margin)
            return by_q.reshape(queries.shape), by_c.reshape(candidates.shape)

        return scores.reshape(*queries.shape[:-1], candidates.shape[-2]), backward

    def scored_pairs(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, BackwardInto]:
        """See `Model.scored_pairs`: the differences become their gradient, once."""
        differences = queries - candidates
        distances = self.distance.norm(differences)

        def backward(upstream: Tensor, by_queries: Tensor, by_candidates: Tensor) -> None:
            by_candidates.copy_(self.distance.slopes_(differences, distances, upstream))  # a score falls with it
            by_queries.sub_(by_candidates)

        return self.margin - distances, backward

    def score_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score_pairs`."""
        return self.margin - self.distance.norm(queries - candidates)

    def rescore_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.rescore_pairs`. It has no gradient."""
        return self.margin - self.distance.norm_alone(queries - candidates)

    def score_error(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score_error`: the distance is at most the sum of both norms. The factor covers the rounding of
        the bound itself, the last term that of the margin."""
        largest = self.distance.norm(candidates).amax() if len(candidates) else candidates.new_zeros(())
        reach = 1.01 * (self.distance.norm(queries).unsqueeze(-1) + largest)
        unit = torch.finfo(queries.dtype).eps
        return 1.01 * self.distance.error(reach, self.dim) + unit * abs(self.margin)


def _pieces(queries: Tensor, candidates: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of l, b and k for float[l, b, d] and float[l, k, d], a number a pair fitting a piece. They are near
    square, so that sums over b and over k are both long, where b and k allow it."""
    (leads, b, d), k = queries.shape, candidates.shape[-2]
    pairs = at_a_time(d if b == 1 else 1, queries.device)
    columns = min(k, max(math.isqrt(pairs), pairs // max(1, b)))
    lines = min(b, pairs // max(1, columns))
    some = pairs // max(1, lines * columns)
    return itertools.product(_slices(leads, some), _slices(b, lines), _slices(k, columns))


def _kernel(distance: Distance, queries: Tensor, candidates: Tensor) -> str | None:
    """The kernel for these rows, which computes all pairs in one go; None where `_pieces` are to be computed.

    A distance by matrix products is left to them where `train.matmul_dtype` makes products fast.
    """
    products = distance.cancels and torch.get_float32_matmul_precision() != "highest"
    return distance.kernel if usable(queries, candidates) and not products else None


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, length, max(1, step))]


def _scores(queries: Tensor, candidates: Tensor, distance: Distance, margin: float, dtype: torch.dtype) -> Tensor:
    """float[l, b, d] and float[l, k, d] to the scores float[l, b, k], computed in `dtype` and rounded to that of the
    rows."""
    if (kernel := _kernel(distance, queries, candidates)) is not None and dtype == queries.dtype:
        from kgexp.kernels import distances  # not everywhere is Triton to be imported

        return distances.scores(kernel, queries, candidates, margin)
    scores = queries.new_empty((*queries.shape[:-1], candidates.shape[-2]))
    scratch = queries.new_empty(0, dtype=dtype)
    for lead, line, column in _pieces(queries, candidates):
        between = distance.between(queries[lead, line].to(dtype), candidates[lead, column].to(dtype), scratch)
        scores[lead, line, column] = between.neg_().add_(margin)
    return scores


class _Scores(Function):
    """Keeps nothing but the scores: the backward pass makes the differences of each piece again."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, candidates: Tensor, distance: Distance, margin: float) -> Tensor:
        scores = _scores(queries, candidates, distance, margin, queries.dtype)
        ctx.distance, ctx.margin = distance, margin
        ctx.save_for_backward(queries, candidates, scores)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        queries, candidates, scores = ctx.saved_tensors
        return *_gradients(queries, candidates, scores, grads[0], ctx.distance, ctx.margin), None, None


def _gradients(
    queries: Tensor, candidates: Tensor, scores: Tensor, upstream: Tensor, distance: Distance, margin: float
) -> tuple[Tensor, Tensor]:
    """The derivatives of Σ upstream · scores, float[l, b, k] both, by the queries and by the candidates."""
    if (kernel := _kernel(distance, queries, candidates)) is not None:
        from kgexp.kernels import distances

        return distances.gradients(kernel, queries, candidates, upstream, margin - scores)
    by_queries, by_candidates = (x.new_zeros(x.shape) for x in (queries, candidates))
    scratch = queries.new_empty(0)
    for lead, line, column in _pieces(queries, candidates):
        here, q, c = (lead, line, column), queries[lead, line], candidates[lead, column]
        slopes = distance.gradients(q, c, margin - scores[here], upstream[here], scratch)
        by_queries[lead, line] -= slopes[0]  # a score falls with the distance
        by_candidates[lead, column] += slopes[1]
    return by_queries, by_candidates
