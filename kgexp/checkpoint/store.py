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

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kgexp.checkpoint.checkpoint import Checkpoint, ToldCheckpoint
from kgexp.checkpoint.together import by_first, together
from kgexp.checkpoint.writing import all_rows, write_rest, write_rows
from kgexp.durable import sync
from kgexp.errors import CheckpointError
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.rowfiles import ROWS
from kgexp.sharding.table import Table
from kgexp.storage.blobs import TEMPORARY, Blobs, LocalBlobs
from kgexp.world import Alone, World

_ALONE = Alone()
_NAME = re.compile(r"step_(\d{10})")


class CheckpointStore:
    """The folder of a run's checkpoints, which all ranks share; rank 0 decides, the others are told.

    Args:
        folder: made at the first save.
        keep: newest checkpoints that stay; those that one of them calls its best, and snapshots, stay too.
        world: the ranks that write and read together: `save`, `newest` and `of` are for all of them to call.
        common: whether all ranks see the folder; else rank 0 writes and reads it for them, which takes a table that can
            send its rows.
    """

    def __init__(self, folder: Path, keep: int, world: World = _ALONE, common: bool = True) -> None:
        self.folder = folder
        self._keep = keep
        self._world = world
        self._common = common
        self._blobs: Blobs = LocalBlobs(folder)

    def alone(self) -> "CheckpointStore":
        """The same checkpoints, written and read without the other ranks."""
        return CheckpointStore(self.folder, self._keep)

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
            ConfigError: the disk is full; on the rank that met it.
            RankError: another rank met an error, or did not come.
        """
        world = self._world
        final = self.folder / f"step_{step:010d}"
        part = final.with_name(f"{final.name}.tmp")
        partitioned = [table for table in tables.values() if isinstance(table, PartitionedTable)]
        if by_first(world, "checkpoint folder", lambda: self._prepare(final, part)):
            with together(world, "checkpoint rows"):
                mine = {table.name: table.commit(self._blobs) for table in partitioned}
                own = write_rows(part, [table for table in tables.values() if table.name not in mine], world.rank)
            written, rows = world.gather("checkpoint files", own), all_rows(world, mine)

            def commit() -> None:
                write_rest(part, step, tables, rows, written, state, config, vocabularies)
                os.rename(part, final)
                sync(self.folder)

            by_first(world, "checkpoint commit", commit)
            for table in partitioned:
                table.committed(rows[table.name])
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
        return None if step is None else self.of(step)

    def of(self, step: int) -> Checkpoint:
        """`open` on all ranks."""
        if self._common:
            with together(self._world, "opening a checkpoint"):
                return self.open(step)
        told = by_first(self._world, "opening a checkpoint", lambda: self.open(step).told())
        return self.open(step) if self._world.rank == 0 else ToldCheckpoint(step, told)

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
        """Removes what no checkpoint has and a killed process left behind, on each machine whose folder is its own: for
        the start and the end of the one process or job that uses the folder."""
        with together(self._world, "checkpoint leftovers"):
            if self._world.rank == 0 or (not self._common and self._world.local_rank == 0):
                self._sweep()

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
        named = {name for checkpoint in whole for name in checkpoint.files}
        for name in self._blobs.names(f"{ROWS}/"):
            if name not in named:
                self._blobs.delete(name)


def _discard(path: Path) -> None:
    """Removes a checkpoint, first from sight, so that no reader meets a part of it."""
    gone = path.with_name(f"{path.name}.gone.tmp")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
