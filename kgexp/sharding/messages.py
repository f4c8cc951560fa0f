"""Values and tensors as one message: a safetensors stream, written from where the tensors are, read to where they go.

The values stand in the header's metadata as JSON. Neither side needs memory for more than one piece of a tensor beside
the tensors themselves.
"""

import json
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Any

import torch
from torch import Tensor

from kgexp.storage.shards import DTYPE_NAMES, DTYPES, as_bytes, safetensors_header

#: Bytes of a tensor that are sent or received at a time.
_PIECE = 1 << 20
#: Numbers that are converted at a time: few enough for torch to do it in the thread that asks. Every thread of a
#: service would have a team of its own otherwise.
_FEW = 1 << 14


@dataclass(frozen=True)
class Message:
    """What is asked, or answered.

    Attributes:
        values: what JSON can say.
        tensors: by name, on any device, of any shape; they stay as they are until the message is sent.
        wire: to which floating tensors that are wider are rounded on the way; the one who receives gets the dtype that
            was sent. None sends them as they are.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    wire: torch.dtype | None = None


class Counts:
    """Bytes of messages, counted by any number of threads.

    Attributes:
        sent_bytes, received_bytes: so far.
    """

    def __init__(self) -> None:
        self.sent_bytes = self.received_bytes = 0
        self._counting = threading.Lock()

    def count(self, sent: int = 0, received: int = 0) -> None:
        """Adds to them."""
        with self._counting:
            self.sent_bytes += sent
            self.received_bytes += received


def pack(message: Message) -> tuple[int, Iterator[bytes | memoryview]]:
    """The bytes of a message: how many there are, and they themselves, in parts; each is gone with the next."""
    dtypes = {name: _sent(tensor.dtype, message.wire) for name, tensor in message.tensors.items()}
    metadata = {
        "values": json.dumps(dict(message.values)),
        "dtypes": json.dumps({name: DTYPE_NAMES[tensor.dtype] for name, tensor in message.tensors.items()}),
    }
    if message.wire is not None:
        metadata["wire"] = DTYPE_NAMES[message.wire]
    header = safetensors_header(
        {name: (dtypes[name], tensor.shape) for name, tensor in message.tensors.items()}, metadata
    )

    def parts() -> Iterator[bytes | memoryview]:
        yield header
        for name, tensor in message.tensors.items():
            for piece, staged in _pieces(tensor, dtypes[name]):
                if staged is not piece:
                    _copy(piece, staged)
                yield as_bytes(staged)

    size = sum(tensor.numel() * dtypes[name].itemsize for name, tensor in message.tensors.items())
    return len(header) + size, parts()


def unpack(stream: BufferedIOBase, size: int, into: Mapping[str, Tensor] | None = None) -> Message:
    """Reads a message.

    Args:
        stream: stands at its beginning.
        size: of the message in bytes.
        into: tensors of the right shapes that are filled with those of the same names; without a copy where they are
            contiguous on the CPU and of the dtype that comes. Other tensors are new.

    Raises:
        ValueError: it is no message of this size, or a tensor of `into` has another shape.
        ConnectionError: the stream ended early.
    """
    values, wire, entries = _unpack_header(stream, size)
    tensors = {}
    for name, (dtype, whole, shape) in entries.items():
        tensor = into[name] if into and name in into else torch.empty(shape, dtype=whole)
        if tensor.shape != shape:
            raise ValueError(f"{name} of the shape {list(shape)} came for {list(tensor.shape)}")
        for piece, staged in _pieces(tensor, dtype):
            _fill(stream, as_bytes(staged))
            if staged is not piece:
                _copy(staged, piece)
        tensors[name] = tensor
    return Message(values, tensors, wire)


def _unpack_header(
    stream: BufferedIOBase, size: int
) -> tuple[dict[str, Any], torch.dtype | None, dict[str, tuple[torch.dtype, torch.dtype, tuple[int, ...]]]]:
    """A message's values and `wire`, and of each tensor: its dtype on the wire, its own, its shape."""
    length = int.from_bytes(_read(stream, 8), "little") if size >= 8 else 0
    if not 2 <= length <= size - 8:
        raise ValueError(f"a header of {length} bytes in {size}")
    try:
        header = json.loads(_read(stream, length))
        about = header.pop("__metadata__")
        values, whole = json.loads(about["values"]), json.loads(about["dtypes"])
        wire = DTYPES[about["wire"]] if "wire" in about else None
        entries = {
            name: (DTYPES[entry["dtype"]], DTYPES[whole[name]], tuple(entry["shape"])) for name, entry in header.items()
        }
        total = sum(math.prod(shape) * dtype.itemsize for dtype, _, shape in entries.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if total != size - 8 - length:
        raise ValueError(f"tensors of {total} bytes in {size - 8 - length}")
    return values, wire, entries


def _sent(dtype: torch.dtype, wire: torch.dtype | None) -> torch.dtype:
    """The dtype in which a tensor goes over the wire."""
    narrower = wire is not None and dtype.is_floating_point and dtype.itemsize > wire.itemsize
    return wire if narrower and wire is not None else dtype


def _pieces(tensor: Tensor, wire: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the tensor's rows, some at a time, each with what stands for it on the wire: itself, or else memory on
    the CPU that the next one takes over."""
    rows = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    if not rows.numel():
        return
    pieces = rows.split(max(1, _PIECE // rows[0].nbytes))
    if tensor.dtype == wire and tensor.device.type == "cpu" and tensor.is_contiguous():
        yield from zip(pieces, pieces, strict=True)
        return
    staged = torch.empty(pieces[0].shape, dtype=wire)
    for piece in pieces:
        yield piece, staged[: len(piece)]


def _copy(source: Tensor, target: Tensor) -> None:
    """Copies rows between dtypes and devices."""
    on_cpu = source.device.type == target.device.type == "cpu"
    rows = max(1, _FEW // source[0].numel()) if on_cpu else len(source)
    for few, place in zip(source.split(rows), target.split(rows), strict=True):
        place.copy_(few)


def _read(stream: BufferedIOBase, size: int) -> bytes:
    into = bytearray(size)
    _fill(stream, memoryview(into))
    return bytes(into)


def _fill(stream: BufferedIOBase, view: memoryview) -> None:
    while view:
        got = stream.readinto(view)
        if not got:
            raise ConnectionError("the stream ended early")
        view = view[got:]
