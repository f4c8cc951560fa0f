"""Slices: the contiguous ranges of ids by which a partitioned table moves between memory and storage."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kgexp.sharding.owners import Owners


@dataclass(frozen=True)
class Slices:
    """The ids 0 … n-1 cut into ranges, as even as can be: ids are shuffled, so each is a sample of the entities.

    Attributes:
        bounds: slice k holds the ids `bounds[k] … bounds[k + 1] - 1`; it may be empty.
    """

    bounds: tuple[int, ...]

    @classmethod
    def even(cls, n: int, count: int) -> "Slices":
        """So many slices of n ids."""
        return cls(Owners(n, count).bounds)

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

    def of(self, ids: Tensor) -> Tensor:
        """The slice int64[…] of every id int64[…]."""
        inner = torch.tensor(self.bounds[1:-1], dtype=torch.int64, device=ids.device)
        return torch.searchsorted(inner, ids, right=True)
