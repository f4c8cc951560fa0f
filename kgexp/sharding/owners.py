"""Which rank owns which rows: pure data, the same on every rank."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Owners:
    """Contiguous ranges of rows, as even as can be: ids are shuffled, so a range is a sample and its load is even.

    Attributes:
        num_rows: rows of the table.
        ranks: who owns them; with more ranks than rows, some own none.
    """

    num_rows: int
    ranks: int

    @property
    def bounds(self) -> tuple[int, ...]:
        """Rank r owns the rows `bounds[r] … bounds[r + 1] - 1`."""
        return tuple(self.num_rows * rank // self.ranks for rank in range(self.ranks + 1))

    def sizes(self) -> list[int]:
        """How many rows each rank owns."""
        bounds = self.bounds
        return [stop - start for start, stop in pairwise(bounds)]

    def cut(self, ids: Tensor) -> list[int]:
        """How many of the ids int64[u], ascending, each rank owns; those of rank 0 come first."""
        inner = torch.tensor(self.bounds[1:-1], dtype=torch.int64, device=ids.device)
        cuts = [0, *torch.searchsorted(ids, inner).tolist(), len(ids)]
        return [stop - start for start, stop in pairwise(cuts)]

    def line(self, name: str) -> str:
        """One line for people."""
        if self.ranks == 1:
            return f"{name} rows: {self.num_rows:,}, all of them on every rank"
        sizes = self.sizes()
        each = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} or {max(sizes):,}"
        return f"{name} rows: {self.num_rows:,} over {self.ranks} ranks, {each} each, in ranges of ids"
