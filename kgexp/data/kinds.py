"""Kinds of triples: which types of entities they join. Candidates for a side have the type that the kind has there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgexp.data.sides import Side

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kinds:
    """The pairs (type of the head, type of the tail) that relations have; without types there is one.

    Attributes:
        types: of each type its ids, contiguous.
        pairs: int64[k, 2], the kinds: distinct pairs of numbers of types, ascending.
        of_relations: int64[m], the kind of each relation's triples.
    """

    types: Sequence[range]
    pairs: Int64
    of_relations: Int64

    @classmethod
    def of(cls, types: Sequence[range], ends: npt.NDArray[np.integer]) -> "Kinds":
        """The kinds of relations whose heads and tails have the types int[m, 2]."""
        pairs, kinds = np.unique(ends.astype(np.int64), axis=0, return_inverse=True)
        return cls(types, pairs, kinds.reshape(-1).astype(np.int64))

    def __len__(self) -> int:
        return len(self.pairs)

    def ids(self, kind: int, side: Side) -> range:
        """The entities of the type that a kind has at a side."""
        return self.types[int(self.pairs[kind, side.value])]

    @property
    def joined(self) -> npt.NDArray[np.bool_]:
        """bool[T, T]: which (type of the head, type of the tail) are a kind."""
        joined = np.zeros((len(self.types), len(self.types)), bool)
        joined[self.pairs[:, 0], self.pairs[:, 1]] = True
        return joined

    def type_at(self, side: Side, relations: npt.NDArray[np.integer]) -> Int64:
        """The type int64[b] that relations int[b] have at a side."""
        types: Int64 = self.pairs[self.of_relations[relations], side.value]
        return types
