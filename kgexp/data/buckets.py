"""The triples of train sorted by bucket: by the slice of the head, then by the slice of the tail."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgexp.data.cache import obtain
from kgexp.data.graph import Graph, Split
from kgexp.data.rowfile import PIECE, RowFile, Scatter, consecutive, pieces

Int64 = npt.NDArray[np.int64]
Triples = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float64]

_VERSION = 1
"""Part of every fingerprint: goes up when the files change."""

_TRIPLES, _WEIGHTS, _OFFSETS, _BOUNDS = "triples.npy", "weights.npy", "offsets.npy", "bounds.npy"


class Buckets:
    """The triples of train sorted by bucket, a pair of slices; within a bucket in the order of train.

    A slice is a range of entity ids. There are K * K buckets: number `a * K + b` holds the triples whose head is
    in slice a and whose tail is in slice b.

    Args:
        bounds: int64[K + 1], slice k holds the ids `bounds[k]` … `bounds[k + 1] - 1`.
        offsets: int64[K * K + 1], where each bucket begins among the sorted triples.
        weighted: whether triples have weights.
        folder: what `obtain_buckets` wrote; without it there are no triples to read.
    """

    def __init__(self, bounds: Int64, offsets: Int64, weighted: bool, folder: Path | None = None) -> None:
        self.bounds, self.offsets, self._weighted, self._folder = bounds, offsets, weighted, folder

    @classmethod
    def open(cls, folder: Path) -> "Buckets":
        """Those that `obtain_buckets` wrote."""
        bounds, offsets = (np.load(folder / name, allow_pickle=False) for name in (_BOUNDS, _OFFSETS))
        return cls(bounds, offsets, (folder / _WEIGHTS).exists(), folder)

    def __len__(self) -> int:
        """The triples of all buckets."""
        return int(self.offsets[-1])

    @property
    def slices(self) -> int:
        """K."""
        return len(self.bounds) - 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a triple, with its weight if it has one."""
        return 3 * 4 + (8 if self._weighted else 0)

    def sizes(self) -> Int64:
        """int64[K * K], the triples of each bucket."""
        return np.diff(self.offsets)

    def read(self, buckets: npt.NDArray[np.integer]) -> tuple[Triples, Weights | None]:
        """The triples of some buckets one after the other, read from the disk by contiguous ranges.

        Args:
            buckets: int[x], numbers of buckets; neighbours in rising order are read at once.

        Returns:
            int32[v, 3], which is all the memory that it takes, and float64[v] if the split has weights.
        """
        if self._folder is None:
            raise RuntimeError("these buckets were counted, not sorted")
        triples = self._read(self._folder / _TRIPLES, buckets)
        return triples, self._read(self._folder / _WEIGHTS, buckets) if self._weighted else None

    def _read(self, path: Path, buckets: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        starts, stops = self.offsets[buckets], self.offsets[buckets + 1]
        breaks = starts[1:] != stops[:-1]
        starts, stops = starts[np.append(True, breaks)[: len(starts)]], stops[np.append(breaks, True)[: len(stops)]]
        with RowFile(path) as file:
            rows = np.empty((int((stops - starts).sum()), *file.shape), file.dtype)
            at = 0
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                file.read_into(rows[at : at + stop - start], start)
                at += stop - start
        return rows


def obtain_buckets(
    graph: Graph,
    bounds: Sequence[int] | Int64,
    cache: Path | None,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
    rows: int = PIECE,
) -> Buckets:
    """The buckets of a graph's train split, sorted into a cache the first time and later only opened.

    Sorting takes some 100 bytes of memory for each of `rows`, whatever the size of the graph. On the disk a triple
    takes 12 bytes (20 with a weight).

    Args:
        graph: the graph; its fingerprint and the bounds are what the cache knows the buckets by.
        bounds: K + 1 rising ids from 0 to n, the slices; a slice may be empty.
        cache: the cache, or None for a temporary folder that goes with the process.
        say: is told, in a sentence, that sorting begins.
        progress: called with (rows done, rows in all) where every pass over the triples counts.
        rows: about so many triples are in memory at a time; the result does not depend on it.

    Raises:
        DataError: the cache cannot be written.
    """
    edges = np.asarray(bounds, np.int64)
    key = repr((_VERSION, graph.fingerprint, len(edges))).encode() + edges.tobytes()
    fingerprint = f"buckets-{hashlib.blake2b(key, digest_size=16).hexdigest()}"

    def write(folder: Path) -> dict[str, Any]:
        slices = len(edges) - 1
        say(f"Sorting {len(graph.train):,} triples into {slices * slices:,} buckets")
        _Sorter(graph.train, edges, progress, rows).write(folder)
        return {"version": _VERSION, "graph": graph.fingerprint, "slices": slices}

    return Buckets.open(obtain(cache, fingerprint, write))


def count_buckets(graph: Graph, bounds: Sequence[int] | Int64, rows: int = PIECE) -> Buckets:
    """How large the buckets of `obtain_buckets` would be; none is written, so that none can be read."""
    edges = np.asarray(bounds, np.int64)
    return Buckets(edges, _Sorter(graph.train, edges, None, rows).offsets(), graph.train.weights is not None)


class _Sorter:
    """Sorts a split: ranges of buckets are scattered to their places in the file, then each is sorted in memory."""

    def __init__(self, split: Split, bounds: Int64, progress: Callable[[int, int], None] | None, rows: int) -> None:
        self._split, self._rows = split, rows
        self._bounds, self._slices = bounds, len(bounds) - 1
        self._begins = bounds[1:-1].astype(np.int32)  # of the type of the ids, or each search would convert them
        self._progress, self._done = progress, 0

    def write(self, folder: Path) -> None:
        """Writes the files of `Buckets` into an empty folder."""
        offsets = self.offsets()
        np.save(folder / _OFFSETS, offsets, allow_pickle=False)
        np.save(folder / _BOUNDS, self._bounds, allow_pickle=False)
        arrays = {_TRIPLES: self._split.triples, _WEIGHTS: self._split.weights}
        split = {name: array for name, array in arrays.items() if array is not None}
        with ExitStack() as stack:
            files = [
                stack.enter_context(RowFile(folder / name, array.dtype, array.shape[1:]))
                for name, array in split.items()
            ]
            cuts = consecutive(np.diff(offsets), self._rows)
            self._scatter(list(split.values()), files, cuts, offsets)
            for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
                start, stop = int(offsets[first]), int(offsets[last])
                if last - first > 1:
                    self._sort(files, start, stop, first)
                self._advance(stop - start)

    def offsets(self) -> Int64:
        """int64[K * K + 1], where each bucket begins among the sorted triples."""
        counts = np.zeros(self._slices**2, np.int64)
        for triples in pieces(self._split.triples, self._rows):
            counts += np.bincount(self._bucket(triples), minlength=len(counts))
            self._advance(len(triples))
        return np.concatenate([[0], np.cumsum(counts)])

    def _scatter(self, split: list[npt.NDArray[Any]], files: list[RowFile], cuts: Int64, offsets: Int64) -> None:
        part = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
        scatter = Scatter(offsets[cuts[:-1]], files)
        for rows in zip(*(pieces(array, self._rows) for array in split), strict=True):
            scatter.add(part[self._bucket(rows[0])], rows)
            self._advance(len(rows[0]))

    def _sort(self, files: list[RowFile], start: int, stop: int, first: int) -> None:
        """Sorts the rows of a range of buckets that begins with bucket `first`."""
        rows = [file.read(start, stop) for file in files]
        bucket = self._bucket(rows[0]) - first
        order = np.argsort(bucket.astype(np.min_scalar_type(bucket.max(initial=0))), kind="stable")
        for file, values in zip(files, rows, strict=True):
            file.write(values.take(order, axis=0), start)

    def _bucket(self, triples: Triples) -> Int64:
        """The buckets int64[b] of int32[b, 3] triples."""
        bucket = np.searchsorted(self._begins, triples[:, 0], side="right") * self._slices
        bucket += np.searchsorted(self._begins, triples[:, 2], side="right")
        return bucket

    def _advance(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._done, 3 * len(self._split))
