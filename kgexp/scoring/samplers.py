"""From which distribution entities are drawn as negatives."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from kgexp.randomness import Int64, integers, uniform


class Sampler(ABC):
    """A distribution over the entities."""

    #: Bytes that it keeps.
    kept_bytes = 0

    @abstractmethod
    def draw(self, stream: int, counters: Int64) -> Int64:
        """An entity for every counter int64[…], of the random stream `stream`."""


class Uniform(Sampler):
    """Every one of `n` entities alike."""

    def __init__(self, n: int) -> None:
        self._n = n

    def draw(self, stream: int, counters: Int64) -> Int64:
        """See `Sampler.draw`."""
        return integers(stream, counters, self._n)


class Degree(Sampler):
    """Probability proportional to degree^exponent, mixed with the uniform distribution. It keeps float64[n].

    Args:
        triples: int32[N, 3] of train; the degree of an entity is its number of places in them.
        n: entities.
        exponent: 1 is the frequency in the data; .75 the distribution of Mikolov et al. (NIPS 2013).
        uniform_share: probability of drawing uniformly instead.
    """

    def __init__(self, triples: npt.NDArray[np.int32], n: int, exponent: float, uniform_share: float) -> None:
        degrees = np.bincount(triples[:, 0], minlength=n) + np.bincount(triples[:, 2], minlength=n)
        weights = degrees.astype(np.float64) ** exponent
        cumulative = np.cumsum((1 - uniform_share) * weights / weights.sum() + uniform_share / n)
        self._cumulative = cumulative / cumulative[-1]
        self.kept_bytes = self._cumulative.nbytes

    def draw(self, stream: int, counters: Int64) -> Int64:
        """See `Sampler.draw`."""
        return np.searchsorted(self._cumulative, uniform(stream, counters), side="right")
