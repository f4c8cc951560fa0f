"""Names by id: a memory-mapped Arrow file with one column `name`, row i being the name of id i."""

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kgexp import randomness
from kgexp.data.grouping import order_of
from kgexp.errors import DataError
from kgexp.randomness import Purpose

#: Names that are hashed at a time, some 170 bytes each.
_HASHED = 1 << 20

_POOL = 5_000
"""At most so many names are compared with an unknown one."""


class EntityType(NamedTuple):
    """A type whose entities have the ids `start` … `stop - 1`."""

    name: str
    start: int
    stop: int


class Vocabulary:
    """The names of the entities, or of the relations, of a graph.

    Args:
        names: large_string[n], all different, in the order of the ids.
        kind: what the names name, `entity` or `relation`.
        types: the types as contiguous ranges of ids; one type called `kind` by default.
        path: the file that holds them, if there is one.
    """

    def __init__(
        self,
        names: pa.LargeStringArray,
        kind: str = "entity",
        types: Sequence[EntityType] = (),
        path: Path | None = None,
    ) -> None:
        self.kind = kind
        self.types = tuple(types) or (EntityType(kind, 0, len(names)),)
        self.path = path
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def name(self, id: int) -> str:
        """The name of an id in 0 … n-1.

        Raises:
            IndexError: the id lies outside.
        """
        return self.names([id])[0]

    def names(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> list[str]:
        """The names of many ids, each in 0 … n-1.

        Raises:
            IndexError: an id lies outside.
        """
        names: list[str] = self._names.take(pa.array(ids, pa.int64())).to_pylist()
        return names

    def id(self, name: str) -> int:
        """The id of a name, by one pass over all names.

        Raises:
            DataError: no such name; the message offers similar ones.
        """
        found = pc.index(self._names, pa.scalar(name, pa.large_string())).as_py()
        if found < 0:
            similar = ", ".join(f"'{other}'" for other in self._similar(name))
            advice = f"perhaps you mean {similar}" if similar else "names are compared exactly, capitals included"
            raise DataError(f"There is no {self.kind} '{name}' among the {len(self)} of this graph: {advice}.")
        return int(found)

    def ids_in(self, other: "Vocabulary", start: int = 0, stop: int | None = None) -> npt.NDArray[np.int32]:
        """The ids that another vocabulary gives the names of `start … stop - 1`: int32[stop - start], -1 for none."""
        own = self._names[start:stop]
        ids = np.full(len(own), -1, np.int32)
        for first in range(0, len(other), _HASHED):
            found = pc.index_in(own, value_set=other._names[first : first + _HASHED])
            there = found.is_valid().to_numpy(zero_copy_only=False)
            ids[there] = found.drop_null().to_numpy() + np.int32(first)
        return ids

    def save(self, path: Path) -> None:
        """Writes the vocabulary as an uncompressed Arrow file, which `load` maps."""
        types = json.dumps([list(kind) for kind in self.types])
        schema = pa.schema([pa.field("name", pa.large_string(), nullable=False)], {"kind": self.kind, "types": types})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch([self._names], schema=schema))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Maps a file that `save` wrote: the names are read from disk when they are used.

        Raises:
            DataError: the file is missing or something else.
        """
        try:
            batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
            metadata: dict[bytes, bytes] = batch.schema.metadata
            types = [EntityType(*fields) for fields in json.loads(metadata[b"types"])]
            return cls(batch.column("name"), metadata[b"kind"].decode(), types, path)
        except (OSError, pa.ArrowInvalid, KeyError, TypeError) as error:
            raise DataError(f"{path} is no vocabulary that kgexp can map ({error}): make it anew.") from error

    def _similar(self, name: str) -> list[str]:
        """Up to three names like `name`; of a large vocabulary only names that begin alike are tried."""
        pool: Any = self._names
        for letters in range(1, len(name) + 1):
            if len(pool) <= _POOL:
                break
            pool = pool.filter(pc.starts_with(pool, pattern=name[:letters], ignore_case=True))
        return difflib.get_close_matches(name, pool.slice(0, _POOL).to_pylist(), cutoff=0.7)


def shuffled(
    n: int, types: npt.NDArray[np.integer] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The fixed order in which n names, numbered by first appearance, get their ids.

    Contiguous ranges of ids are then fair samples of the names: of each type where names have `types` int[n], which
    follow one another. No other option and no seed moves an id.

    Returns:
        int64[n] the number of first appearance of each id, and its inverse int32[n], the id of each number.
    """
    order = order_of(randomness.bits(randomness.key(Purpose.VOCABULARY), np.arange(n)))
    if types is not None:
        order = order[np.argsort(types[order], kind="stable")]
    ids = np.empty(n, np.int32)
    ids[order] = np.arange(n, dtype=np.int32)
    return order, ids
