"""What a graph holds and what is unusual about it: counted, never repaired."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgexp.data.files import SPLITS
from kgexp.data.known import KnownTriples
from kgexp.data.rowfile import pieces
from kgexp.data.vocabulary import Vocabulary

Triples = npt.NDArray[np.int32]

_EXAMPLES = 3


@dataclass(frozen=True)
class Unseen:
    """Names in a split that train lacks.

    Attributes:
        names: how many names.
        triples: how many triples of the split hold one of them, copies counted.
        examples: a few of the names.
    """

    names: int
    triples: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class SplitReport:
    """The counts of one split.

    Attributes:
        triples: all triples, copies counted.
        duplicates: triples that repeat an earlier one of the split.
        unseen_entities: entities that train lacks.
        unseen_relations: relations that train lacks.
    """

    triples: int
    duplicates: int
    unseen_entities: Unseen
    unseen_relations: Unseen


@dataclass(frozen=True)
class DataReport:
    """The counts of a graph.

    Attributes:
        entities: distinct entities of all splits.
        relations: distinct relations of all splits.
        splits: the counts of each split.
        shared: distinct triples that two splits have in common, by `train_valid`, `train_test`, `valid_test`.
        notes: what else to know, in sentences without their full stop.
    """

    entities: int
    relations: int
    splits: Mapping[str, SplitReport]
    shared: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report for people: the sizes in the first line, then `warnings`."""
        sizes = ", ".join(f"{self.splits[name].triples:,} {name}" for name in SPLITS)
        return [
            f"{self.entities:,} entities, {self.relations:,} relations; triples: {sizes}",
            *self.warnings(),
        ]

    def warnings(self) -> list[str]:
        """A line for everything that may change what the numbers of a run mean."""
        lines = [f"the {name} split is empty" for name in SPLITS if not self.splits[name].triples]
        for name, split in self.splits.items():
            if split.duplicates:
                lines.append(f"{name}: {split.duplicates:,} triples repeat another one of the split; all are kept")
            for what, unseen in (("entities", split.unseen_entities), ("relations", split.unseen_relations)):
                if unseen.names:
                    examples = ", ".join(f"'{example}'" for example in unseen.examples)
                    lines.append(
                        f"{name}: {unseen.triples:,} triples hold one of {unseen.names:,} {what} that train "
                        f"lacks, such as {examples}; they are kept, but those rows are never trained"
                    )
        for pair, count in self.shared.items():
            if count:
                lines.append(f"{pair.replace('_', ' and ')} share {count:,} triples; all are kept")
        return lines + list(self.notes)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values that JSON can hold, of which `from_dict` makes it again."""
        return {**asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "DataReport":
        """The report that `as_dict` gave, perhaps by way of JSON."""
        splits = {
            name: SplitReport(
                split["triples"],
                split["duplicates"],
                *(Unseen(**{**split[key], "examples": tuple(split[key]["examples"])}) for key in _UNSEEN),
            )
            for name, split in fields["splits"].items()
        }
        return cls(fields["entities"], fields["relations"], splits, fields["shared"], tuple(fields["notes"]))


_UNSEEN = ("unseen_entities", "unseen_relations")


def examine(
    splits: Mapping[str, Triples],
    known: KnownTriples,
    entities: Vocabulary,
    relations: Vocabulary,
    notes: tuple[str, ...] = (),
) -> DataReport:
    """Counts a graph whose splits are int32[N, 3] triples in the order of `SPLITS`."""
    tally = np.zeros(1 << len(SPLITS), np.int64)
    for piece in pieces(known.splits):
        tally += np.bincount(piece, minlength=len(tally))
    masks = np.arange(len(tally))

    def held(bits: int) -> int:
        """Distinct triples that all the splits of the mask hold."""
        return int(tally[masks & bits == bits].sum())

    bit = {name: 1 << i for i, name in enumerate(splits)}
    new_entities, new_relations = np.ones(len(entities), bool), np.ones(len(relations), bool)
    for triples in pieces(splits["train"]):
        for column, new in enumerate((new_entities, new_relations, new_entities)):
            new[triples[:, column]] = False
    return DataReport(
        len(entities),
        len(relations),
        {
            name: SplitReport(
                len(triples),
                len(triples) - held(bit[name]),
                _unseen(others, slice(0, None, 2), new_entities, entities),
                _unseen(others, slice(1, 2), new_relations, relations),
            )
            for name, triples in splits.items()
            for others in [triples[:0] if name == "train" else triples]  # train has seen its own
        },
        {f"{a}_{b}": held(bit[a] | bit[b]) for a, b in (SPLITS[:2], SPLITS[::2], SPLITS[1:])},
        notes,
    )


def _unseen(triples: Triples, columns: slice, new: npt.NDArray[np.bool_], names: Vocabulary) -> Unseen:
    """What some columns of a split hold of the ids that bool[n] marks as lacking from train."""
    found = np.zeros(len(names), bool)
    count = 0
    for piece in pieces(triples):
        ids = piece[:, columns]
        among = new[ids]
        count += int(among.any(axis=1).sum())
        found[ids[among]] = True
    held = np.flatnonzero(found)
    return Unseen(len(held), count, tuple(names.names(held[:_EXAMPLES])))
