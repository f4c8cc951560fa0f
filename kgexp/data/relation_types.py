"""Types of entities, as a file says them by relation: lines `relation<TAB>head type<TAB>tail type`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kgexp.data.relation_lines import Said, relation_lines
from kgexp.data.sides import Side
from kgexp.data.vocabulary import EntityType, Vocabulary
from kgexp.errors import DataError

Int32 = npt.NDArray[np.int32]

_EXAMPLES = 3


@dataclass(frozen=True)
class RelationTypes:
    """The types of the entities that relations join.

    Attributes:
        path: of the file, for messages.
        names: of the types, in the order of the file.
        ends: int32[m, 2], the types of every relation's heads and of its tails, as numbers of `names`.
    """

    path: Path
    names: tuple[str, ...]
    ends: Int32

    @classmethod
    def read(cls, path: Path, relations: Vocabulary) -> "RelationTypes":
        """What a file says of the relations of a graph, each of which it has to name once.

        Raises:
            DataError: the file cannot be read, has an unfit line (which is named), or lacks a relation.
        """
        numbers: dict[str, int] = {}
        ends = np.full((len(relations), 2), -1, np.int32)
        for line in relation_lines(path, relations, Said("types", ("head type", "tail type"))):
            if "" in line.fields:
                raise line.fault(path, "a type is empty; give it a name")
            ends[line.relation] = [numbers.setdefault(name, len(numbers)) for name in line.fields]
        missing = np.flatnonzero(ends[:, 0] < 0)
        if len(missing):
            some = ", ".join(f"'{name}'" for name in relations.names(missing[:_EXAMPLES]))
            raise DataError(
                f"{path} says nothing of {len(missing):,} relations of the graph, such as {some}: give each a line."
            )
        return cls(path, tuple(numbers), ends)

    def of_entities(
        self,
        pieces: Iterable[npt.NDArray[np.integer]],
        n: int,
        entity: Callable[[int], str],
        relation: Callable[[int], str],
    ) -> Int32:
        """The type int32[n] of every entity, by the relations of its triples.

        Args:
            pieces: all triples int[b, 3] with numbers 0 … n-1 of entities, each of which is in one, and ids of
                relations.
            n: entities.
            entity, relation: the name of a number, for messages.

        Raises:
            DataError: an entity would have two types.
        """
        # Of each entity a relation and a side that it has stood at, 2r + side: so both can be named.
        seen = np.full(n, -1, np.int32)
        types = self.ends.reshape(-1)
        for entities, ends in _ends(pieces):
            new = seen[entities] < 0
            seen[entities[new]] = ends[new]
            clash = np.flatnonzero(types[seen[entities]] != types[ends])
            if len(clash):
                one, two = int(seen[entities[clash[0]]]), int(ends[clash[0]])
                raise DataError(
                    f"{self.path}: the entity '{entity(int(entities[clash[0]]))}' would have two types, "
                    f"{self._reason(one, relation)} and {self._reason(two, relation)}: give names a prefix for each "
                    "type, or give both relations the same type there."
                )
        found: Int32 = types[seen]
        return found

    def ranges(self, types: Int32) -> list[EntityType]:
        """The types as ranges of ids, where entities of the types int32[n] are numbered type by type."""
        stops = np.cumsum(np.bincount(types, minlength=len(self.names))).tolist()
        return [EntityType(*one) for one in zip(self.names, [0, *stops[:-1]], stops, strict=True)]

    def _reason(self, end: int, relation: Callable[[int], str]) -> str:
        r, side = divmod(end, 2)
        return f"'{self.names[self.ends[r, side]]}' as a {Side(side).label} of '{relation(r)}'"


def _ends(pieces: Iterable[npt.NDArray[np.integer]]) -> Iterator[tuple[npt.NDArray[np.integer], Int32]]:
    """The entities int[b] at each side of triples, with 2r + side int32[b]."""
    for triples in pieces:
        for side in Side:
            yield triples[:, side.column], (2 * triples[:, 1] + side.value).astype(np.int32)
