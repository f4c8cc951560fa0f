"""The loss of queries against a few candidates each, with its gradient by hand.

A chunk is scored, its scores become losses, then slopes in the same memory, then the gradients of queries and
candidates: one pass while the chunk's numbers are in the cache, of which autograd sees one operation. What it would keep
of a chunk is several times as much as the scores, and each of its operations would fetch them anew.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgexp.models.base import Model
from kgexp.scoring.losses import Loss


@dataclass(frozen=True)
class Examples:
    """What is made of the scores of some examples.

    Attributes:
        model, loss: make scores, and losses of them.
        chunk_size: examples that share candidates.
        offset: examples of the first chunk that come before these.
        mask: bool[x, k], true where a candidate takes no part; None where all do.
        share: what the loss of each is multiplied by: float[x], or one number for all.
    """

    model: Model
    loss: Loss
    chunk_size: int
    offset: int
    mask: Tensor | None
    share: Tensor | float

    def chunks(self, x: int) -> list[tuple[slice, slice, int]]:
        """Of x examples, those that are scored in one product: a slice of them, that of their chunks, and how many
        chunks these are. Whole chunks go together, the first and the last one may be smaller."""
        first = min(self.chunk_size - self.offset, x) if self.offset else 0
        whole = (x - first) // self.chunk_size
        cut, before = first + whole * self.chunk_size, 1 if first else 0
        spans = [(slice(0, first), slice(0, before), 1)] if first else []
        if whole:
            spans.append((slice(first, cut), slice(before, before + whole), whole))
        if cut < x:
            spans.append((slice(cut, x), slice(before + whole, before + whole + 1), 1))
        return spans


def sampled_loss(queries: Tensor, answers: Tensor, candidates: Tensor, examples: Examples) -> Tensor:
    """Σ share · loss over examples: a scalar that autograd leads back to all three.

    Args:
        queries: float[x, d].
        answers: float[x], their answers' scores.
        candidates: float[c, k, d], of their chunks.
        examples: the rest.
    """
    loss: Tensor = _Sampled.apply(queries, answers, candidates, examples)  # type: ignore[no-untyped-call]
    return loss


class _Sampled(Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, answers: Tensor, candidates: Tensor, examples: Examples) -> Tensor:
        learns = any(ctx.needs_input_grad)
        by_queries, by_answers, by_candidates = (
            torch.empty_like(x) if learns else x for x in (queries, answers, candidates)
        )
        total = queries.new_zeros(())
        for span, chunks, number in examples.chunks(len(queries)):
            q, c = queries[span], candidates[chunks]
            together = (q, c[0]) if number == 1 else (q.unflatten(0, (number, -1)), c)
            scores, backward = examples.model.scored(*together)
            losses, slopes, upstream = _slopes(examples, span, answers[span], scores.view(len(q), -1))
            total += losses
            if learns:
                by_answers[span] = slopes
                of_queries, of_candidates = backward(upstream.view(scores.shape))
                by_queries[span] = of_queries.view(q.shape)
                by_candidates[chunks] = of_candidates.view(c.shape)
        ctx.save_for_backward(by_queries, by_answers, by_candidates)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        by_queries, by_answers, by_candidates = (x.mul_(grads[0]) for x in ctx.saved_tensors)
        return by_queries, by_answers, by_candidates, None


def _slopes(examples: Examples, span: slice, answers: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ share · loss of a span, and its derivatives by the answers' scores float[x] and by `scores` float[x, k], which
    are overwritten."""
    counts: Tensor | int = scores.shape[1]
    if examples.mask is not None:
        mask = examples.mask[span]
        scores.masked_fill_(mask, -torch.inf)
        counts = counts - mask.sum(dim=-1)
    losses, by_answers, by_scores = examples.loss.sampled_(answers, scores, counts)
    share = examples.share[span] if isinstance(examples.share, Tensor) else examples.share
    each = share.unsqueeze(-1) if isinstance(share, Tensor) else share
    return (losses * share).sum(), by_answers * share, by_scores.mul_(each)
