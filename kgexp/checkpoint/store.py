"""The checkpoints of a run: one folder each, there or not there, never half there.

    checkpoints/step_0000001000/
        index.json                          the files with their sizes; a folder without it is no checkpoint
        state.json                          step, counters, best value: what the trainer needs to go on
        config.json                         the resolved configuration
        entity-00001-of-00002.safetensors   entity.weight and its state: entity.sum of the optimizer, entity.average
        entity-00002-of-00002.safetensors   the rows of the next rank that has some
        relation-00001-of-00001.safetensors
        entities.arrow, relations.arrow     names by id

A folder is filled under a name that ends in `.tmp`, synced, and renamed. A committed file is never written again.
Every rank writes the rows that it owns into the one folder; any number of ranks reads them.

The rows of a partitioned table are in files of their own, `checkpoints/rows/entity-00017.000042-….safetensors`, which
several checkpoints may name: what has not changed in between is not written again. Their checksums are in the index.
"""

import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from kgexp.checkpoint.together import by_first, together
from kgexp.checkpoint.writing import FORMAT, write_rest, write_rows
from kgexp.durable import sync
from kgexp.errors import CheckpointError
from kgexp.sharding.backing import ROWS, RowFile
from kgexp.sharding.partitioned import PartitionedTable
from kgexp.sharding.table import Table
from kgexp.storage.blobs import TEMPORARY, Blobs, LocalBlobs
from kgexp.storage.shards import RowReader
from kgexp.world import Alone, World

_ALONE = Alone()
_NAME = re.compile(r"step_(\d{10})")


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


