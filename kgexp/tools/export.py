"""Writes the vectors of a run for other programs, with their names, whatever the size of the table.

    python -m kgexp.tools.export outputs/runs/DATE/TIME-complex-none entities.tsv
    python -m kgexp.tools.export RUN/checkpoints/step_0000001320 relations.npy --table relation

The format goes by the file's ending:

    .tsv           a line a row: its name, a tab, its numbers between tabs; no header, as PyTorch-BigGraph writes it
    .npy           the array float[n, d], for `numpy.load(…, mmap_mode="r")`, and the names beside it
    .safetensors   one tensor, `entity.weight` or `relation.weight`, and the names beside it

The names of `vectors.npy` are in `vectors.names.txt`, line i being the name of row i. The relation rows of a model with
reciprocal relations are followed by those of the inverse relations, whose names end in `_inverse`. The weights are
those that the run was evaluated with: averaged where it averaged them.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from kgexp.checkpoint.checkpoint import Checkpoint
from kgexp.checkpoint.choosing import choose
from kgexp.data.vocabulary import Vocabulary
from kgexp.errors import CheckpointError, ConfigError
from kgexp.storage.shards import RowReader, as_bytes, shard_header
from kgexp.tools.failing import failed
from kgexp.tracking.progress import Progress

_VOCABULARIES = {"entity": "entities.arrow", "relation": "relations.arrow"}

#: Numbers read and written at a time; as text they take some ten times their bytes.
_BLOCK = 1 << 18


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        checkpoint = choose(options.source, options.step, options.newest, partial(print, file=sys.stderr))
        rows = Rows(checkpoint, options.table)
        export(rows, options.out, options.format, options.force)
    except Exception as error:
        return failed(error, OSError)
    print(f"{options.out}: {len(rows):,} {options.table} rows of step {checkpoint.step}, {rows.reader.name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m kgexp.tools.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="RUN_OR_CHECKPOINT", help="a run's folder, or a checkpoint's")
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument("--table", choices=tuple(_VOCABULARIES), default="entity")
    parser.add_argument("--format", choices=tuple(FORMATS), help="by the ending of OUT, if not given")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="the run's checkpoint of this step, not its best one")
    which.add_argument("--newest", action="store_true", help="the run's newest checkpoint, not its best one")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    return parser


class Rows:
    """The rows of a table and their names, read by blocks.

    Args:
        checkpoint: where they are.
        table: `entity` or `relation`.

    Raises:
        CheckpointError, DataError: rows or names are damaged, or do not belong together.
    """

    def __init__(self, checkpoint: Checkpoint, table: str) -> None:
        self.table = table
        self.reader: RowReader = checkpoint.tensor(table, checkpoint.model_weight)
        self._names = Vocabulary.load(checkpoint.path / _VOCABULARIES[table])
        n, named = len(self), len(self._names)
        if n != named and not (table == "relation" and n == 2 * named):
            raise CheckpointError(f"{checkpoint.path}: {n} {table} rows have {named} names; take another checkpoint")

    def __len__(self) -> int:
        return self.reader.shape[0]

    def names(self, start: int, stop: int) -> list[str]:
        """The names of the rows `start … stop - 1`."""
        named = len(self._names)
        names = self._names.names(np.arange(start, stop) % named)
        return [name if start + i < named else f"{name}_inverse" for i, name in enumerate(names)]

    def blocks(self) -> Iterator[tuple[Tensor, list[str]]]:
        """Some rows at a time, float[k, d], with their names."""
        size = max(1, _BLOCK // max(1, self.reader.shape[1]))
        with Progress("auto", len(self), "rows", "export") as progress:
            for start in range(0, len(self), size):
                stop = min(start + size, len(self))
                yield self.reader.read(start, stop), self.names(start, stop)
                progress.advance(stop - start)


def export(rows: Rows, out: Path, format: str | None = None, force: bool = False) -> None:
    """Writes the file `out`, and its names where the format has no place for them; they appear when they are whole.

    Args:
        rows: what to write.
        out: its folder is made.
        format: of `FORMATS`; None goes by the ending of `out`.
        force: whether files that exist are replaced.

    Raises:
        ConfigError: the ending is no format, or a file exists.
        OSError: the disk is full, or worse; no file is left.
    """
    format = format or out.suffix.removeprefix(".")
    if format not in FORMATS:
        raise ConfigError(f"{out} does not end in a format: end it in .tsv, .npy or .safetensors, or say --format.")
    head, body, has_names = FORMATS[format]
    paths = [out] if has_names else [out, out.with_suffix(".names.txt")]
    for path in paths:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder: name a file.")
        if path.exists() and not force:
            raise ConfigError(f"{path} exists: choose another name, or overwrite it with --force.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file, *beside = [stack.enter_context(_appearing(path)) for path in paths]
        file.write(head(rows))
        for block, names in rows.blocks():
            file.write(body(block, names))
            for names_file in beside:
                names_file.write("".join(f"{name}\n" for name in names).encode())


class Format(NamedTuple):
    """A way to write rows.

    Attributes:
        head: what the file begins with.
        body: what a block float[k, d] with its k names becomes.
        has_names: whether the names are in the file.
    """

    head: Callable[[Rows], bytes]
    body: Callable[[Tensor, list[str]], bytes | memoryview]
    has_names: bool


def _tsv_body(block: Tensor, names: list[str]) -> bytes:
    """Lines; every number has the fewest digits that read back as the same number."""
    numbers = pa.array(_for_numpy(block).numpy().reshape(-1)).cast(pa.string())
    ends = pa.array(np.arange(len(block) + 1) * block.shape[1], pa.int32())
    lines = pc.binary_join_element_wise(
        pa.array(names, pa.string()), pc.binary_join(pa.ListArray.from_arrays(ends, numbers), "\t"), "\t"
    )
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def _npy_head(rows: Rows) -> bytes:
    dtype = _for_numpy(torch.empty(0, dtype=rows.reader.dtype)).numpy().dtype
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": rows.reader.shape}
    )
    return file.getvalue()


def _safetensors_head(rows: Rows) -> bytes:
    return shard_header({f"{rows.table}.weight": (rows.reader.dtype, rows.reader.shape)}, 0)


def _for_numpy(block: Tensor) -> Tensor:
    """The same numbers in a dtype that numpy and texts know: bfloat16 becomes float32."""
    return block if block.dtype in (torch.float32, torch.float64) else block.float()


FORMATS = {
    "tsv": Format(lambda rows: b"", _tsv_body, has_names=True),
    "npy": Format(_npy_head, lambda block, names: as_bytes(_for_numpy(block)), has_names=False),
    "safetensors": Format(_safetensors_head, lambda block, names: as_bytes(block), has_names=False),
}


@contextmanager
def _appearing(path: Path) -> Iterator[BinaryIO]:
    """A file that has its name once it is whole and on the disk, and is gone after an error."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
