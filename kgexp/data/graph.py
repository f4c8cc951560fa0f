"""A graph of integer ids: three splits, two vocabularies and the filter index, all mapped from one folder."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgexp.data.cache import read_index
from kgexp.data.files import SPLITS
from kgexp.data.indexing import write_known
from kgexp.data.kinds import Kinds
from kgexp.data.known import KnownTriples
from kgexp.data.pace import Pace
from kgexp.data.report import DataReport, examine
from kgexp.data.vocabulary import Vocabulary

_ENTITIES, _RELATIONS = "entities.arrow", "relations.arrow"

RELATION_TYPES = "relation_types"
"""The file of `Graph.relation_types` in a folder, without its ending; there is none without types."""


@dataclass(frozen=True)
class Split:
    """The triples of one split, in the order of their file.

    Attributes:
        name: `train`, `valid` or `test`.
        triples: int32[N, 3], columns head, relation, tail; read only.
        weights: float64[N], or None if the data set has no weight column.
    """

    name: str
    triples: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.triples)


@dataclass(frozen=True)
class Graph:
    """A data set, ready for training and evaluation.

    Attributes:
        name: what the configuration calls it.
        fingerprint: 32 hexadecimal digits, of the files' content and all options that decide ids, splits and
            weights.
        train: the triples to train on, at least one.
        valid: those to choose by, perhaps none.
        test: those to report on, perhaps none.
        entities: the names of the entities 0 … n-1.
        relations: the names of the relations 0 … m-1.
        known: the filter index.
        report: counts, and what is unusual.
        relation_weights: float64[m], which multiply the weights of their triples; None if all are 1.
        relation_types: int32[m, 2], the types of every relation's heads and tails, as numbers of `entities.types`;
            None where entities have no types.
    """

    name: str
    fingerprint: str
    train: Split
    valid: Split
    test: Split
    entities: Vocabulary
    relations: Vocabulary
    known: KnownTriples
    report: DataReport
    relation_weights: npt.NDArray[np.float64] | None = None
    relation_types: npt.NDArray[np.int32] | None = None

    @property
    def num_entities(self) -> int:
        """n, counted over all splits."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """m, counted over all splits."""
        return len(self.relations)

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of triples; one, of all entities, where these have no types."""
        ends = np.zeros((self.num_relations, 2), np.int32) if self.relation_types is None else self.relation_types
        return Kinds.of([range(start, stop) for _, start, stop in self.entities.types], ends)

    @property
    def vocabulary_files(self) -> dict[str, Path]:
        """The files of the two vocabularies, by the names that a checkpoint gives them."""
        files = {_ENTITIES: self.entities.path, _RELATIONS: self.relations.path}
        return {name: path for name, path in files.items() if path is not None}

    def split(self, name: str) -> Split:
        """The split called `train`, `valid` or `test`.

        Raises:
            KeyError: any other name.
        """
        return {split.name: split for split in (self.train, self.valid, self.test)}[name]


def write_graph(
    folder: Path,
    entities: Vocabulary,
    relations: Vocabulary,
    notes: tuple[str, ...],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Completes a folder that has the splits' triples and weights, under the names of `split_file`.

    Returns:
        What the folder's index should hold for `open_graph`.
    """
    entities.save(folder / _ENTITIES)
    relations.save(folder / _RELATIONS)
    triples = {name: _mapped(split_file(folder, name, "triples")) for name in SPLITS}
    total = sum(map(len, triples.values()))
    say(f"Indexing {total:,} triples of {len(entities):,} entities")
    pace = Pace(say, "Indexed", total)
    # Each triple is scattered and sorted for both sides.
    write_known(folder, list(triples.values()), len(entities), len(relations), lambda rows: pace.advance(rows / 4))
    known = KnownTriples.from_arrays(len(relations), _arrays(folder))
    return {"report": examine(triples, known, entities, relations, notes).as_dict()}


def open_graph(folder: Path, name: str, fingerprint: str) -> Graph:
    """Maps the files that `write_graph` wrote: nothing is read before it is used."""
    arrays = _arrays(folder)
    train, valid, test = (Split(split, arrays[f"{split}_triples"], arrays.get(f"{split}_weights")) for split in SPLITS)
    entities, relations = Vocabulary.load(folder / _ENTITIES), Vocabulary.load(folder / _RELATIONS)
    known = KnownTriples.from_arrays(len(relations), arrays)
    report = DataReport.from_dict(read_index(folder)["report"])
    types = arrays.get(RELATION_TYPES)
    return Graph(name, fingerprint, train, valid, test, entities, relations, known, report, relation_types=types)


def split_file(folder: Path, split: str, what: str) -> Path:
    """The file of a split's `triples` or `weights`."""
    return folder / f"{split}_{what}.npy"


def _arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    return {path.stem: _mapped(path) for path in folder.glob("*.npy")}


def _mapped(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
