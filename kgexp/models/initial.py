"""Initial rows by name, each number a function of (seed, table, row, column) alone."""

from collections.abc import Callable

import numpy as np

from kgexp import randomness
from kgexp.randomness import Float64, Int64, UInt64


def _normal(stream: int, counters: UInt64) -> Float64:
    return randomness.normal(stream, counters)


def _uniform(stream: int, counters: UInt64) -> Float64:
    return 2.0 * randomness.uniform(stream, counters) - 1.0


#: name to a function that draws numbers of scale one: N(0, 1), and uniform in [-1, 1).
DISTRIBUTIONS: dict[str, Callable[[int, UInt64], Float64]] = {"normal": _normal, "uniform": _uniform}


def initial_rows(distribution: str, scale: float, stream: int, ids: Int64, dim: int) -> Float64:
    """Rows float64[u, dim] of the table `stream` for the ids int64[u], `scale` times the named distribution."""
    first: UInt64 = ids.astype(np.uint64) * np.uint64(dim)
    counters = first[:, None] + np.arange(dim).astype(np.uint64)
    return scale * DISTRIBUTIONS[distribution](stream, counters)
