"""The suite `swap`: partitions that come into memory and go back, and how long training waits for them.

    TMPDIR=/fast/disk python -m kgexp.tools.bench swap sharding.partitions=16 sharding.buffer=4 model.dim=200

The files lie in a temporary folder, on the disk that `TMPDIR` names. Slices of the entity table are written to their
storage and fetched again, once from the disk (what the system keeps of the files in memory is given up first) and once
from the system's memory. Beside it a plain file of as many bytes in the same folder. Then some passes are trained:
`waited` is the share of their time in which training stood still for rows.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from kgexp.build import build
from kgexp.errors import ConfigError
from kgexp.sharding.backing import Backing
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.tools.benchmarks.trainers import summary, timed_passes
from kgexp.tools.composing import composed_sharded
from kgexp.tools.measuring import parts_of, report
from kgexp.world import ALONE, World

#: Bytes of slices that are moved, at most, but one slice at least.
MOVED = 256 << 20

_BLOCK = 8 << 20


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of one trainer whose partitions are in files, unless an argument says otherwise.

    Raises:
        ConfigError: another sharding, several trainers, or a storage that has no files here.
    """
    filed = [] if any(override.startswith("storage=") for override in overrides) else ["storage=local"]
    config = composed_sharded("partitioned", [*filed, *overrides])
    if not config["sharding"]["_target_"].endswith(f".{PartitionedSharding.__name__}"):
        raise ConfigError("these are the partitions of sharding=partitioned: leave the other choice out.")
    if config["sharding"]["ranks"] not in (1, "auto"):
        raise ConfigError("swap times one trainer, the suite trainers several: leave sharding.ranks out.")
    if not config["storage"]["_target_"].endswith(".LocalStorage"):
        raise ConfigError("swap compares files with plain ones: use storage=local.")
    config["sharding"] |= {"ranks": 1}
    return config


def moving(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The first half of the suite: bytes a second of slices, and of a plain file."""
    parts = parts_of(config, world)
    with closing(build(config["storage"], plugins=config["plugins"])) as storage:
        storage.open(Path(folder))
        table, _ = parts.tables(storage)
        assert isinstance(table, PartitionedTable)
        figures = _slices(table.backing, Path(folder)) | _plain(table.backing, Path(folder))
    report(folder, parts, figures)


def waiting(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The second half: the passes of the configuration."""
    parts = parts_of(config, world)
    rows, moved = timed_passes(parts, folder)
    report(folder, parts, summary(rows) | moved)


def _slices(backing: Backing, folder: Path) -> dict[str, Any]:
    """MB/s of slices out of memory and into it."""
    rows: dict[int, dict[str, Tensor]] = {}
    chosen = 0
    for k in range(len(backing.slices)):
        size = backing.slices.size(k) * backing.layout.row_bytes()
        if size and (not rows or chosen + size <= MOVED):
            rows[k], chosen = backing.layout.empty(backing.slices.size(k)), chosen + size
            backing.fetch(k, rows[k])  # drawn

    def fetch() -> int:
        before = backing.read_bytes
        for k, tensors in rows.items():
            backing.fetch(k, tensors)
        return backing.read_bytes - before

    def store() -> int:
        before = backing.written_bytes
        for k, tensors in rows.items():
            backing.store(k, tensors)
        return backing.written_bytes - before

    figures = {"store_mb_per_second": _rate(store)}
    _let_go(folder)
    figures |= {"fetch_mb_per_second": _rate(fetch), "fetch_cached_mb_per_second": _rate(fetch)}
    return figures | {"slices": len(rows), "slice_bytes": chosen // max(1, len(rows))}


def _plain(backing: Backing, folder: Path) -> dict[str, Any]:
    """MB/s of a plain file, of no more bytes than `_slices` moves."""
    whole = backing.slices.num_rows * backing.layout.row_bytes()
    path, blocks = folder / "plain", max(1, min(MOVED, whole) // _BLOCK)
    block = memoryview(bytearray(os.urandom(min(_BLOCK, whole))))

    def write(synced: bool) -> int:
        with open(path, "wb", buffering=0) as file:
            for _ in range(blocks):
                file.write(block)
            if synced:
                os.fsync(file.fileno())
        return blocks * len(block)

    def read() -> int:
        with open(path, "rb", buffering=0) as file:
            return sum(file.readinto(block) for _ in range(blocks))

    figures = {
        "write_mb_per_second": _rate(partial(write, False)),
        "write_sync_mb_per_second": _rate(partial(write, True)),
    }
    _let_go(folder)
    figures |= {"read_mb_per_second": _rate(read), "read_cached_mb_per_second": _rate(read)}
    path.unlink()
    return {"plain": figures}


def _rate(work: Callable[[], int]) -> float:
    """MB/s, by the bytes that are returned."""
    begin = time.perf_counter()
    moved = work()
    return moved / (time.perf_counter() - begin) / 1e6


def _let_go(folder: Path) -> None:
    """Has the system forget what it keeps of the files below a folder, where it can be asked to."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
