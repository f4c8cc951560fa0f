"""The files of one checkpoint: every rank writes the rows that it owns, rank 0 the rest."""

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from kgexp.durable import sync
from kgexp.errors import CheckpointError
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.rowfiles import RowFile
from kgexp.sharding.table import Table
from kgexp.storage.blobs import told
from kgexp.storage.shards import write_shard
from kgexp.world import World

#: The version of the layout, which readers compare.
FORMAT = 2

_SHARED = "all ranks need one shared folder, so put the run (hydra.run.dir) where every machine sees it"


def shard_files(table: Table) -> dict[int, str]:
    """The file of every rank that has rows of the table, numbered without holes; rank 0's where there are no rows."""
    owners = [rank for rank, (start, stop) in enumerate(itertools.pairwise(table.bounds)) if start < stop] or [0]
    return {
        rank: f"{table.name}-{number:05d}-of-{len(owners):05d}.safetensors"
        for number, rank in enumerate(owners, start=1)
    }


def write_rows(folder: Path, tables: Sequence[Table], rank: int) -> dict[str, int]:
    """Writes and syncs the rows that `rank`, this process, owns; returns the bytes of each file it wrote.

    Raises:
        CheckpointError: the folder, which rank 0 has made, is not there, or worse.
        ConfigError: the disk is full.
    """
    sizes = {}
    for table in tables:
        file = shard_files(table).get(rank)
        if file is None:
            continue
        if not folder.is_dir():
            raise CheckpointError(f"{folder / file} cannot be written by rank {rank}, without its folder: {_SHARED}")
        rows = own_rows(table, rank)
        with told(folder / file, "written", sum(part.nbytes for part in rows.values())):
            write_shard(folder / file, rows, table.bounds[rank])
        sizes[file] = (folder / file).stat().st_size
    return sizes


def own_rows(table: Table, rank: int) -> dict[str, Tensor]:
    """The tensors of the rows that `rank`, this process, owns, by the names that files give them."""
    start, stop = table.bounds[rank : rank + 2]
    own = slice(start - table.first_row, stop - table.first_row)
    return {f"{table.name}.{key}": tensor[own] for key, tensor in table.state_tensors().items()}


def all_rows(world: World, rows: Mapping[str, Mapping[int, RowFile]]) -> dict[str, dict[int, RowFile]]:
    """By table and slice, the files of rows that any rank has written; `rows` are those of this one."""
    own = {name: {k: asdict(file) for k, file in files.items()} for name, files in rows.items()}
    joined: dict[str, dict[int, RowFile]] = {name: {} for name in rows}
    for parts in world.gather("checkpoint row files", own):
        for name, files in parts.items():
            joined[name] |= {int(k): RowFile(**file) for k, file in files.items()}
    return {name: dict(sorted(files.items())) for name, files in joined.items()}


def write_rest(
    folder: Path,
    step: int,
    tables: Mapping[str, Table],
    rows: Mapping[str, Mapping[int, RowFile]],
    written: Sequence[Mapping[str, int]],
    state: Mapping[str, Any],
    config: Mapping[str, Any],
    vocabularies: Mapping[str, Path],
) -> None:
    """Writes what is not rows, the index at last, and syncs the folder.

    Args:
        folder: where every rank has written its rows.
        rows: of tables whose rows have files of their own, beside the checkpoints, these files by slice.
        written: what `write_rows` returned, by rank.
        step, tables, state, config, vocabularies: see `CheckpointStore.save`.

    Raises:
        CheckpointError: a file of rows is not here as its rank wrote it.
    """
    sizes: dict[str, int] = {}
    for rank, files in enumerate(written):
        for name, size in files.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise CheckpointError(
                    f"{file}, written by rank {rank}, is missing for rank 0 or not {size} bytes long: {_SHARED}"
                )
            sizes[name] = size
    for name, source in vocabularies.items():
        with told(folder / name, "written", source.stat().st_size):
            _link(source, folder / name)
    with told(folder / "state.json", "written"):
        _write_json(folder / "state.json", state)
        _write_json(folder / "config.json", config)
    sizes |= {name: (folder / name).stat().st_size for name in (*vocabularies, "state.json", "config.json")}
    _write_json(folder / "index.json", index_of(step, tables, rows, sizes))
    sync(folder)


def index_of(
    step: int,
    tables: Mapping[str, Table],
    rows: Mapping[str, Mapping[int, RowFile]],
    sizes: Mapping[str, int],
    named: Callable[[str], str] = str,
) -> dict[str, Any]:
    """The index of a checkpoint whose own files have these sizes, and are `named` so; see `write_rest`."""
    of_tables: dict[str, Any] = {}
    shared: dict[str, int] = {}
    details: dict[str, Any] = {}
    for name, table in tables.items():
        files = [named(file) for file in shard_files(table).values()]
        if isinstance(table, PartitionedTable):
            if lost := [k for k in range(len(table.slices)) if table.slices.size(k) and k not in rows[name]]:
                raise CheckpointError(f"nobody has the rows of the slices {lost} of {name}: no checkpoint was written")
            files = [f"../{file.name}" for file in rows[name].values()]
            shared |= {f"../{file.name}": file.size for file in rows[name].values()}
            details[name] = {
                "bounds": table.slices.bounds,
                "layout": table.layout,
                "files": {k: asdict(file) for k, file in rows[name].items()},
            }
        of_tables[name] = dict.fromkeys(table.state_tensors(), files)
    index = {"format": FORMAT, "step": step, "tables": of_tables, "files": dict(sorted({**sizes, **shared}.items()))}
    return index | ({"rows": details} if details else {})


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with open(path, "x", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
