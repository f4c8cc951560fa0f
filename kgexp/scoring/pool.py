"""The entities that may be drawn as candidates: all of them, or those whose rows are in memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kgexp.randomness import Int64


@dataclass(frozen=True)
class Pool:
    """Ranges of ids, whose elements have the places 0 … size-1 in ascending order.

    Attributes:
        starts: int64[r], the first id of every range, ascending.
        ends: int64[r], the places at which the ranges end: the sums of their lengths so far.
    """

    starts: Int64
    ends: Int64

    @classmethod
    def of(cls, ranges: Iterable[range]) -> "Pool":
        """The pool of ascending ranges, which do not overlap."""
        joined: list[tuple[int, int]] = []
        for part in ranges:
            if joined and joined[-1][1] == part.start:
                joined[-1] = (joined[-1][0], part.stop)
            elif len(part):
                joined.append((part.start, part.stop))
        bounds = np.array(joined, np.int64).reshape(-1, 2)
        return cls(bounds[:, 0], np.cumsum(bounds[:, 1] - bounds[:, 0]))

    @property
    def size(self) -> int:
        """Entities in it."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def lengths(self) -> Int64:
        """int64[r], ids of each range."""
        lengths: Int64 = np.diff(self.ends, prepend=0)
        return lengths

    def ids(self, places: Int64) -> Int64:
        """The ids int64[…] at places int64[…]."""
        shift = self.starts - (self.ends - self.lengths)
        ids: Int64 = places + (shift if len(shift) == 1 else shift[np.searchsorted(self.ends, places, side="right")])
        return ids
