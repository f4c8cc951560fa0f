"""Blobs: named bytes that are written once, and the folder of files that keeps them on a local disk."""

import errno
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Protocol

from kgexp.durable import sync
from kgexp.errors import CheckpointError, ConfigError

#: Bytes of a write: what disks take at full speed.
_BLOCK = 8 << 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: Blobs that are not whole yet.
TEMPORARY = ".tmp"


class Blobs(Protocol):
    """A flat space of named bytes, each written once and never again; several threads may use it.

    A name looks like `rows/entity-00003.17.safetensors`, and does not end in `.tmp`. Every method raises
    CheckpointError or ConfigError, with the blob's `describe`, where its bytes cannot be moved.
    """

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """Writes a new blob, whole or not at all; returns its bytes. It is durable after `sync`.

        Args:
            name: of no blob, or of one that a killed process has left, which goes.
            parts: its bytes, taken as a stream: memory is needed for one block. What it raises comes through.
        """

    def read(self, name: str, start: int, into: memoryview) -> None:
        """Fills `into`, contiguous and writable, with the bytes from `start` on.

        Raises:
            CheckpointError: the blob is not there, or ends too early.
        """

    def size(self, name: str) -> int | None:
        """Bytes of a blob; None: it is not there."""

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes of the blobs whose names begin with `prefix`, sorted by name."""

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`, sorted."""
        return list(self.sizes(prefix))

    def delete(self, name: str) -> None:
        """Removes a blob; no error where it is gone already."""

    def sync(self, names: Iterable[str]) -> None:
        """Returns once these blobs would survive a power cut."""

    def create(self, name: str, data: bytes) -> bool:
        """Makes a small blob that appears whole and durable; False where the name is taken: of two writers one wins."""

    def describe(self, name: str) -> str:
        """Path or URL of a blob, for messages."""


class LocalBlobs(Blobs):
    """A file for every blob.

    Args:
        folder: made at the first write; the file system has to know hard links.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """See `Blobs.write`: a temporary file, renamed at the end."""
        path, size = self.folder / name, 0
        with self._temporary(path) as file:
            for block in in_blocks(parts, _BLOCK):
                with told(path, "written", size + len(block)):
                    size += file.write(block)
            with told(path, "written", size):
                file.close()
                os.replace(file.name, path)
        return size

    def read(self, name: str, start: int, into: memoryview) -> None:
        """See `Blobs.read`."""
        path, rest, place = self.folder / name, into.cast("B"), start
        with told(path, "read"), open(path, "rb", buffering=0) as file:
            while rest and (count := os.preadv(file.fileno(), [rest], place)):
                rest, place = rest[count:], place + count
            if rest:
                raise too_short(str(path), os.fstat(file.fileno()).st_size, start + into.nbytes)

    def size(self, name: str) -> int | None:
        """See `Blobs.size`."""
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See `Blobs.sizes`."""
        top = self.folder / prefix.rpartition("/")[0]
        paths = (Path(folder, file) for folder, _, files in os.walk(top) for file in files)
        names = sorted(path.relative_to(self.folder).as_posix() for path in paths)
        sizes = {}
        for name in names:
            # A file may go while the folder is read.
            if name.startswith(prefix) and not name.endswith(TEMPORARY) and (size := self.size(name)) is not None:
                sizes[name] = size
        return sizes

    def delete(self, name: str) -> None:
        """See `Blobs.delete`."""
        path = self.folder / name
        with told(path, "deleted"):
            path.unlink(missing_ok=True)

    def sync(self, names: Iterable[str]) -> None:
        """See `Blobs.sync`: the files, then the folders that name them."""
        paths = [self.folder / name for name in names]
        top = self.folder.parent  # which may have got the folder just now
        folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(top)}
        for path in [*paths, *sorted(folders, reverse=True)]:
            with told(path, "synced"):
                sync(path)

    def create(self, name: str, data: bytes) -> bool:
        """See `Blobs.create`: a temporary file, synced, that gets its name by a link."""
        path = self.folder / name
        with self._temporary(path) as file, told(path, "created", len(data)):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(file.name, path)
            except FileExistsError:
                if os.fstat(file.fileno()).st_nlink < 2:  # 2: over NFS, the answer to a link that was made got lost
                    return False
        self.sync([name])
        return True

    def describe(self, name: str) -> str:
        """See `Blobs.describe`."""
        return str(self.folder / name)

    @contextmanager
    def _temporary(self, path: Path) -> Iterator[BufferedWriter]:
        """A new file beside `path`, which is closed in the end, and gone by the name that it had."""
        while True:
            temporary = path.with_name(f"{path.name}.{os.getpid()}.{next(self._numbers)}{TEMPORARY}")
            with told(path, "written"):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    file = open(temporary, "xb")  # noqa: SIM115  # closed below
                    break
                except FileExistsError:  # of a process with our number on another machine, or of one before us
                    continue
        try:
            yield file
        finally:
            with suppress(OSError):  # what a full disk still has to say was said
                file.close()
            temporary.unlink(missing_ok=True)


@contextmanager
def told(path: Path, done: str, size: int = 0) -> Iterator[None]:
    """Makes sentences of what the system says about a file of `size` bytes that could not be `done`."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            with suppress(OSError):
                free = shutil.disk_usage(path.parent).free
                raise ConfigError(
                    f"{path.parent} has room for {free:,} bytes, but not for the {size:,} of {path.name} "
                    f"({error.strerror}): free some, or choose a folder on a larger disk."
                ) from error
        remedy = "take another checkpoint" if done == "read" else "see to the folder and its disk"
        raise CheckpointError(f"{path} cannot be {done} ({error.strerror}): {remedy}") from error


def in_blocks(parts: Iterable[bytes | memoryview], size: int) -> Iterator[memoryview]:
    """The bytes of all parts in blocks of `size`, the last one shorter; a block is good until the next one is taken."""
    buffer, held = memoryview(bytearray(size)), 0
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            if not held and len(rest) >= size:
                yield rest[:size]  # as it is, without a copy
                rest = rest[size:]
                continue
            count = min(size - held, len(rest))
            buffer[held : held + count] = rest[:count]
            held, rest = held + count, rest[count:]
            if held == size:
                yield buffer
                held = 0
    if held:
        yield buffer[:held]


def too_short(blob: str, held: int, wanted: int) -> CheckpointError:
    """The error about a blob that ends before the bytes that are wanted."""
    return CheckpointError(f"{blob} ends at byte {held} instead of {wanted} or later: take another checkpoint")
