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
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kgexp.errors import CheckpointError

#: Bytes written or read at a time; reading holds three times as many.
_PIECE = 4 << 20

_DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
_TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}

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
        file.write(shard_header({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}, start))
        for tensor in tensors.values():
            for piece in _pieces(tensor):
                file.write(as_bytes(piece))
        file.flush()
        os.fsync(file.fileno())


def shard_header(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], start: int) -> bytes:
    """What a file begins with that holds rows from `start` on; the bytes of the tensors follow in the order given.

    Args:
        tensors: by name, the dtype and the shape in this file.
        start: number of the first row.
    """
    header: dict[str, object] = {
        "__metadata__": {
            "format": "pt",
            "DCP_VERSION": "1.0",
            _OFFSETS: json.dumps(
                {name: {"saved_offsets": [start] + [0] * (len(shape) - 1)} for name, (_, shape) in tensors.items()}
            ),
        }
    }
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, offset + size]}
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
    path: Path
    start: int
    stop: int


class RowReader:
    """A tensor whose rows are spread over files, read by ranges of rows, whoever wrote them.

    Attributes:
        name: the tensor's name.
        shape: of the whole tensor.
        dtype: of its numbers.
    """

    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        """Opens the headers of the files that hold parts of `name`.

        Raises:
            CheckpointError: a file cannot be read, or the parts do not make a whole.
        """
        self.name = name
        self._shards: list[_Shard] = []
        for path in paths:
            shape, dtype, start = _read_header(path, name)
            self._shards.append(_Shard(path, start, start + shape[0]))
            self.dtype, row_shape = dtype, shape[1:]
        self._shards.sort(key=lambda shard: (shard.start, shard.stop))
        rows = 0
        for shard in self._shards:
            if shard.start != rows:
                raise CheckpointError(
                    f"{shard.path}: {name} goes on with row {shard.start} after row {rows - 1}, so a file is missing "
                    "or stands there twice; take another checkpoint"
                )
            rows = shard.stop
        self.shape = (rows, *row_shape)

    def read(self, start: int, stop: int) -> Tensor:
        """The rows `start … stop - 1` on the CPU, in memory of their own."""
        parts = []
        for shard in self._shards:
            low, high = max(start, shard.start), min(stop, shard.stop)
            if low < high:
                with safe_open(shard.path, framework="pt") as file:
                    rows = file.get_slice(self.name)[low - shard.start : high - shard.start]
                    parts.append(rows.clone())  # the slice is a view of the mapped file, which goes
        return torch.cat(parts) if parts else torch.empty((0, *self.shape[1:]), dtype=self.dtype)

    def take(self, rows: Tensor) -> Tensor:
        """The rows int64[u], any of them, on the CPU in memory of their own; the rest of the files is not read."""
        out = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        for shard in self._shards:
            here = ((shard.start <= rows) & (rows < shard.stop)).nonzero()[:, 0]
            if len(here):
                with safe_open(shard.path, framework="pt") as file:
                    mapped = file.get_slice(self.name)[:]  # a view, of which only what is used is read
                    out[here] = mapped.index_select(0, rows[here] - shard.start)
        return out

    def copy_into(self, target: Tensor, start: int) -> None:
        """Fills `target`, which holds the whole's rows from `start` on, piece by piece."""
        row = target.element_size() * max(1, target[:1].numel())
        size = max(1, _PIECE // row)
        for low in range(0, len(target), size):
            piece = target[low : low + size]
            piece.copy_(self.read(start + low, start + low + len(piece)))


def _read_header(path: Path, name: str) -> tuple[list[int], torch.dtype, int]:
    """Shape, dtype and first row of the part of tensor `name` that a file holds."""
    try:
        with safe_open(path, framework="pt") as file:
            piece = file.get_slice(name)
            offsets = json.loads((file.metadata() or {}).get(_OFFSETS, "{}"))
            start = offsets.get(name, {}).get("saved_offsets", [0])[0]
            return piece.get_shape(), _TORCH_DTYPES[piece.get_dtype()], start
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: {name} cannot be read ({error}); take another checkpoint") from error
