"""The step of a row optimizer in one pass: a program takes some rows with their state and gradient through all of it.

As separate operations of torch a step reads and writes each of them several times, by way of temporaries.
The arithmetic is that of `kgexp.optim`, whose docstrings have the formulas.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgexp.kernels import RowRule

#: Numbers that a program holds of each tensor, unless a single row has more.
_NUMBERS = 1024

_RULES = ("sgd", "adagrad", "rowwise_adagrad", "adam")


def step(
    rule: RowRule,
    weight: Tensor,
    index: Tensor | None,
    grad: Tensor,
    lr: float,
    clip: float | None = None,
    max_norm: float | None = None,
) -> None:
    """One step in place on the weights and on the rule's state.

    Args:
        rule: which step.
        weight: float32[n, d], contiguous like the state; d at most `WIDEST`.
        index: int64[u], distinct rows; None for all of them in order.
        grad: float32[u, d].
        lr: learning rate.
        clip, max_norm: see `kgexp.optim.base.RowOptimizer`.
    """
    u, d = grad.shape
    if not grad.numel():
        return
    width = triton.next_power_of_2(d)
    rows = max(1, _NUMBERS // width)
    first, second = (*rule.numbers, weight, weight)[:2]  # what a rule does not use has to be some pointer
    with torch.cuda.device_of(weight):
        _step[(triton.cdiv(u, rows),)](
            weight,
            weight if index is None else index.contiguous(),
            grad.contiguous(),
            first,
            second,
            weight if rule.each is None else rule.each,
            u,
            d,
            lr,
            rule.eps,
            *_decay(rule.betas[0]),
            *_decay(rule.betas[1]),
            clip or 0.0,
            max_norm or 0.0,
            RULE=_RULES.index(rule.name),
            INDEXED=index is not None,
            CLIPS=clip is not None,
            BOUNDED=max_norm is not None,
            ROWS=rows,
            WIDTH=width,
            num_warps=8 if width > 4 * _NUMBERS else 4,
        )


def _decay(beta: float) -> tuple[float, float, float]:
    """β, 1 - β and log β, each rounded to float32 once, when a kernel takes it."""
    return beta, 1 - beta, math.log(beta) if beta else -math.inf


@triton.jit(do_not_specialize=["u"])
def _step(
    weight: tl.tensor,
    index: tl.tensor,
    grad: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    each: tl.tensor,
    u: tl.tensor,
    d: tl.tensor,
    lr: tl.tensor,
    eps: tl.tensor,
    beta1: tl.tensor,
    rest1: tl.tensor,
    log1: tl.tensor,
    beta2: tl.tensor,
    rest2: tl.tensor,
    log2: tl.tensor,
    clip: tl.tensor,
    max_norm: tl.tensor,
    RULE: tl.constexpr,
    INDEXED: tl.constexpr,
    CLIPS: tl.constexpr,
    BOUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    here = place < u
    inside = here[:, None] & (column < d)[None, :]
    row = place
    if INDEXED:
        row = tl.load(index + place, mask=here, other=0)
    at = row[:, None] * d + column[None, :]
    g = tl.load(grad + place[:, None] * d + column[None, :], mask=inside, other=0.0)
    if CLIPS:
        g = g * _shrink(g, clip)[:, None]
    direction = g
    if RULE == 1:
        total = tl.load(first + at, mask=inside, other=1.0) + g * g
        tl.store(first + at, total, mask=inside)
        direction = tl.div_rn(g, tl.sqrt_rn(total) + eps)
    if RULE == 2:
        total = tl.load(each + row, mask=here, other=1.0) + tl.sum(g * g, axis=1) / d
        tl.store(each + row, total, mask=here)
        direction = tl.div_rn(g, tl.broadcast_to((tl.sqrt_rn(total) + eps)[:, None], (ROWS, WIDTH)))
    if RULE == 3:
        mean = tl.load(first + at, mask=inside, other=0.0) * beta1 + g * rest1
        tl.store(first + at, mean, mask=inside)
        square = tl.load(second + at, mask=inside, other=1.0) * beta2 + g * g * rest2
        tl.store(second + at, square, mask=inside)
        count = tl.load(each + row, mask=here, other=0.0) + 1.0
        tl.store(each + row, count, mask=here)
        correction = tl.broadcast_to(tl.sqrt_rn(_one_minus_exp(log2 * count))[:, None], (ROWS, WIDTH))
        scale = (tl.div_rn(tl.sqrt_rn(square), correction) + eps) * _one_minus_exp(log1 * count)[:, None]
        direction = tl.div_rn(mean, scale)
    w = tl.load(weight + at, mask=inside, other=0.0) - lr * direction
    if BOUNDED:
        w = tl.where(inside, w, 0.0)
        w = w * _shrink(w, max_norm)[:, None]
    tl.store(weight + at, w, mask=inside)


@triton.jit
def _shrink(rows: tl.tensor, norm: tl.tensor) -> tl.tensor:
    """By what each row has to be multiplied to be no longer than `norm`."""
    length = tl.sqrt_rn(tl.sum(rows * rows, axis=1))
    return tl.where(length > norm, norm / length, 1.0)


@triton.jit
def _one_minus_exp(x: tl.tensor) -> tl.tensor:
    """1 - exp(x) for x <= 0, which keeps its digits near zero: there a Taylor series, off by less than 1e-9 of it."""
    series = 1.0 + x / 9.0
    series = 1.0 + x / 8.0 * series
    series = 1.0 + x / 7.0 * series
    series = 1.0 + x / 6.0 * series
    series = 1.0 + x / 5.0 * series
    series = 1.0 + x / 4.0 * series
    series = 1.0 + x / 3.0 * series
    series = 1.0 + x / 2.0 * series
    return tl.where(x > -0.5, -x * series, 1.0 - tl.exp(x))
