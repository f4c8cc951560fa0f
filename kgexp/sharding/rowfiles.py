"""Files with the rows of slices: one file a slice and version, in the layout that checkpoints name."""

import uuid
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.errors import CheckpointError
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


class RowFiles:
    """Writes and reads the files of one table's slices; their names are no other process's.

    Args:
        layout: of the rows.
        slices: of the ids.
    """

    def __init__(self, layout: Layout, slices: Slices) -> None:
        self._layout, self._slices = layout, slices
        self._nonce, self._version = uuid.uuid4().hex[:8], 0

    def write(self, k: int, rows: Rows, blobs: Blobs) -> RowFile:
        """A new file with the rows of a slice."""
        self._version += 1
        table, crc = self._layout.table, 0
        name = f"{ROWS}/{table}-{k:05d}.{self._version:06d}-{self._nonce}.safetensors"

        def summed() -> Iterator[bytes | memoryview]:
            nonlocal crc
            named = {f"{table}.{key}": tensor for key, tensor in rows.items()}
            for part in shard_parts(named, self._slices.ids(k).start):
                crc = zlib.crc32(part, crc)
                yield part

        size = blobs.write(name, summed())
        return RowFile(name, size, crc)

    def wrote(self, file: RowFile) -> bool:
        """Whether a file was written here, and not by another process."""
        return file.name.endswith(f"-{self._nonce}.safetensors")

    def read(self, k: int, file: RowFile, blobs: Blobs, into: Rows) -> int:
        """A whole file, compared with its checksum; returns its bytes.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        header = bytearray(len(self._layout.header(self._slices.ids(k))))
        blobs.read(file.name, 0, memoryview(header))
        crc, offset = zlib.crc32(header), len(header)
        for name in self._layout.tensors:  # in the order of the file
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
        if crc != file.crc32 or offset != file.size:
            raise CheckpointError(
                f"{blobs.describe(file.name)} is not what was written there (its checksum differs): the disk or a copy "
                "of the file has damaged it; take another checkpoint"
            )
        return offset

    def read_part(self, k: int, file: RowFile, blobs: Blobs, name: str, start: int, stop: int) -> Tensor:
        """The rows `start … stop - 1` of a slice, counted from its first, of one tensor."""
        dtype, shape = self._layout.tensors[name]
        rows = torch.empty((stop - start, *shape), dtype=dtype)
        offset = self._offset(k, name) + start * self._layout.row_bytes(name)
        blobs.read(file.name, offset, as_bytes(rows))
        return rows

    def _offset(self, k: int, name: str) -> int:
        """Where a tensor begins in the file of a slice."""
        offset = len(self._layout.header(self._slices.ids(k)))
        for key in self._layout.tensors:
            if key == name:
                break
            offset += self._slices.size(k) * self._layout.row_bytes(key)
        return offset
