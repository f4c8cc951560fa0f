"""Weights of relations: a file with lines `relation<TAB>weight`, which multiply the weights of their triples."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kgexp.data.blocks import blocks
from kgexp.data.layout import is_weight, text_fault
from kgexp.data.vocabulary import Vocabulary
from kgexp.errors import DataError


def read_relation_weights(path: Path, relations: Vocabulary) -> npt.NDArray[np.float64]:
    """The weights float64[m] of a graph's relations; those that the file lacks weigh 1.

    Raises:
        DataError: the file cannot be read, is empty, or has an unfit line (which is named).
    """
    ids = {name: i for i, name in enumerate(relations.names(np.arange(len(relations))))}
    weights = np.ones(len(relations))
    lines: dict[str, int] = {}  # where each relation stood first
    for block in blocks(path):
        for number, raw in enumerate(block.text.removesuffix(b"\n").split(b"\n"), block.line):
            problem = text_fault(raw) or _fault(fields := raw.decode().removesuffix("\r").split("\t"), lines)
            if problem:
                raise DataError(f"{path}, line {number}: {problem}.")
            name, weight = fields
            if name not in ids:
                raise DataError(f"{path}, line {number}: {_unknown(name, relations)}")
            lines[name] = number
            weights[ids[name]] = float(weight)
    if not lines:
        raise DataError(f"{path}, line 1: expected a relation and its weight, but the file is empty; fill it.")
    return weights


def _fault(fields: list[str], lines: dict[str, int]) -> str | None:
    if fields == [""]:
        return "the line is blank; remove it"
    if len(fields) != 2:
        return f"expected a relation and its weight, separated by a tab, found {len(fields)} columns; mend the line"
    name, weight = fields
    if name in lines:
        return f"the relation '{name}' has a weight already, in line {lines[name]}; remove one of them"
    if not is_weight(weight):
        return f"the weight '{weight}' is no finite number of at least 0; mend it"
    return None


def _unknown(name: str, relations: Vocabulary) -> str:
    """The sentence about a name that is no relation of the graph."""
    try:
        relations.id(name)
    except DataError as error:
        return str(error)
    raise AssertionError(f"{name} is a relation")
