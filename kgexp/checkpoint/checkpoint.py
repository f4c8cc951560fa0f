"""One checkpoint, to read from, whoever wrote it: see `kgexp.checkpoint.store` for what it consists of."""

import json
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kgexp.checkpoint.writing import FORMAT
from kgexp.errors import CheckpointError
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.rowfiles import ROWS, RowFile
from kgexp.sharding.table import Table
from kgexp.storage.blobs import Blobs, LocalBlobs
from kgexp.storage.shards import RowReader


class Checkpoint:
    """A complete checkpoint, to read from.

    Attributes:
        path: its folder, where it is one of the file system.
        state: the trainer's state, as `CheckpointStore.save` got it.
        config: the resolved configuration of the run that wrote it.
    """

    def __init__(self, path: Path, blobs: Blobs | None = None) -> None:
        """Opens the folder `path`, of the file system or of `blobs`.

        Raises:
            CheckpointError: it is no checkpoint, not a complete one, or of a newer format.
        """
        self.path = path
        self._blobs = blobs or LocalBlobs(path.parent)
        self._index = self._json("index.json")
        if self._index.get("format") != FORMAT:
            raise CheckpointError(
                f"{self} has the checkpoint format {self._index.get('format')}, this version reads {FORMAT}; "
                "install the version of kgexp that wrote it"
            )
        sizes = self._blobs.sizes(f"{path.name}/")
        if "rows" in self._index:
            sizes |= self._blobs.sizes(f"{ROWS}/")
        for name, size in self._index["files"].items():
            if sizes.get(self._name(name)) != size:
                raise CheckpointError(
                    f"{self._blobs.describe(self._name(name))} is missing or not {size} bytes long: the checkpoint is "
                    "damaged; take another one"
                )
        self.state: dict[str, Any] = self._index.get("state") or self._json("state.json")
        self.config: dict[str, Any] = self._index.get("config") or self._json("config.json")

    def __str__(self) -> str:
        return self._blobs.describe(self.path.name)

    @property
    def files(self) -> list[str]:
        """Names of all its files but the index, in the folder that holds the checkpoints."""
        return [self._name(name) for name in self._index["files"]]

    @property
    def step(self) -> int:
        """Steps trained before it was written."""
        return int(self._index["step"])

    @property
    def model_weight(self) -> str:
        """The key of the tensors that are the model: `average` where weights were averaged, else `weight`."""
        return str(self.state["model_weight"])

    def tensor(self, table: str, key: str) -> RowReader:
        """A tensor of a table, such as `("entity", "weight")`.

        Raises:
            CheckpointError: there is no such tensor.
        """
        try:
            files = self._index["tables"][table][key]
        except KeyError:
            raise CheckpointError(f"{self} holds no tensor {table}.{key}") from None
        return RowReader(f"{table}.{key}", [self._name(name) for name in files], self._blobs)

    def load(self, table: Table) -> None:
        """Fills the rows that this process has of a table, optimizer state and all, with what was saved.

        Raises:
            CheckpointError: the shapes of the whole table differ.
        """
        readers = {key: self.tensor(table.name, key) for key in table.state_tensors()}
        for key, target in table.state_tensors().items():
            saved = readers[key]
            shape = (table.num_rows, *target.shape[1:])
            if saved.shape != shape or saved.dtype != target.dtype:
                raise CheckpointError(
                    f"{self}: {table.name}.{key} is {saved.dtype} {list(saved.shape)}, the run needs "
                    f"{target.dtype} {list(shape)}; the configuration or the data set is another one"
                )
        if isinstance(table, PartitionedTable):
            self._hand_over(table, readers)
            return
        for key, target in table.state_tensors().items():
            readers[key].copy_into(target, table.first_row)

    def told(self) -> dict[str, Any]:
        """What `ToldCheckpoint` knows of it, as JSON values."""
        return {"name": str(self), "state": self.state, "config": self.config}

    def _hand_over(self, table: PartitionedTable, readers: Mapping[str, RowReader]) -> None:
        """Lets a table that is not whole in memory read the rows when it needs them."""
        rows = self._index.get("rows", {}).get(table.name)
        if rows is not None and rows["bounds"] == list(table.slices.bounds) and rows["layout"] == table.layout:
            table.adopt({int(k): RowFile(**file) for k, file in rows["files"].items()}, self._blobs)
            return

        def fill(ids: range, into: Mapping[str, Tensor]) -> None:
            for key, target in into.items():
                readers[key].copy_into(target, ids.start)

        table.restart(fill)

    def _name(self, file: str) -> str:
        """A file of the index, by its name in the folder that holds the checkpoints."""
        return posixpath.normpath(f"{self.path.name}/{file}")

    def _json(self, file: str) -> dict[str, Any]:
        return read_json(self._blobs, f"{self.path.name}/{file}")


class ToldCheckpoint(Checkpoint):
    """A checkpoint that rank 0 alone can read, as another rank knows it; rows come from rank 0.

    Args:
        step: of it.
        told: what `Checkpoint.told` gave there.
    """

    def __init__(self, step: int, told: Mapping[str, Any]) -> None:
        self._index = {"step": step, "files": {}}
        self._name_there, self.state, self.config = told["name"], told["state"], told["config"]

    def __str__(self) -> str:
        return str(self._name_there)

    def load(self, table: Table) -> None:
        """Nothing: whoever has the table asks rank 0."""


def read_json(blobs: Blobs, name: str) -> dict[str, Any]:
    """A file of a checkpoint. Raises CheckpointError."""
    text = bytearray(blobs.size(name) or 0)
    try:
        blobs.read(name, 0, memoryview(text))
        value: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{blobs.describe(name)} cannot be read ({error}); it is part of a checkpoint") from error
    return value
