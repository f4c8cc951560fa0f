"""Slices: the contiguous ranges of ids by which a partitioned table moves between memory and storage."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kgexp.sharding.owners import Owners


@dataclass(frozen=True)
class Slices:
    """The ids 0 … n-1 cut into ranges, those of a type as even as can be: its ids are shuffled, so each is a sample.

    Attributes:
        bounds: slice k holds the ids `bounds[k] … bounds[k + 1] - 1`; it may be empty.
    """

    bounds: tuple[int, ...]

    @classmethod
    def of_ranges(cls, ranges: Sequence[range], counts: Sequence[int]) -> "Slices":
        """So many slices of each of some ranges, which follow one another from 0."""
        bounds = [0]
        for ids, count in zip(ranges, counts, strict=True):
            bounds += [ids.start + bound for bound in Owners(len(ids), count).bounds[1:]]
        return cls(tuple(bounds))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_rows(self) -> int:
        """n."""
        return self.bounds[-1]

    def ids(self, k: int) -> range:
        """Those of a slice."""
        return range(self.bounds[k], self.bounds[k + 1])

    def size(self, k: int) -> int:
        """How many ids a slice has."""
        return self.bounds[k + 1] - self.bounds[k]

    @property
    def largest(self) -> int:
        """Ids of the largest slice."""
        return max(stop - start for start, stop in pairwise(self.bounds))

    def largest_but(self, others: Collection[int]) -> int:
        """Ids of the largest slice that is not among others; 0 where there is none."""
        return max((self.size(k) for k in range(len(self)) if k not in others), default=0)

    def of(self, ids: Tensor) -> Tensor:
        """The slice int64[…] of every id int64[…]."""
        inner = torch.tensor(self.bounds[1:-1], dtype=torch.int64, device=ids.device)
        return torch.searchsorted(inner, ids, right=True)
