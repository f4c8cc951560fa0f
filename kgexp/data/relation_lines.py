"""Files that say something of relations: lines `relation<TAB>…`, each of which names a relation of the graph."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kgexp.data.blocks import blocks
from kgexp.data.layout import text_fault
from kgexp.data.vocabulary import Vocabulary
from kgexp.errors import DataError


class Said(NamedTuple):
    """What such a file says of a relation.

    Attributes:
        plural: as in "the relation 'r' has PLURAL already".
        columns: names of the columns that follow the relation.
    """

    plural: str
    columns: tuple[str, ...]


class Line(NamedTuple):
    """A line: its number from 1, the id of its relation, and the fields that follow."""

    number: int
    relation: int
    fields: list[str]

    def fault(self, path: Path, problem: str) -> DataError:
        """The error that names the line."""
        return DataError(f"{path}, line {self.number}: {problem}.")


def relation_lines(path: Path, relations: Vocabulary, said: Said) -> Iterator[Line]:
    """The lines of a file, at least one.

    Raises:
        DataError: the file cannot be read or is empty, a line has other columns, or its relation is unknown or has
            been named before.
    """
    ids = {name: i for i, name in enumerate(relations.names(np.arange(len(relations))))}
    first: dict[str, int] = {}  # the line in which each relation was named
    for block in blocks(path):
        for number, raw in enumerate(block.text.removesuffix(b"\n").split(b"\n"), block.line):
            problem = text_fault(raw) or _fault(fields := raw.decode().removesuffix("\r").split("\t"), first, said)
            if problem:
                raise DataError(f"{path}, line {number}: {problem}.")
            name, *rest = fields
            if name not in ids:
                raise DataError(f"{path}, line {number}: {_unknown(name, relations)}")
            first[name] = number
            yield Line(number, ids[name], rest)
    if not first:
        raise DataError(f"{path}, line 1: expected {_expected(said)}, but the file is empty; fill it.")


def _expected(said: Said) -> str:
    return f"a relation and its {' and '.join(said.columns)}"


def _fault(fields: list[str], first: dict[str, int], said: Said) -> str | None:
    if fields == [""]:
        return "the line is blank; remove it"
    if len(fields) != 1 + len(said.columns):
        tabs = "tabs" if len(said.columns) > 1 else "a tab"
        return f"expected {_expected(said)}, separated by {tabs}, found {len(fields)} columns; mend the line"
    if fields[0] in first:
        return (
            f"the relation '{fields[0]}' has {said.plural} already, in line {first[fields[0]]}; remove one of the lines"
        )
    return None


def _unknown(name: str, relations: Vocabulary) -> str:
    """The sentence about a name that is no relation of the graph."""
    try:
        relations.id(name)
    except DataError as error:
        return str(error)
    raise AssertionError(f"{name} is a relation")
