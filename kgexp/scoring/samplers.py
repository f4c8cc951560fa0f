"""From which distribution entities are drawn as negatives."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from kgexp.data.rowfile import pieces
from kgexp.randomness import Int64, integers, uniform
from kgexp.scoring.pool import Pool


class Sampler(ABC):
    """A distribution over the entities."""

    #: Bytes that it keeps.
    kept_bytes = 0

    @abstractmethod
    def draw(self, stream: int, counters: Int64, pool: Pool) -> Int64:
        """An entity of the pool for every counter int64[…], of the random stream `stream`."""


class Uniform(Sampler):
    """Every entity alike."""

    def draw(self, stream: int, counters: Int64, pool: Pool) -> Int64:
        """See `Sampler.draw`."""
        return pool.ids(integers(stream, counters, pool.size))


class Degree(Sampler):
    """Probability proportional to degree^exponent, mixed with the uniform distribution. It keeps float64[n].

    Args:
        triples: int32[N, 3] of train; the degree of an entity is its number of places in them.
        n: entities.
        exponent: 1 is the frequency in the data; .75 the distribution of Mikolov et al. (NIPS 2013).
        uniform_share: probability of drawing uniformly instead.
    """

    def __init__(self, triples: npt.NDArray[np.int32], n: int, exponent: float, uniform_share: float) -> None:
        degrees = np.zeros(n, np.int64)
        for piece in pieces(triples):
            degrees += np.bincount(piece[:, 0::2].ravel(), minlength=n)
        weights = degrees.astype(np.float64) ** exponent
        cumulative = np.cumsum((1 - uniform_share) * weights / weights.sum() + uniform_share / n)
        self._cumulative = cumulative / cumulative[-1]
        self.kept_bytes = self._cumulative.nbytes

    def draw(self, stream: int, counters: Int64, pool: Pool) -> Int64:
        """See `Sampler.draw`."""
        drawn = uniform(stream, counters)
        if pool.size < len(self._cumulative):
            # The pool's share of [0, 1) is made of pieces, which are laid end to end.
            before = np.concatenate([[0.0], self._cumulative])
            begins, ends = before[pool.starts], before[pool.starts + pool.lengths]
            laid = np.cumsum(ends - begins)
            if not laid[-1]:  # entities without a triple, all of them
                return pool.ids(integers(stream, counters, pool.size))
            drawn = drawn * laid[-1]
            which = np.minimum(np.searchsorted(laid, drawn, side="right"), len(laid) - 1)
            drawn = drawn - (laid - (ends - begins))[which] + begins[which]
            found = np.searchsorted(self._cumulative, drawn, side="right")
            last = pool.starts[which] + pool.lengths[which] - 1
            ids: Int64 = np.clip(found, pool.starts[which], last)  # as sums are rounded
            return ids
        return np.searchsorted(self._cumulative, drawn, side="right")
