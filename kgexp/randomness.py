"""Counter-based random numbers: a hash of (seed, purpose, counters), vectorised, with no state.

A number depends only on what it is for (which row, which step, which position), never on how many ranks,
threads or calls came before. So a resumed run draws what the uninterrupted one drew, and a sharded run what
a single process draws. The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a random number is for: two purposes never share numbers. The values are part of every result."""

    VOCABULARY = 1
    SPLIT = 2
    ENTITY_INIT = 3
    RELATION_INIT = 4
    ORDER = 5
    HEAD_NEGATIVES = 6
    TAIL_NEGATIVES = 7
    EVALUATION_CANDIDATES = 8
    SIDES = 9
    LABELS = 10
    ENTITY_DROPOUT = 11
    RELATION_DROPOUT = 12
    ROUNDING = 13
    PASS = 14
    SYNTHETIC = 15


def _mix(x: UInt64) -> UInt64:
    """The SplitMix64 finaliser, in place on the array it is given: a bijection of the 64-bit integers."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def key(*parts: int) -> int:
    """Folds integers (seed, purpose, step, …) into one 64-bit key; the order of the parts matters."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        state += np.uint64(part & _MASK)
        state += _GOLDEN
        state = _mix(state)
    return int(state[0])


def bits(stream: int, counters: npt.ArrayLike) -> UInt64:
    """64 random bits for each counter: uint64, the shape of `counters` (any integers)."""
    x = np.array(counters, dtype=np.uint64)
    x *= _GOLDEN
    x += np.uint64(stream)
    return _mix(_mix(x))


def uniform(stream: int, counters: npt.ArrayLike) -> Float64:
    """Uniform in [0, 1) with 53 bits, for each counter."""
    return (bits(stream, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(stream: int, counters: npt.ArrayLike, high: int) -> Int64:
    """Uniform in {0, …, high-1} for each counter; `high` at most 2**31. The bias is below high / 2**33."""
    if not 0 < high <= 2**31:
        raise ValueError(f"high must lie in 1 … 2**31, not {high}")
    top = bits(stream, counters) >> np.uint64(31)  # 33 bits: the product below fits 64
    return ((top * np.uint64(high)) >> np.uint64(33)).astype(np.int64)


def normal(stream: int, counters: npt.ArrayLike) -> Float64:
    """Standard normal for each counter, by the Box-Muller transform of two uniforms."""
    counters = np.asarray(counters, dtype=np.uint64)
    radius = 1.0 - uniform(stream, counters * np.uint64(2))  # in (0, 1]: the logarithm is finite
    angle = uniform(stream, counters * np.uint64(2) + np.uint64(1))
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)


class Permutation:
    """A seeded permutation of {0, …, n-1} that needs no memory: any position is computed on its own.

    A Feistel network with modular addition on the grid `rows x columns`, which is just larger than `n`; a value
    that falls outside is sent through the network again until it lies inside (cycle walking: Black and Rogaway,
    CT-RSA 2002), which keeps it a bijection.
    """

    ROUNDS = 6

    def __init__(self, n: int, stream: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs at least one element, not {n}")
        self.n = n
        self._rows = max(1, int(np.ceil(np.sqrt(n))))
        self._columns = -(-n // self._rows)
        self._streams = [key(stream, i) for i in range(self.ROUNDS)]

    def __call__(self, positions: npt.ArrayLike) -> Int64:
        """The elements at `positions` (each in 0 … n-1): int64, the same shape."""
        out = self._network(np.asarray(positions, dtype=np.int64))
        while (outside := out >= self.n).any():
            out[outside] = self._network(out[outside])
        return out

    def _network(self, x: Int64) -> Int64:
        left, right = x // self._columns, x % self._columns
        for i, stream in enumerate(self._streams):
            if i % 2:
                right = (right + integers(stream, left, self._columns)) % self._columns
            else:
                left = (left + integers(stream, right, self._rows)) % self._rows
        return left * self._columns + right
