"""Where the rows of a partitioned table are while they are not in memory to be trained: slice by slice, in versions.

A slice that was never stored comes from its origin: it is drawn, or read from a checkpoint. A slice that comes back
changed is a new file; the file before it stays as long as a checkpoint names it.
"""

import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.errors import CheckpointError, NonFiniteError
from kgexp.sharding.slices import Slices
from kgexp.storage.blobs import Blobs
from kgexp.storage.shards import as_bytes, shard_header, shard_parts

#: Below the checkpoints, where the files of slices are.
ROWS = "rows"

#: Bytes read at a time, so that what is checked is still in the cache.
_PIECE = 4 << 20

#: Tensors of a slice by name: the weights and the optimizer state.
Rows = Mapping[str, Tensor]


@dataclass(frozen=True)
class RowFile:
    """A file with the rows of one slice.

    Attributes:
        name: of the blob.
        size: bytes.
        crc32: of all of them.
    """

    name: str
    size: int
    crc32: int


@dataclass(frozen=True)
class Layout:
    """What the rows of a table consist of.

    Attributes:
        table: its name.
        tensors: by name, the dtype and the shape of one row.
    """

    table: str
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]

    def empty(self, rows: int, device: torch.device | None = None) -> dict[str, Tensor]:
        """Zeros for so many rows."""
        return {
            name: torch.zeros((rows, *shape), dtype=dtype, device=device)
            for name, (dtype, shape) in self.tensors.items()
        }

    def header(self, ids: range) -> bytes:
        """What the file of a slice begins with."""
        return shard_header(
            {f"{self.table}.{name}": (dtype, (len(ids), *shape)) for name, (dtype, shape) in self.tensors.items()},
            ids.start,
        )

    def row_bytes(self, name: str | None = None) -> int:
        """Bytes of a row, of one of its tensors or of all."""
        return sum(
            dtype.itemsize * torch.Size(shape).numel()
            for key, (dtype, shape) in self.tensors.items()
            if name in (None, key)
        )


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
        self._origin, self._blobs, self._place = origin, blobs, blobs
        self._files: dict[int, RowFile] = {}
        self._committed: set[str] = set()
        self._kept: dict[int, dict[str, Tensor]] = {}  # in memory, where there are no blobs
        self._drawn: tuple[int, dict[str, Tensor]] | None = None  # the last slice that was never stored, for readers
        self._nonce, self._version = uuid.uuid4().hex[:8], 0

    def fetch(self, k: int, into: Rows) -> None:
        """Fills the tensors of a slice.

        Raises:
            CheckpointError: its file is missing or damaged.
        """
        if k in self._kept:
            for name, tensor in into.items():
                tensor.copy_(self._kept[k][name])
            self.read_bytes += self.slices.size(k) * self.layout.row_bytes()
        elif k in self._files:
            self._read(k, into)
        else:
            self._origin(self.slices.ids(k), into)

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
                self._kept[k] = self.layout.empty(self.slices.size(k))
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
        dtype, shape = self.layout.tensors[name]
        rows = torch.empty((stop - start, *shape), dtype=dtype)
        assert self._place is not None
        offset = self._offset(k, name) + start * self.layout.row_bytes(name)
        self._place.read(self._files[k].name, offset, as_bytes(rows))
        self.read_bytes += rows.nbytes
        return rows

    def commit(self, blobs: Blobs) -> dict[int, RowFile]:
        """Files of all slices, durable: for a checkpoint that will lie beside them. Slices in `blobs` for good are
        those that it names."""
        self._place, self._drawn = blobs, None
        temporary: dict[str, Tensor] | None = None
        for k in range(len(self.slices)):
            if k in self._files or not self.slices.size(k):
                continue
            if k in self._kept:
                self._write(k, self._kept[k], blobs)
                continue
            temporary = temporary or self.layout.empty(self.slices.largest)
            rows = {name: tensor[: self.slices.size(k)] for name, tensor in temporary.items()}
            self._origin(self.slices.ids(k), rows)
            self._write(k, rows, blobs)
        new = [file.name for file in self._files.values() if file.name not in self._committed]
        blobs.sync(new)
        self._committed = {file.name for file in self._files.values()}
        return dict(self._files)

    def adopt(self, files: Mapping[int, RowFile], blobs: Blobs) -> None:
        """Goes on from the files of a checkpoint, which are where new ones will be."""
        self._files, self._kept, self._drawn, self._place = dict(files), {}, None, blobs
        self._committed = {file.name for file in files.values()}

    def restart(self, origin: Callable[[range, Rows], None]) -> None:
        """Forgets all that was stored: every slice comes from `origin`."""
        self._files, self._kept, self._drawn, self._origin = {}, {}, None, origin

    def _write(self, k: int, rows: Rows, blobs: Blobs) -> None:
        self._version += 1
        name = f"{ROWS}/{self.layout.table}-{k:05d}.{self._version:06d}-{self._nonce}.safetensors"
        crc = 0

        def summed() -> Iterator[bytes | memoryview]:
            nonlocal crc
            named = {f"{self.layout.table}.{key}": tensor for key, tensor in rows.items()}
            for part in shard_parts(named, self.slices.ids(k).start):
                crc = zlib.crc32(part, crc)
                yield part

        size = blobs.write(name, summed())
        self.written_bytes += size
        before = self._files.get(k)
        self._files[k] = RowFile(name, size, crc)
        if before is not None and before.name not in self._committed:
            blobs.delete(before.name)

    def _read(self, k: int, into: Rows) -> None:
        """A whole file, compared with its checksum."""
        blobs, file = self._place, self._files[k]
        assert blobs is not None
        header = bytearray(len(self.layout.header(self.slices.ids(k))))
        blobs.read(file.name, 0, memoryview(header))
        crc, offset = zlib.crc32(header), len(header)
        for name in self.layout.tensors:  # in the order of the file
            target = into[name]
            direct = target.device.type == "cpu" and target.is_contiguous()
            rows = target if direct else torch.empty_like(target, device="cpu")
            view = as_bytes(rows)
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                blobs.read(file.name, offset, piece)
                crc, offset = zlib.crc32(piece, crc), offset + len(piece)
            if not direct:
                target.copy_(rows)
        self.read_bytes += offset
        if crc != file.crc32 or offset != file.size:
            raise CheckpointError(
                f"{blobs.describe(file.name)} is not what was written there (its checksum differs): the disk or a copy "
                "of the file has damaged it; take another checkpoint"
            )

    def _offset(self, k: int, name: str) -> int:
        """Where a tensor begins in the file of a slice."""
        offset = len(self.layout.header(self.slices.ids(k)))
        for key in self.layout.tensors:
            if key == name:
                break
            offset += self.slices.size(k) * self.layout.row_bytes(key)
        return offset
