"""How the entities are cut: type by type into partitions, and these into slices; what stays in memory, what comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kgexp.sharding.covering import Bool, Int64
from kgexp.sharding.slices import Slices


@dataclass(frozen=True)
class Partitions:
    """Partitions of entities of one type each. A type that is one partition stays in memory, as one slice.

    Attributes:
        types: of each type its ids, which follow those of the type before.
        counts: partitions of each type.
        buffer: partitions in memory beside those that stay; no more than there are.
        parts: slices of each partition that comes and goes.
        joined: bool[T, T], which types (of the head, of the tail) a relation joins.
    """

    types: Sequence[range]
    counts: Sequence[int]
    buffer: int
    parts: int
    joined: Bool

    @classmethod
    def of(cls, types: Sequence[range], counts: Sequence[int], buffer: int, slices: int, joined: Bool) -> "Partitions":
        """With room for `buffer` partitions, each made of `slices`; of one slice where all are in memory, as there is
        nothing to regroup then."""
        coming = sum(count for count in counts if count > 1)
        return cls(types, counts, min(buffer, coming), 1 if buffer >= coming else slices, joined)

    @property
    def coming(self) -> tuple[int, ...]:
        """How many partitions each type has that do not stay, of the types that have any."""
        return tuple(count for count in self.counts if count > 1)

    @cached_property
    def slices(self) -> Slices:
        """All of them, numbered as their ids are."""
        return Slices.of_ranges(self.types, self._slices)

    @property
    def slice_types(self) -> Int64:
        """int64[K], the type of each slice."""
        return np.repeat(np.arange(len(self.types)), self._slices)

    @property
    def pinned(self) -> tuple[int, ...]:
        """The slices that stay."""
        stay = np.array(self.counts) == 1
        return tuple(np.flatnonzero(stay[self.slice_types]).tolist())

    @property
    def needed(self) -> Bool:
        """bool[K, K]: the pairs (head slice, tail slice) that can have triples."""
        needed: Bool = self.joined[np.ix_(self.slice_types, self.slice_types)]
        return needed

    @property
    def _slices(self) -> list[int]:
        """Slices of each type."""
        return [1 if count == 1 else count * self.parts for count in self.counts]
