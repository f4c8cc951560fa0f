"""Distances of all pairs and their gradients by tiles: what is made of a pair's difference never leaves registers.

Every number is added up by one program in a fixed order, so repeated runs give the same bits. Rows of `width` 2 hold
components of two reals, all first ones first; rows of width 1 single reals.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tiles are of one warp, and so wide that a thread has four columns in each of its rows: then it loads a third of a
# number for a pair, and loading does not take longer than computing.
_WARP: Final = {"num_warps": 1}

#: Queries and candidates in a tile of scores.
_LINES, _COLUMNS = 16, 128

#: Components in a tile of a gradient, and numbers in all of it.
_DEPTH, _NUMBERS = 128, 1024

#: Programs that gradients are cut into, where there are so many others to sum over. A constant, although GPUs differ:
#: the order of the sums may not hang on the device.
_PROGRAMS = 2048

#: Others at least that a program sums over.
_OTHERS = 32


class Kind(NamedTuple):
    """A distance: the reals in a component; whether their squares are summed, and the root comes last."""

    width: int
    squared: bool


KINDS = {"manhattan": Kind(1, False), "moduli": Kind(2, False), "euclidean": Kind(1, True)}


def scores(kind: str, queries: Tensor, candidates: Tensor, margin: float) -> Tensor:
    """margin - distance: float32[l, b, d] and float32[l, k, d] to float32[l, b, k]; `kind` is one of `KINDS`."""
    (leads, b, d), k = queries.shape, candidates.shape[1]
    width, squared = KINDS[kind]
    out = queries.new_empty(leads, b, k)
    if not out.numel():
        return out
    lines = min(_LINES, triton.next_power_of_2(b))
    columns = 32 if b == 1 else min(_COLUMNS, triton.next_power_of_2(k))
    grid = (leads * triton.cdiv(b, lines) * triton.cdiv(k, columns),)
    with torch.cuda.device_of(queries):
        if b == 1:
            _scores_of_one[grid](
                queries.contiguous(),
                candidates.contiguous(),
                out,
                k,
                d,
                float(margin),
                WIDTH=width,
                SQUARED=squared,
                COLUMNS=columns,
                DEPTH=min(64, triton.next_power_of_2(d // width)),
            )
        else:  # a tile takes a component of all its rows at a time: these lie together once they are transposed
            _scores[grid](
                queries.mT.contiguous(),
                candidates.mT.contiguous(),
                out,
                b,
                k,
                d,
                float(margin),
                WIDTH=width,
                SQUARED=squared,
                LINES=lines,
                COLUMNS=columns,
                **_WARP,
            )
    return out


def gradients(
    kind: str, queries: Tensor, candidates: Tensor, upstream: Tensor, distances: Tensor
) -> tuple[Tensor, Tensor]:
    """The derivatives of Σ upstream · scores by queries float32[l, b, d] and by candidates float32[l, k, d], for
    `upstream` and `distances` float32[l, b, k]. At distance zero, of components or of rows, they are zero."""
    if KINDS[kind].squared:
        upstream = upstream / distances.masked_fill(distances == 0, torch.inf)
    # Both are Σ over the others of how fast the distance grows when one moves away from them.
    by_queries = _by_own(kind, queries, candidates, upstream)
    return by_queries, _by_own(kind, candidates, queries, upstream.mT)


def _by_own(kind: str, own: Tensor, other: Tensor, upstream: Tensor) -> Tensor:
    """float32[l, x, d] by `own`, for `other` float32[l, y, d] and `upstream` float32[l, x, y]."""
    (leads, x, d), y = own.shape, other.shape[1]
    if not own.numel():
        return torch.zeros_like(own)
    width, squared = KINDS[kind]
    depth = min(_DEPTH, triton.next_power_of_2(d // width))
    rows = min(max(1, _NUMBERS // (depth * width)), triton.next_power_of_2(x))
    tiles = leads * triton.cdiv(x, rows) * triton.cdiv(d // width, depth)
    parts = max(1, min(triton.cdiv(_PROGRAMS, tiles), y // _OTHERS))
    out = own.new_empty(parts, leads, x, d)
    with torch.cuda.device_of(own):
        _slopes[(parts * tiles,)](
            own.contiguous(),
            other.contiguous(),
            upstream,
            out,
            leads,
            x,
            y,
            d,
            triton.cdiv(y, parts),
            *upstream.stride(),
            WIDTH=width,
            SQUARED=squared,
            ROWS=rows,
            DEPTH=depth,
            **_WARP,
        )
    return out.sum(dim=0) if parts > 1 else out[0]


@triton.jit
def _scores(
    queries: tl.tensor,
    candidates: tl.tensor,
    out: tl.tensor,
    b: tl.tensor,
    k: tl.tensor,
    d: tl.tensor,
    margin: tl.tensor,
    WIDTH: tl.constexpr,
    SQUARED: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """float32[l, d, b] and float32[l, d, k] to float32[l, b, k]."""
    program, across = tl.program_id(0), tl.cdiv(k, COLUMNS)
    lead = (program // (tl.cdiv(b, LINES) * across)).to(tl.int64)
    line = (program // across) % tl.cdiv(b, LINES) * LINES + tl.arange(0, LINES)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    q = queries + lead * d * b + line
    c = candidates + lead * d * k + column
    num = d // WIDTH
    second = tl.full((), 1, tl.int64) * num
    total = tl.zeros((LINES, COLUMNS), tl.float32)
    for _ in range(num):
        u = tl.load(q, mask=line < b, other=0.0)[:, None] - tl.load(c, mask=column < k, other=0.0)[None, :]
        if SQUARED:
            total += u * u
        elif WIDTH == 1:
            total += tl.abs(u)
        else:
            v = tl.load(q + second * b, mask=line < b, other=0.0)[:, None]
            v = v - tl.load(c + second * k, mask=column < k, other=0.0)[None, :]
            total += tl.sqrt(u * u + v * v)
        q += b
        c += k
    if SQUARED:
        total = tl.sqrt(total)
    at = out + (lead * b + line[:, None]) * k + column[None, :]
    tl.store(at, margin - total, mask=(line < b)[:, None] & (column < k)[None, :])


@triton.jit
def _scores_of_one(
    queries: tl.tensor,
    candidates: tl.tensor,
    out: tl.tensor,
    k: tl.tensor,
    d: tl.tensor,
    margin: tl.tensor,
    WIDTH: tl.constexpr,
    SQUARED: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """A query float32[l, d] against candidates of its own float32[l, k, d]: every number of these is read once."""
    program, across = tl.program_id(0), tl.cdiv(k, COLUMNS)
    lead = (program // across).to(tl.int64)
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)
    q = queries + lead * d
    c = candidates + (lead * k + column[:, None]) * d
    num = d // WIDTH
    total = tl.zeros((COLUMNS, DEPTH), tl.float32)
    for start in range(0, num, DEPTH):
        part = start + tl.arange(0, DEPTH)
        inside = (column < k)[:, None] & (part < num)[None, :]
        u = tl.load(q + part, mask=part < num, other=0.0)[None, :]
        u = tl.where(inside, u - tl.load(c + part[None, :], mask=inside, other=0.0), 0.0)
        if SQUARED:
            total += u * u
        elif WIDTH == 1:
            total += tl.abs(u)
        else:
            v = tl.load(q + num + part, mask=part < num, other=0.0)[None, :]
            v = tl.where(inside, v - tl.load(c + num + part[None, :], mask=inside, other=0.0), 0.0)
            total += tl.sqrt(u * u + v * v)
    distance = tl.sum(total, axis=1)
    if SQUARED:
        distance = tl.sqrt(distance)
    tl.store(out + lead * k + column, margin - distance, mask=column < k)


@triton.jit
def _slopes(
    own: tl.tensor,
    other: tl.tensor,
    upstream: tl.tensor,
    out: tl.tensor,
    leads: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    d: tl.tensor,
    length: tl.tensor,
    by_lead: tl.tensor,
    by_own: tl.tensor,
    by_other: tl.tensor,
    WIDTH: tl.constexpr,
    SQUARED: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """float32[l, x, d], float32[l, y, d], and float32[l, x, y] by its strides, to float32[parts, l, x, d]: each part
    sums over `length` of the others. The derivative of a score, and so of the distance negated."""
    num = d // WIDTH
    across, down = tl.cdiv(num, DEPTH), tl.cdiv(x, ROWS)
    program = tl.program_id(0)
    part = program % across * DEPTH + tl.arange(0, DEPTH)
    row = (program // across) % down * ROWS + tl.arange(0, ROWS)
    place = (program // (across * down)).to(tl.int64)  # part by part, lead by lead
    lead, start = place % leads, place // leads * length
    inside = (row < x)[:, None] & (part < num)[None, :]
    mine = (lead * x + row[:, None]) * d + part[None, :]
    theirs = other + (lead * y + start) * d + part
    weight = upstream + lead * by_lead + row.to(tl.int64) * by_own + start * by_other
    a = tl.load(own + mine, mask=inside, other=0.0)
    by_a = tl.zeros((ROWS, DEPTH), tl.float32)
    if WIDTH == 2:
        b = tl.load(own + mine + num, mask=inside, other=0.0)
        by_b = tl.zeros((ROWS, DEPTH), tl.float32)
    for _ in range(start, tl.minimum(start + length, y)):
        slope = tl.load(weight, mask=row < x, other=0.0)[:, None]
        u = a - tl.load(theirs, mask=part < num, other=0.0)[None, :]
        if SQUARED:
            by_a += slope * u
        elif WIDTH == 1:
            by_a += tl.where(u > 0, slope, tl.where(u < 0, -slope, 0.0))
        else:
            v = b - tl.load(theirs + num, mask=part < num, other=0.0)[None, :]
            # At zero it is zero times the inverse root of the least normal number.
            slope = slope * tl.rsqrt(tl.maximum(u * u + v * v, 1.1754943508222875e-38))
            by_a += slope * u
            by_b += slope * v
        weight += by_other
        theirs += d
    mine += place // leads * leads * x * d
    tl.store(out + mine, -by_a, mask=inside)
    if WIDTH == 2:
        tl.store(out + mine + num, -by_b, mask=inside)
