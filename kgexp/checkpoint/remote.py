"""Checkpoints behind a URL, where nothing can be renamed: one is there once its index is, which is written last.

step_0000001000/index.json             what it consists of, with the trainer's state and the configuration
step_0000001000/8f03a1c2-relation-….   files of this writer: another one cannot touch what the index names
rows/entity-00017.000042-….            rows of slices, which several checkpoints may name
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgexp.checkpoint.checkpoint import Checkpoint
from kgexp.checkpoint.store import CheckpointStore
from kgexp.checkpoint.together import by_first, together
from kgexp.checkpoint.writing import all_rows, index_of, own_rows, shard_files
from kgexp.errors import CheckpointError
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.table import Table
from kgexp.storage.blobs import Blobs
from kgexp.storage.shards import shard_parts
from kgexp.world import ALONE, World

_INDEX = "index.json"
_NAME = re.compile(rf"step_(\d{{10}})/{_INDEX}")

#: Bytes of a file read at a time.
_BLOCK = 8 << 20


class RemoteCheckpointStore(CheckpointStore):
    """The checkpoints of a run whose entity rows have files of their own.

    Args:
        blobs: where they are; nobody else's.
        keep, world: see `CheckpointStore`.
    """

    def __init__(self, blobs: Blobs, keep: int, world: World = ALONE) -> None:
        super().__init__(Path(), keep, world)
        self._blobs = blobs
        self._nonce = uuid.uuid4().hex[:8]

    def __str__(self) -> str:
        return self._blobs.describe("")

    def alone(self) -> "RemoteCheckpointStore":
        """See `CheckpointStore.alone`."""
        return RemoteCheckpointStore(self._blobs, self._keep)

    def save(
        self,
        step: int,
        tables: Mapping[str, Table],
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        vocabularies: Mapping[str, Path],
    ) -> Path:
        """See `CheckpointStore.save`. Of two writers of a step one wins; the other gets a CheckpointError."""
        name, world = f"step_{step:010d}", self._world
        if not by_first(world, "checkpoint folder", lambda: step in self.steps()):
            with together(world, "checkpoint rows"):
                partitioned = [table for table in tables.values() if isinstance(table, PartitionedTable)]
                own = {table.name: table.commit(self._blobs) for table in partitioned}
            rows = all_rows(world, own)

            def commit() -> None:
                sizes = {}
                for table in tables.values():
                    if table.name not in rows:
                        file = self._own(shard_files(table)[0])
                        sizes[file] = self._blobs.write(f"{name}/{file}", shard_parts(own_rows(table, 0), 0))
                for file, source in vocabularies.items():
                    sizes[self._own(file)] = self._blobs.write(f"{name}/{self._own(file)}", _blocks(source))
                self._blobs.sync(f"{name}/{file}" for file in sizes)
                index = index_of(step, tables, rows, sizes, self._own) | {"state": state, "config": config}
                self._commit(f"{name}/{_INDEX}", json.dumps(index, indent=1).encode())

            by_first(world, "checkpoint commit", commit)
            for table in partitioned:
                table.committed(rows[table.name])
        by_first(world, "checkpoint pruning", self._prune)
        return Path(name)

    def _own(self, file: str) -> str:
        """The name of a file that another writer of the same step does not write."""
        return f"{self._nonce}-{file}"

    def _commit(self, name: str, index: bytes) -> None:
        if self._blobs.create(name, index):
            return
        there = bytearray(self._blobs.size(name) or 0)
        self._blobs.read(name, 0, memoryview(there))
        if there != index:  # else it is ours: the answer to the first request got lost
            raise CheckpointError(
                f"{self._blobs.describe(name)} was written by another run just now: give every run a storage.url of "
                "its own, and start one at a time"
            )

    def steps(self) -> list[int]:
        """See `CheckpointStore.steps`."""
        return sorted(int(match[1]) for name in self._blobs.names("step_") if (match := _NAME.fullmatch(name)))

    def open(self, step: int) -> Checkpoint:
        """See `CheckpointStore.open`."""
        return Checkpoint(Path(f"step_{step:010d}"), self._blobs)

    def _discard(self, checkpoint: Checkpoint) -> None:
        """See `CheckpointStore._discard`: the index goes first."""
        self._blobs.delete(f"{checkpoint.path.name}/{_INDEX}")

    def _remove_parts(self) -> None:
        """See `CheckpointStore._remove_parts`."""
        there = {f"step_{step:010d}" for step in self.steps()}
        for name in self._blobs.names("step_"):
            if name.partition("/")[0] not in there:
                self._blobs.delete(name)


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            yield block
