"""A text file as blocks of whole lines, read as a stream and unpacked on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kgexp.data.files import COMPRESSIONS
from kgexp.errors import DataError

BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 1 << 22


class Block(NamedTuple):
    """Whole lines of a file: the number of the first (from 1), how many, and their bytes, each line ended by LF."""

    line: int
    lines: int
    text: bytes


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """The file's lines in blocks of about `size` bytes, without a byte order mark and trailing blank lines.

    Raises:
        DataError: the file cannot be opened, read or unpacked.
    """
    line, rest = 1, b""
    stream = _open(path)
    while piece := _read(stream, size, path, line):
        end = _end_of_last_line(piece)
        if not end:  # at most a line ends here that began before
            piece, rest = rest + piece, b""
            end = _end_of_last_line(piece)
        if end:
            block = _block(line, b"".join([rest, memoryview(piece)[:end]]))
            yield block
            line += block.lines
        rest = piece[end:]
    if rest.strip(b"\r\n"):
        yield _block(line, rest + b"\n")


def _block(line: int, text: bytes) -> Block:
    lines = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n"))
    return Block(line, int(lines), text.removeprefix(BOM) if line == 1 else text)


def _end_of_last_line(text: bytes) -> int:
    """Where the last whole line that is not blank ends; blank lines wait, as they may be trailing ones."""
    content = text.rfind(b"\n") + 1
    while content and text[content - 1] in b"\r\n":
        content -= 1
    return text.index(b"\n", content) + 1 if content else 0


def _open(path: Path) -> Any:
    try:
        return pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix))
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error}): check the file and its permissions.") from error


def _read(stream: Any, size: int, path: Path, line: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError as error:
        packed = COMPRESSIONS.get(path.suffix)
        what = f"is no sound {packed} file" if packed else "cannot be read"
        raise DataError(f"{path}, near line {line}: the file {what} ({error}); fetch or pack it again.") from error
