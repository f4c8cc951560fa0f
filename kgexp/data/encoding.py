"""From columns of names to integer triples: one numbering for all files, in the order of first appearance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgexp.data.reading import Columns
from kgexp.errors import DataError

Triples = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Encoded:
    """Files as integers.

    Attributes:
        triples: int32[N, 3] for each file: numbers of first appearance, heads of a file before its tails.
        entities: large_string[n], the entities in that order.
        relations: large_string[m], likewise.
    """

    triples: list[Triples]
    entities: pa.LargeStringArray
    relations: pa.LargeStringArray


def encode(files: Sequence[Columns]) -> Encoded:
    """Numbers the names of all files together.

    Raises:
        DataError: there are more names than int32 ids.
    """
    entities, places = _numbered([file.names[role] for file in files for role in ("head", "tail")], "entities")
    relations, kinds = _numbered([file.names["relation"] for file in files], "relations")
    heads, tails = places[0::2], places[1::2]
    triples = [np.stack(columns, axis=1) for columns in zip(heads, kinds, tails, strict=True)]
    return Encoded(triples, entities, relations)


def _numbered(
    columns: Sequence[list[pa.DictionaryArray]], what: str
) -> tuple[pa.LargeStringArray, list[npt.NDArray[np.int32]]]:
    """The distinct names of dictionary-encoded columns, and each column as numbers into them: int32[N]."""
    try:
        unified = pa.chunked_array([chunk for column in columns for chunk in column]).unify_dictionaries()
    except pa.ArrowInvalid as error:
        raise DataError(f"The files hold more {what} than the 2^31 - 1 that int32 ids can tell apart.") from error
    chunks = iter(unified.chunks)
    numbers = [np.concatenate([next(chunks).indices.to_numpy() for _ in column]) for column in columns]
    return unified.chunk(0).dictionary, numbers
