"""From columns of names to integer triples: one numbering for all files, block by block."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from kgexp.data.numbering import Numbering
from kgexp.data.reading import Columns

Triples = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float64]


class Encoder:
    """Numbers the names of files, which are encoded one after the other.

    At first names get provisional numbers, in the order in which blocks bring them. Their final order is that of
    first appearance, heads of a file before its tails, so that it does not depend on blocks.

    Attributes:
        entities: the numbering of heads and tails.
        relations: the numbering of relations.
    """

    def __init__(self) -> None:
        self.entities, self.relations = Numbering("entities"), Numbering("relations")
        self._files = 0

    def encode(self, blocks: Iterable[Columns]) -> Iterator[tuple[Triples, Weights | None]]:
        """The blocks of the next file as int32[b, 3] triples of provisional numbers, and their weights.

        Raises:
            DataError: there are more names than int32 ids.
        """
        heads, tails = 2 * self._files, 2 * self._files + 1
        self._files += 1
        for block in blocks:
            h = self.entities.number(block.heads, heads)
            r = self.relations.number(block.relations, heads)[block.relation]
            t = self.entities.number(block.tails, tails)
            yield np.stack([h, r, t], axis=1), block.weights
