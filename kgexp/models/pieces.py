"""Scores of all pairs without holding what all pairs make: piece by piece, made again in the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

#: Numbers that a piece holds: on the CPU they stay in its last cache and take an operation far longer than its call, a
#: GPU wants more of them at once.
NUMBERS = {"cpu": 1 << 19}
NUMBERS_ELSEWHERE = 1 << 22

Score = Callable[[Tensor, Tensor, Tensor], Tensor]


def at_a_time(numbers: int, device: torch.device) -> int:
    """How many candidates make a piece, at least one, where each of them makes so many numbers."""
    return max(1, NUMBERS.get(device.type, NUMBERS_ELSEWHERE) // max(1, numbers))


def by_pieces(score: Score, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
    """`score(h, candidates, t)` float[b, k], some candidates at a time, each of which makes as many numbers as `h` has.

    Autograd goes on from all three. (torch.utils.checkpoint does the same and loads a compiler at its first call.)
    """
    scores: Tensor = _ByPieces.apply(score, h, candidates, t)  # type: ignore[no-untyped-call]
    return scores


class _ByPieces(Function):
    @staticmethod
    def forward(ctx: Any, score: Score, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        ctx.score, ctx.size = score, at_a_time(h.numel(), h.device)
        ctx.save_for_backward(h, candidates, t)
        return torch.cat([score(h, part, t) for part in candidates.split(ctx.size)], dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        h, candidates, t = (rows.detach().requires_grad_() for rows in ctx.saved_tensors)
        by_h, by_t, by_parts = torch.zeros_like(h), torch.zeros_like(t), []
        with torch.enable_grad():
            for part, upstream in zip(candidates.split(ctx.size), grads[0].split(ctx.size, dim=-1), strict=True):
                gradients = torch.autograd.grad(ctx.score(h, part, t), (h, part, t), upstream)
                by_h += gradients[0]
                by_parts.append(gradients[1])
                by_t += gradients[2]
        return None, by_h, torch.cat(by_parts), by_t