class CheckpointStore:
    """The folder of a run's checkpoints, which all ranks share; rank 0 decides, the others are told.

    Args:
        folder: made at the first save.
        keep: newest checkpoints that stay; those that one of them calls its best, and snapshots, stay too.
        world: the ranks that write and read together: `save` and `newest` are for all of them to call.
    """

    def __init__(self, folder: Path, keep: int, world: World = _ALONE) -> None:
        self.folder = folder
        self._keep = keep
        self._world = world
        self._blobs: Blobs = LocalBlobs(folder)

    def save(
        self,
        step: int,
        tables: Mapping[str, Table],
        state: Mapping[str, Any],
        config: Mapping[str, Any],
        vocabularies: Mapping[str, Path],
    ) -> Path:
        """Writes a checkpoint and removes the ones that are not kept.

        A step that is there already stays as it is: its tables are the same, and what its state lacks, such as an
        evaluation that a stop signal put off, a resumed run does again with the same result.

        Args:
            step: steps trained so far.
            tables: by name; each rank writes the rows that it owns by `Table.bounds`.
            state: JSON values; `state["best"]["step"]`, where there is one, names the checkpoint to keep, and a true
                `state["snapshot"]` keeps this one for good. Like the configuration and the vocabularies, rank 0's are
                written.
            config: the resolved configuration.
            vocabularies: file name in the checkpoint to a file that never changes, linked or copied.

        Raises:
            CheckpointError: the ranks do not write into one folder; on all ranks.
            OSError: the disk is full, or worse; on the rank that met it.
            RankError: another rank met an error, or did not come.
        """
        world = self._world
        final = self.folder / f"step_{step:010d}"
        part = final.with_name(f"{final.name}.tmp")
        if by_first(world, "checkpoint folder", lambda: self._prepare(final, part)):
            with together(world, "checkpoint rows"):
                rows = {name: t.commit(self._blobs) for name, t in tables.items() if isinstance(t, PartitionedTable)}
                own = write_rows(part, [table for table in tables.values() if table.name not in rows], world.rank)
            written = world.gather("checkpoint files", own)

            def commit() -> None:
                write_rest(part, step, tables, rows, written, state, config, vocabularies)
                os.rename(part, final)
                sync(self.folder)

            by_first(world, "checkpoint commit", commit)
        by_first(world, "checkpoint pruning", self._prune)
        return final

    def __str__(self) -> str:
        return str(self.folder)

    def _prepare(self, final: Path, part: Path) -> bool:
        """Makes the empty folder `part`, unless a good checkpoint lies at `final`; True when it did."""
        if self._is_whole(final):
            return False
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        return True

    def _is_whole(self, path: Path) -> bool:
        """Whether a good checkpoint lies at `path`; a damaged one is moved out of the way."""
        if not path.is_dir():
            return False
        try:
            Checkpoint(path)
        except CheckpointError:
            _discard(path)
            return False
        return True

    def steps(self) -> list[int]:
        """The steps of all committed checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m[1]) for path in self.folder.iterdir() if (m := _NAME.fullmatch(path.name)))

    def open(self, step: int) -> Checkpoint:
        """The checkpoint of a step.

        Raises:
            CheckpointError: it is not there or damaged.
        """
        return Checkpoint(self.folder / f"step_{step:010d}")

    def newest(self, say: Callable[[str], None] = lambda line: None) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None when there is not one checkpoint; `say` is told of damaged ones.

        Raises:
            CheckpointError: there are checkpoints and all are damaged, or a rank does not see the one that rank 0
                found; on all ranks.
        """
        step = by_first(self._world, "newest checkpoint", lambda: self._newest_whole(say))
        if step is None:
            return None
        with together(self._world, "opening a checkpoint"):
            return self.open(step)

    def _newest_whole(self, say: Callable[[str], None]) -> int | None:
        """The step of `newest`."""
        problem: CheckpointError | None = None
        for step in reversed(self.steps()):
            try:
                return self.open(step).step
            except CheckpointError as error:
                say(f"passed over a damaged checkpoint: {error}")
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def sweep(self) -> None:
        """Removes what a killed process left behind: for the start of the one process or job that uses the folder."""
        by_first(self._world, "checkpoint leftovers", self._sweep)

    def _sweep(self) -> None:
        whole = self._whole()
        self._remove_parts()
        self._prune_rows(whole.values())

    def _prune(self) -> None:
        """Removes what is neither new nor the best of something new, and what a killed process left behind.

        A damaged checkpoint counts for nothing and is left for people to look at.
        """
        whole = self._whole()
        for step in whole.keys() - self._kept(whole):
            self._discard(whole.pop(step))
        self._remove_parts()
        self._prune_rows(whole.values())

    def _whole(self) -> dict[int, Checkpoint]:
        """The checkpoints that are not damaged, by step."""
        whole: dict[int, Checkpoint] = {}
        for step in self.steps():
            with suppress(CheckpointError):
                whole[step] = self.open(step)
        return whole

    def _kept(self, whole: Mapping[int, Checkpoint]) -> set[int]:
        """The steps that stay."""
        newest = sorted(whole)[-self._keep :]
        best = {(whole[step].state.get("best") or {}).get("step") for step in newest}
        return set(newest) | {step for step in whole if step in best or whole[step].state.get("snapshot")}

    def _discard(self, checkpoint: Checkpoint) -> None:
        """Removes a checkpoint, or takes it from sight for `_remove_parts`."""
        _discard(checkpoint.path)

    def _remove_parts(self) -> None:
        """Removes what never became a checkpoint or a file of rows; nobody is writing one."""
        for path in self.folder.glob(f"*{TEMPORARY}"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob(f"{ROWS}/*{TEMPORARY}"):
            path.unlink(missing_ok=True)

    def _prune_rows(self, whole: Iterable[Checkpoint]) -> None:
        """Removes files of rows that no checkpoint names, unless a damaged one might."""
        if set(self.steps()) != {checkpoint.step for checkpoint in whole}:
            return
        for path in self.folder.glob(f"{ROWS}/*.tmp"):
            path.unlink(missing_ok=True)
        named = {name for checkpoint in whole for name in checkpoint.files}
        for name in self._blobs.names(f"{ROWS}/"):
            if name not in named:
                self._blobs.delete(name)


def _discard(path: Path) -> None:
    """Removes a checkpoint, first from sight, so that no reader meets a part of it."""
    gone = path.with_name(f"{path.name}.gone.tmp")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def read_json(blobs: Blobs, name: str) -> dict[str, Any]:
    """A file of a checkpoint. Raises CheckpointError."""
    text = bytearray(blobs.size(name) or 0)
    try:
        blobs.read(name, 0, memoryview(text))
        value: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{blobs.describe(name)} cannot be read ({error}); it is part of a checkpoint") from error
    return value
