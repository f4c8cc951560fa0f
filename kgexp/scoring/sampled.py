"""The loss of queries against a few candidates each, with its gradient by hand.

A chunk is scored, its scores become losses, then slopes in the same memory, then the gradients of queries and
candidates: one pass while the chunk's numbers are in the cache, of which autograd sees one operation. What it would
keep of a chunk is several times as much as the scores, and each of its operations would fetch them anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.loss import Loss
from kgexp.team import cut

#: Scores that are made at a time: they and what becomes of them stay in the cache.
_SCORES = 1 << 18

#: Rows that are scored at once at least: with fewer of them, what comes and goes of the candidates costs the most.
_ROWS = 128


def rows_at_once(k: int) -> int:
    """Rows that are scored at a time on the CPU, against k candidates."""
    return max(_ROWS, _SCORES // max(1, k))


@dataclass(frozen=True)
class Examples:
    """What is made of the scores of some examples.

    Attributes:
        model, loss: make scores, and losses of them.
        side: of the answers.
        chunk_size: examples that share candidates.
        offset: examples of the first chunk that come before these.
        mask: bool[x, k], true where a candidate takes no part; None where all do.
        share: what the loss of each is multiplied by: float[x], or one number for all.
    """

    model: Model
    loss: Loss
    side: Side
    chunk_size: int
    offset: int
    mask: Tensor | None
    share: Tensor | float

    def blocks(self, x: int, k: int, on_cpu: bool = True) -> Iterator[tuple[slice, slice]]:
        """Of x examples with k candidates those that are scored in one product, and their chunks: slices. Whole chunks
        go together; the first and the last chunk may be smaller."""
        at_once = rows_at_once(k) if on_cpu else max(1, x)
        first = min(self.chunk_size - self.offset, x) if self.offset else 0
        whole = (x - first) // self.chunk_size
        before = 1 if first else 0
        yield from _rows_of_one(slice(0, first), 0, at_once)
        if self.chunk_size > at_once and on_cpu:
            for chunk in range(whole):
                start = first + chunk * self.chunk_size
                yield from _rows_of_one(slice(start, start + self.chunk_size), before + chunk, at_once)
        else:
            for part in cut(whole, max(1, at_once // self.chunk_size)):
                rows = slice(first + part.start * self.chunk_size, first + part.stop * self.chunk_size)
                yield rows, slice(before + part.start, before + part.stop)
        yield from _rows_of_one(slice(first + whole * self.chunk_size, x), before + whole, at_once)


def _rows_of_one(rows: slice, chunk: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """Some of the examples of one chunk at a time."""
    for part in cut(rows.stop - rows.start, at_once):
        yield slice(rows.start + part.start, rows.start + part.stop), slice(chunk, chunk + 1)


def sampled_loss(
    entities: Tensor, relations: Tensor, answers: Tensor, candidates: Tensor, examples: Examples
) -> Tensor:
    """Σ share · loss over examples: a scalar that autograd leads back to all four.

    Args:
        entities, relations: float[x, d] and float[x, e], of which the queries are made.
        answers: float[x, d].
        candidates: float[c, k, d], of their chunks.
        examples: the rest.
    """
    loss: Tensor = _Sampled.apply(  # type: ignore[no-untyped-call]
        entities, relations, answers, candidates, examples
    )
    return loss


class _Sampled(Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *leaves, examples = given
        learns = any(ctx.needs_input_grad)
        gradients = [torch.empty_like(x) for x in leaves[:3]] + [torch.zeros_like(leaves[3])] if learns else None
        total: Tensor = leaves[0].new_zeros(())
        for rows, chunks in examples.blocks(len(leaves[0]), leaves[3].shape[1], leaves[0].device.type == "cpu"):
            total += _block(leaves, gradients, examples, rows, chunks)
        ctx.save_for_backward(*gradients or ())
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if grads[0].device.type == "cpu" and grads[0] == 1:  # mostly, and three passes less
            return *ctx.saved_tensors, None
        return *(x.mul_(grads[0]) for x in ctx.saved_tensors), None


def _block(
    leaves: Sequence[Tensor], gradients: Sequence[Tensor] | None, examples: Examples, rows: slice, chunks: slice
) -> Tensor:
    """The loss of some examples; their gradient goes where it belongs."""
    parts = (rows, rows, rows, chunks)
    entity, relation, answer, candidates = (x[part] for x, part in zip(leaves, parts, strict=True))
    queries, to_rows = examples.model.queried(examples.side, entity, relation)
    own, to_pair = examples.model.scored_pairs(queries, answer)
    c = len(candidates)
    together = (queries, candidates[0]) if c == 1 else (queries.unflatten(0, (c, -1)), candidates)
    scores, to_factors = examples.model.scored(*together)
    loss, slopes, upstream = _slopes(examples, rows, own, scores.view(len(queries), -1))
    if gradients is not None:
        by_entity, by_relation, by_answer, by_candidates = (x[part] for x, part in zip(gradients, parts, strict=True))
        by_queries, of_candidates = to_factors(upstream.view(scores.shape))
        by_candidates += of_candidates.reshape(candidates.shape)
        by_queries = by_queries.reshape(queries.shape)
        to_pair(slopes, by_queries, by_answer)
        to_rows(by_queries, by_entity, by_relation)
    return loss


def _slopes(examples: Examples, rows: slice, answers: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ share · loss of some rows, and its derivatives by the answers' scores float[x] and by `scores` float[x, k]:
    these are overwritten."""
    counts: Tensor | int = scores.shape[1]
    if examples.mask is not None:
        mask = examples.mask[rows]
        scores.masked_fill_(mask, -torch.inf)
        counts = counts - mask.sum(dim=-1)
    share = examples.share[rows] if isinstance(examples.share, Tensor) else examples.share
    losses, by_answers, by_scores = examples.loss.sampled_(answers, scores, counts, share)
    return losses.sum(), by_answers, by_scores
