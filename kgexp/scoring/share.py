"""Which part of every batch a rank trains."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """The part of rank `rank` of `ranks`: contiguous, and as even as can be; it may be empty."""

    rank: int = 0
    ranks: int = 1

    def of(self, n: int) -> tuple[int, int]:
        """Start and stop of the part of n elements."""
        return self._start(self.rank, n), self._start(self.rank + 1, n)

    def sizes(self, n: int) -> list[int]:
        """How many of n elements each rank has."""
        return [self._start(rank + 1, n) - self._start(rank, n) for rank in range(self.ranks)]

    def _start(self, rank: int, n: int) -> int:
        return n * rank // self.ranks


#: All of every batch.
ALL = Share()
