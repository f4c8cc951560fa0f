"""Arrays in .npy files by ranges of rows: nothing is mapped, and no more is in memory than the rows at hand."""

import math
import mmap
import os
from collections.abc import Iterator, Sequence
from io import BufferedRandom, BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

PIECE = 1 << 20
"""Rows at a time."""

_UNSYNCED = 1 << 28
"""Bytes that may wait in memory for the disk."""

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


class RowFile:
    """An array [N, …] in a file that `numpy.load` reads, written and read by ranges of rows.

    Args:
        path: a file that is made anew if `dtype` is given, and else is there already and only read.
        dtype: the type of a number.
        shape: the shape of a row.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] = ()) -> None:
        self._made = dtype is not None
        self._file: BufferedRandom | BufferedReader = path.open("w+b") if self._made else path.open("rb")
        self._unsynced = 0
        self.dtype, self.shape, self._rows = np.dtype(dtype), shape, 0
        if self._made:
            self._write_header()
        else:
            self._read_header()
        self._begin = self._file.tell()
        self._bytes = self.dtype.itemsize * math.prod(self.shape)

    def __len__(self) -> int:
        return self._rows

    def read(self, start: int, stop: int) -> Array:
        """The rows `start` … `stop - 1`.

        Raises:
            EOFError: the file ends before them.
        """
        rows = np.empty((stop - start, *self.shape), self.dtype)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows: Array, start: int) -> None:
        """Fills a contiguous array of rows from row `start` on.

        Raises:
            EOFError: the file ends before them.
        """
        self._file.seek(self._begin + start * self._bytes)
        if rows.size and self._file.readinto(rows.data.cast("B")) < rows.nbytes:
            raise EOFError(f"{self._file.name} ends before row {start + len(rows)}.")

    def write(self, rows: Array, start: int) -> None:
        """Writes rows from row `start` on; the file grows as needed."""
        rows = np.ascontiguousarray(rows, self.dtype)
        self._rows = max(self._rows, start + len(rows))
        self._file.seek(self._begin + start * self._bytes)
        if rows.size:
            self._file.write(rows.data.cast("B"))
        self._unsynced += rows.nbytes
        if self._unsynced >= _UNSYNCED:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._unsynced = 0

    def append(self, rows: Array) -> None:
        """Writes rows behind the last one."""
        self.write(rows, self._rows)

    def close(self) -> None:
        """Writes what is left, and the number of rows into the header of a file that was made."""
        if self._made:
            self._write_header()
        self._file.close()

    def _read_header(self) -> None:
        np.lib.format.read_magic(self._file)
        whole, _, self.dtype = np.lib.format.read_array_header_1_0(self._file)
        self._rows, self.shape = whole[0], tuple(whole[1:])

    def _write_header(self) -> None:
        # The header has room for any number of rows, so its length does not change.
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header | {"shape": (self._rows, *self.shape)})

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def pieces(array: Array, rows: int = PIECE) -> Iterator[Array]:
    """An array [N, …] in slices of so many rows; what a mapped one has read is let go of after each."""
    base: Any = array.base
    for start in range(0, len(array), rows):
        yield array[start : start + rows]
        if isinstance(base, mmap.mmap) and not array.flags.writeable:
            base.madvise(mmap.MADV_DONTNEED)


class Scatter:
    """Sorts rows into the parts of files: each part is filled in the order in which its rows come.

    Args:
        starts: int64[p], the row at which each part begins.
        files: what is written.
    """

    def __init__(self, starts: Int64, files: Sequence[RowFile]) -> None:
        self._cursors = starts.copy()
        self._files = files
        self._type = np.min_scalar_type(len(starts))  # numbers of 16 bits sort faster

    def add(self, parts: npt.NDArray[np.integer], arrays: Sequence[Array]) -> None:
        """Adds rows [b, …] for each file, whose parts are int[b]."""
        order = np.argsort(parts.astype(self._type), kind="stable")
        counts = np.bincount(parts, minlength=len(self._cursors))
        filled = np.flatnonzero(counts)
        ends = np.cumsum(counts[filled])
        for file, array in zip(self._files, arrays, strict=True):
            rows = array.take(order, axis=0)  # several times as fast as by an index
            for part, end in zip(filled.tolist(), ends.tolist(), strict=True):
                file.write(rows[end - int(counts[part]) : end], int(self._cursors[part]))
        self._cursors += counts


def consecutive(sizes: Int64, rows: int = PIECE) -> Int64:
    """Cuts groups of int64[g] rows into parts of fewer than `2 * rows` rows each, or of one larger group alone.

    Returns:
        int64[p + 1]: part i consists of the groups from its i-th number to the next, without that.
    """
    if not len(sizes):
        return np.zeros(1, np.int64)
    window = (np.cumsum(sizes) - sizes) // rows
    large = sizes >= rows
    cut = (window[1:] != window[:-1]) | large[1:] | large[:-1]
    return np.concatenate([[0], np.flatnonzero(cut) + 1, [len(sizes)]])
