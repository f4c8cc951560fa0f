"""Initial rows by name, each number a function of (seed, table, row, column) alone, and of the table's shape."""

import math
from collections.abc import Callable

import numpy as np

from kgexp import randomness
from kgexp.randomness import Float64, Int64, UInt64


def _normal(stream: int, counters: UInt64, fans: int) -> Float64:
    return randomness.normal(stream, counters)


def _uniform(stream: int, counters: UInt64, fans: int) -> Float64:
    return 2.0 * randomness.uniform(stream, counters) - 1.0


def _xavier_normal(stream: int, counters: UInt64, fans: int) -> Float64:
    return math.sqrt(2 / fans) * _normal(stream, counters, fans)


def _xavier_uniform(stream: int, counters: UInt64, fans: int) -> Float64:
    return math.sqrt(6 / fans) * _uniform(stream, counters, fans)


#: name to a function that draws numbers of scale one: N(0, 1); uniform in [-1, 1); and both at the scale of Glorot and
#: Bengio (AISTATS 2010): N(0, 2 / fans), and uniform in ±√(6 / fans), with `fans` the sum of fan-in and fan-out.
DISTRIBUTIONS: dict[str, Callable[[int, UInt64, int], Float64]] = {
    "normal": _normal,
    "uniform": _uniform,
    "xavier_normal": _xavier_normal,
    "xavier_uniform": _xavier_uniform,
}


def initial_rows(distribution: str, scale: float, stream: int, ids: Int64, num_rows: int, dim: int) -> Float64:
    """Rows float64[u, dim] for the ids int64[u] of the table `stream`, `scale` times the named distribution.

    For the Xavier distributions a table float[num_rows, dim] is the weight of a dense layer, with `dim` inputs and
    `num_rows` outputs: so torch.nn.init takes it, and with it LibKGE, whose published settings then hold here. Rows of
    large tables begin small.
    """
    first: UInt64 = ids.astype(np.uint64) * np.uint64(dim)
    counters = first[:, None] + np.arange(dim).astype(np.uint64)
    return scale * DISTRIBUTIONS[distribution](stream, counters, num_rows + dim)
