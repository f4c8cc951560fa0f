"""Models whose score is a distance, computed piece by piece so that no differences of all pairs are held."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgexp.models.base import Model
from kgexp.models.distances import Distance
from kgexp.models.pieces import at_a_time


class DistanceModel(Model):
    """score = margin - distance(query, candidate).

    Args:
        dim, reciprocal, init, init_scale, max_norm, entity_dropout, relation_dropout: see `Model`.
        distance: between query and candidate.
        margin: the score of a triple that holds exactly. It moves all scores alike: the logistic loss needs it
            (γ of Sun et al. 2019), for the softmax and for rankings it does not matter.
    """

    def __init__(
        self,
        dim: int,
        reciprocal: bool,
        init: str,
        init_scale: float,
        max_norm: float | None,
        distance: Distance,
        margin: float,
        entity_dropout: float = 0.0,
        relation_dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, reciprocal, init, init_scale, max_norm, entity_dropout, relation_dropout)
        self.distance = distance
        self.margin = margin

    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score`. `score_error` is a bound where no gradient is wanted; where one is, the Euclidean
        distance is that of a matrix product in the rows' dtype, less accurate near zero."""
        if torch.is_grad_enabled() and (queries.requires_grad or candidates.requires_grad):
            scores: Tensor = _Scores.apply(queries, candidates, self.distance, self.margin)  # type: ignore[no-untyped-call]
            return scores
        dtype = torch.float64 if self.distance.cancels else queries.dtype
        return _scores(queries, candidates, self.distance, self.margin, dtype)

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


def _pieces(queries: Tensor, candidates: Tensor, distance: Distance) -> Iterator[slice]:
    """Slices of the candidates, so many that what `distance` holds for them is bounded."""
    lead = torch.broadcast_shapes(queries.shape[:-2], candidates.shape[:-2])
    numbers = lead.numel() * queries.shape[-2] * (queries.shape[-1] if distance.expands else 1)
    step = at_a_time(numbers, queries.device)
    for start in range(0, candidates.shape[-2], step):
        yield slice(start, start + step)


def _scores(queries: Tensor, candidates: Tensor, distance: Distance, margin: float, dtype: torch.dtype) -> Tensor:
    """The scores float[…, b, k] of `Model.score`, computed in `dtype` and rounded to that of the rows."""
    lead = torch.broadcast_shapes(queries.shape[:-2], candidates.shape[:-2])
    scores = queries.new_empty((*lead, queries.shape[-2], candidates.shape[-2]))
    wide = queries.to(dtype)
    for piece in _pieces(queries, candidates, distance):
        between = distance.between(wide, candidates[..., piece, :].to(dtype))
        scores[..., piece] = between.neg_().add_(margin)
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
        by_queries, by_candidates = torch.zeros_like(queries), torch.zeros_like(candidates)
        for piece in _pieces(queries, candidates, ctx.distance):
            part = candidates[..., piece, :]
            distances, upstream = ctx.margin - scores[..., piece], -grads[0][..., piece]
            by_query, by_part = ctx.distance.gradients(queries, part, distances, upstream)
            by_queries += by_query.sum_to_size(queries.shape)
            by_candidates[..., piece, :] = by_part.sum_to_size(part.shape)
        return by_queries, by_candidates, None, None
