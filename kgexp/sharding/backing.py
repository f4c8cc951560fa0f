"""Where the rows of a partitioned table are while they are not in memory to be trained: slice by slice, in versions.

A slice that was never stored comes from its origin: it is drawn, or read from a checkpoint. A slice that comes back
changed is a new file; the file before it stays as long as a checkpoint names it.
"""

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from kgexp.errors import NonFiniteError
from kgexp.sharding.rowfiles import Layout, RowFile, RowFiles, Rows
from kgexp.sharding.slices import Slices
from kgexp.storage.blobs import Blobs


class Backing:
    """The slices of one table.

    Args:
        layout: of the rows.
        slices: of the ids.
        origin: fills the tensors of a slice that was never stored.
        blobs: where slices are stored; None keeps them in memory, and in files only what is committed.

    Attributes:
        read_bytes, written_bytes: of slices that came from where they are kept, and went there, so far.
    """

    def __init__(
        self, layout: Layout, slices: Slices, origin: Callable[[range, Rows], None], blobs: Blobs | None
    ) -> None:
        self.layout, self.slices, self.read_bytes, self.written_bytes = layout, slices, 0, 0
        self._row_files = RowFiles(layout, slices)
        self._origin, self._blobs, self._place = origin, blobs, blobs
        self._files: dict[int, RowFile] = {}
        self._committed: set[str] = set()
        self._kept: dict[int, dict[str, Tensor]] = {}  # in memory, where there are no blobs
        self._drawn: tuple[int, dict[str, Tensor]] | None = None  # the last slice that was never stored, for readers

    def fetch(self, k: int, into: Rows) -> bool:
        """Fills the tensors of a slice; True where they are nowhere else now, so that they will have to be stored.

        Raises:
            CheckpointError: its file is missing or damaged.
        """
        if k in self._kept:
            for name, tensor in into.items():
                tensor.copy_(self._kept[k][name])
            self.read_bytes += self.slices.size(k) * self.layout.row_bytes()
        elif k in self._files:
            assert self._place is not None
            self.read_bytes += self._row_files.read(k, self._files[k], self._place, into)
        else:
            self._origin(self.slices.ids(k), into)
        return False

    def store(self, k: int, rows: Rows) -> None:
        """Takes the tensors of a slice, which may change again after it.

        Raises:
            NonFiniteError: a number is NaN or infinite.
        """
        self._drawn = None
        for name, tensor in rows.items():
            # The sum of finite numbers may be infinite, but no other numbers have one that is finite: to look at each
            # would take memory for several slices.
            if not tensor.sum().isfinite() and not tensor.isfinite().all():
                raise NonFiniteError(
                    f"{self.layout.table}.{name} holds NaN or infinity among the rows {self.slices.ids(k).start} to "
                    f"{self.slices.ids(k).stop - 1}, which were not stored: lower optimizer.lr or the weights of the "
                    "triples, and start from an earlier checkpoint."
                )
        if self._blobs is None:
            if k not in self._kept:
                self._kept[k] = self._room(k)
            for name, tensor in rows.items():
                self._kept[k][name].copy_(tensor)
            self.written_bytes += self.slices.size(k) * self.layout.row_bytes()
            self._files.pop(k, None)  # its rows are older now
        else:
            self._write(k, rows, self._blobs)

    def read(self, k: int, name: str, start: int, stop: int) -> Tensor:
        """The rows `start … stop - 1` of a slice, counted from its first, of one tensor: on the CPU, not to be changed.

        Raises:
            CheckpointError: its file is missing or too short.
        """
        if k in self._kept:
            return self._kept[k][name][start:stop]
        if k not in self._files:
            if self._drawn is None or self._drawn[0] != k:
                self._drawn = None  # before the next one is made
                self._drawn = k, self.layout.empty(self.slices.size(k))
                self._origin(self.slices.ids(k), self._drawn[1])
            return self._drawn[1][name][start:stop]
        assert self._place is not None
        rows = self._row_files.read_part(k, self._files[k], self._place, name, start, stop)
        self.read_bytes += rows.nbytes
        return rows

    def commit(self, blobs: Blobs) -> dict[int, RowFile]:
        """Files of all slices, durable: for a checkpoint that will lie beside them. Slices in `blobs` for good are
        those that it names."""
        files = self._store_all(blobs, range(len(self.slices)))
        blobs.sync(file.name for file in files.values() if file.name not in self._committed)
        self._committed = {file.name for file in files.values()}
        return files

    def adopt(self, files: Mapping[int, RowFile], blobs: Blobs) -> None:
        """Goes on from the files of a checkpoint, which are where new ones will be."""
        self._files, self._kept, self._drawn, self._place = dict(files), {}, None, blobs
        self._committed = {file.name for file in files.values()}

    def restart(self, origin: Callable[[range, Rows], None]) -> None:
        """Forgets all that was stored: every slice comes from `origin`."""
        self._files, self._kept, self._drawn, self._origin = {}, {}, None, origin

    def _store_all(self, blobs: Blobs, slices: Iterable[int]) -> dict[int, RowFile]:
        """Files of some slices, written where there are none."""
        self._place, self._drawn = blobs, None
        temporary: dict[str, Tensor] | None = None
        files = {}
        for k in slices:
            if not self.slices.size(k) and k not in self._files:
                continue
            if k not in self._files and k in self._kept:
                self._write(k, self._kept[k], blobs)
            elif k not in self._files:
                temporary = temporary or self.layout.empty(self.slices.largest)
                rows = {name: tensor[: self.slices.size(k)] for name, tensor in temporary.items()}
                self._origin(self.slices.ids(k), rows)
                self._write(k, rows, blobs)
            files[k] = self._files[k]
        return files

    def _room(self, k: int) -> dict[str, Tensor]:
        """Memory for the tensors of a slice, to be filled."""
        return self.layout.empty(self.slices.size(k))

    def _write(self, k: int, rows: Rows, blobs: Blobs) -> None:
        before = self._files.get(k)
        self._files[k] = self._row_files.write(k, rows, blobs)
        self.written_bytes += self._files[k].size
        if before is not None and before.name not in self._committed:
            self._supersede(before, blobs)

    def _supersede(self, file: RowFile, blobs: Blobs) -> None:
        """Gives up a file that no checkpoint names, of whose rows there are newer ones."""
        blobs.delete(file.name)
