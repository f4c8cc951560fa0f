"""Safetensors files that hold ranges of rows, written as a stream and read by the row.

The format is eight bytes of header length, a JSON header, then the tensors one after another. A file holds the rows
from some offset on; the header says from which, under the key that torch's distributed checkpoint uses, so other
tools can put the ranges together too. Writing needs memory for one piece of rows, whatever the table's size.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from kgexp.errors import CheckpointError
from kgexp.storage.blobs import Blobs, LocalBlobs

#: Bytes written or read at a time.
_PIECE = 4 << 20

#: Bytes between two rows that are rather read than passed over.
NEAR = 16 << 10

#: The format's names of dtypes, and the other way round.
DTYPE_NAMES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

#: torch.distributed.checkpoint's key for the offsets of a shard within its tensor.
_OFFSETS = "DCP_SHARDING_INFO"


def write_shard(path: Path, tensors: Mapping[str, Tensor], start: int) -> None:
    """Writes tensors whose first dimension is rows, beginning with row `start` of the whole, and syncs the file.

    Args:
        path: a file that does not exist yet; its mode follows the process's umask.
        tensors: by name; on any device, read piece by piece.
        start: number of the first row.
    """
    with open(path, "xb") as file:
        for part in shard_parts(tensors, start):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def shard_parts(tensors: Mapping[str, Tensor], start: int) -> Iterator[bytes | memoryview]:
    """The bytes of such a file, one after the other: see `write_shard`."""
    yield shard_header({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}, start)
    for tensor in tensors.values():
        for piece in _pieces(tensor):
            yield as_bytes(piece)


def shard_header(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], start: int) -> bytes:
    """What a file begins with that holds rows from `start` on; the bytes of the tensors follow in the order given.

    Args:
        tensors: by name, the dtype and the shape in this file.
        start: number of the first row.
    """
    offsets = {name: {"saved_offsets": [start] + [0] * (len(shape) - 1)} for name, (_, shape) in tensors.items()}
    return safetensors_header(tensors, {"DCP_VERSION": "1.0", _OFFSETS: json.dumps(offsets)})


def safetensors_header(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """What a file in the format begins with; the bytes of the tensors follow in the order given.

    Args:
        tensors: by name, the dtype and the shape.
        metadata: what else is said of them.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligned tensors can be mapped
    return len(text).to_bytes(8, "little") + text


def as_bytes(rows: Tensor) -> memoryview:
    """The bytes of rows as they stand in a file."""
    return rows.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor's rows, some at a time."""
    row = tensor.element_size() * max(1, tensor[:1].numel())
    yield from tensor.detach().split(max(1, _PIECE // row)) if len(tensor) else ()


@dataclass(frozen=True)
class _Shard:
    name: str
    start: int
    stop: int
    offset: int  # of the tensor's bytes in the file


class RowReader:
    """A tensor whose rows are spread over files, read by ranges of rows, whoever wrote them.

    Attributes:
        name: the tensor's name.
        shape: of the whole tensor.
        dtype: of its numbers.
    """

    def __init__(self, name: str, files: Sequence[Path | str], blobs: Blobs | None = None) -> None:
        """Opens the headers of the files that hold parts of `name`.

        Args:
            name: of the tensor.
            files: paths, or names of `blobs`.
            blobs: where the files are; None is the file system.

        Raises:
            CheckpointError: a file cannot be read, or the parts do not make a whole.
        """
        self.name = name
        self._blobs = blobs or LocalBlobs(Path())
        self._shards: list[_Shard] = []
        for file in map(str, files):
            shape, self.dtype, start, offset = _read_header(self._blobs, file, name)
            self._shards.append(_Shard(file, start, start + shape[0], offset))
            row_shape = shape[1:]
        self._shards.sort(key=lambda shard: (shard.start, shard.stop))
        rows = 0
        for shard in self._shards:
            if shard.start != rows:
                raise CheckpointError(
                    f"{self._blobs.describe(shard.name)}: {name} goes on with row {shard.start} after row {rows - 1}, "
                    "so a file is missing or stands there twice; take another checkpoint"
                )
            rows = shard.stop
        self.shape = (rows, *row_shape)

    @property
    def bounds(self) -> tuple[int, ...]:
        """Where the files begin, in rows, and one past the last row."""
        return (*(shard.start for shard in self._shards), self.shape[0])

    def read(self, start: int, stop: int) -> Tensor:
        """The rows `start … stop - 1` on the CPU, in memory of their own."""
        rows = torch.empty((max(min(stop, self.shape[0]) - start, 0), *self.shape[1:]), dtype=self.dtype)
        for shard in self._shards:
            low, high = max(start, shard.start), min(stop, shard.stop)
            if low < high:
                part = rows[low - start : high - start]
                place = shard.offset + (low - shard.start) * (part.nbytes // len(part))
                self._blobs.read(shard.name, place, as_bytes(part))
        return rows

    def take(self, rows: Tensor) -> Tensor:
        """The rows int64[u], any of them, on the CPU in memory of their own; little more of the files is read."""
        wanted, place = torch.unique(rows, return_inverse=True)
        out = torch.empty((len(wanted), *self.shape[1:]), dtype=self.dtype)
        near = max(1, NEAR // max(1, out[:1].nbytes))
        cuts = [0, *((wanted.diff() > near).nonzero()[:, 0] + 1).tolist(), len(wanted)]
        for start, stop in pairwise(cuts):
            for low in range(start, stop, near):  # at most `near` rows of at most as many numbers each
                some = wanted[low : min(low + near, stop)]
                if len(some):
                    first, last = int(some[0]), int(some[-1])
                    out[low : low + len(some)] = self.read(first, last + 1).index_select(0, some - first)
        return out.index_select(0, place)

    def copy_into(self, target: Tensor, start: int) -> None:
        """Fills `target`, which holds the whole's rows from `start` on, piece by piece."""
        row = target.element_size() * max(1, target[:1].numel())
        size = max(1, _PIECE // row)
        for low in range(0, len(target), size):
            piece = target[low : low + size]
            piece.copy_(self.read(start + low, start + low + len(piece)))


def _read_header(blobs: Blobs, file: str, name: str) -> tuple[list[int], torch.dtype, int, int]:
    """Shape, dtype and first row of the part of tensor `name` that a file holds, and where its bytes begin."""
    try:
        length = bytearray(8)
        blobs.read(file, 0, memoryview(length))
        text = bytearray(_checked(int.from_bytes(length, "little"), blobs.size(file)))
        blobs.read(file, len(length), memoryview(text))
        header = json.loads(text)
        entry, begin = header[name], len(length) + len(text)
        end = begin + max(part["data_offsets"][1] for key, part in header.items() if key != "__metadata__")
        if blobs.size(file) != end:
            raise ValueError(f"it has {blobs.size(file)} bytes, not {end}")
        offsets = json.loads(header.get("__metadata__", {}).get(_OFFSETS, "{}"))
        start = offsets.get(name, {}).get("saved_offsets", [0])[0]
        return entry["shape"], DTYPES[entry["dtype"]], start, begin + entry["data_offsets"][0]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{blobs.describe(file)}: {name} cannot be read ({error}); take another checkpoint"
        ) from error


def _checked(length: int, size: int | None) -> int:
    """The length of a header, if it can be one. Raises ValueError."""
    if size is None or not 2 <= length <= size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    return length
