"""`storage=s3` and `storage=gcs`: blobs behind a URL, through fsspec, which knows these and many other file systems."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from kgexp.errors import CheckpointError, ConfigError
from kgexp.storage.blobs import TEMPORARY, Blobs, LocalBlobs, in_blocks, too_short
from kgexp.storage.memory import MemoryStorage
from kgexp.storage.retries import explained, taken, tried

T = TypeVar("T")

#: Bytes of a part of an upload; S3 takes ten thousand of them.
_BLOCK = 16 << 20
#: Bytes of a request for a range, and how many of them are on their way at a time.
_PIECE, _AT_A_TIME = 8 << 20, 8
#: Where an upload appears whole, and a name can be given to the first one who asks.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs"}
_S3 = {"s3", "s3a"}
_LOCAL = {"file", "local"}

_PACKAGES = {"s3": "'kgexp[s3]'", "s3a": "'kgexp[s3]'", "gs": "'kgexp[gcs]'", "gcs": "'kgexp[gcs]'"}


class RemoteStorage(MemoryStorage):
    """Absent partitions and checkpoints behind a URL; what is resident is plain memory.

    Args:
        url: a folder of the run's own, such as `s3://bucket/runs/first`.
        options: of fsspec's file system, such as `endpoint_url`. Credentials come from the environment alone.
        retries: tries after the first one, for what time-outs, broken connections, 5xx and throttling stopped.
    """

    in_memory = False  # what a run holds at a time are buffers, whatever the size of the tables

    def __init__(self, url: str, options: Mapping[str, Any], retries: int) -> None:
        super().__init__()
        self._url, self._options, self._retries = url, options, retries

    def blobs(self) -> Blobs:
        """See `Storage.blobs`; those behind the URL. Raises ConfigError where a package for them is missing."""
        protocol, _, path = self._url.partition("://")
        if protocol in _LOCAL:  # which knows how to sync
            return LocalBlobs(Path(path))
        return RemoteBlobs(self._url, self._options, self._retries)


class RemoteBlobs(Blobs):
    """An object for every blob.

    Uploads to S3 and Google Cloud Storage appear whole, and `create` is one conditional request. Other file systems get
    a temporary file that is moved, and `create` looks for the name first and moves last: of threads of one process one
    wins, but of two processes that create a name in the same instant both may.

    Args:
        url, options, retries: see `RemoteStorage`.
    """

    _creating = threading.Lock()

    def __init__(self, url: str, options: Mapping[str, Any], retries: int) -> None:
        """Makes the file system ready, without asking it anything.

        Raises:
            ConfigError: fsspec does not know the URL or the options, or the package for them is missing.
        """
        from fsspec.core import url_to_fs

        self._url, self._retries = url.rstrip("/"), retries
        protocol = url.partition("://")[0]
        self._whole = protocol in _OBJECT_STORES
        try:
            # Without caches, of listings and of file systems: other processes write here too.
            fresh = {"use_listings_cache": False, "skip_instance_cache": True}
            self._fs, root = url_to_fs(url, **fresh, **_requests_tried_again(protocol, options, retries))
        except ImportError as error:
            package = _PACKAGES.get(protocol, f"what fsspec needs for {protocol}://")
            raise ConfigError(f"storage.url={url} needs a package ({error}): pip install {package}.") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"storage.url={url} and its options mean nothing to fsspec: {error}.") from error
        if protocol in _S3:
            self._fs.retries = 1  # of s3fs, on top of the client's
        self._root = root.rstrip("/")

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> int:
        """See `Blobs.write`: one request, or an upload of several parts."""
        if self._whole:
            return self._upload(name, self._path(name), parts)
        temporary = f"{self._path(name)}.{os.getpid()}.{threading.get_ident()}{TEMPORARY}"
        self._call("written", name, self._fs.makedirs, temporary.rpartition("/")[0], True)
        try:
            size = self._upload(name, temporary, parts)
            self._call("written", name, self._fs.mv, temporary, self._path(name))
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(temporary)
            raise
        return size

    def read(self, name: str, start: int, into: memoryview) -> None:
        """See `Blobs.read`: several ranges at a time."""
        target = into.cast("B")
        starts = range(start, start + len(target), _PIECE)
        for first in range(0, len(starts), _AT_A_TIME):
            lows = list(starts[first : first + _AT_A_TIME])
            highs = [min(low + _PIECE, start + len(target)) for low in lows]
            try:
                pieces = self._call("read", name, self._ranges, self._path(name), lows, highs)
            except CheckpointError:
                self._check_length(name, start + len(target))  # a range behind the end is refused in many ways
                raise
            for low, high, piece in zip(lows, highs, pieces, strict=True):
                if len(piece) != high - low:
                    self._check_length(name, start + len(target))
                    raise CheckpointError(f"{self.describe(name)} sent {len(piece)} bytes of {high - low}: try again")
                target[low - start : high - start] = piece

    def size(self, name: str) -> int | None:
        """See `Blobs.size`."""
        try:
            info = self._call("looked up", name, self._fs.info, self._path(name), absent=True)
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See `Blobs.sizes`."""
        folder = prefix.rpartition("/")[0]
        top = self._path(folder).rstrip("/")
        try:
            found = self._call("listed", folder, lambda: self._fs.find(top, detail=True), absent=True)
        except FileNotFoundError:
            return {}
        sizes = {path.removeprefix(f"{self._root}/"): int(info["size"]) for path, info in sorted(found.items())}
        return {name: n for name, n in sizes.items() if name.startswith(prefix) and not name.endswith(TEMPORARY)}

    def delete(self, name: str) -> None:
        """See `Blobs.delete`."""
        with suppress(FileNotFoundError):
            self._call("deleted", name, self._fs.rm_file, self._path(name), absent=True)

    def sync(self, names: Iterable[str]) -> None:
        """See `Blobs.sync`: nothing is left to do, as a store says that it has a blob once it is durable."""

    def create(self, name: str, data: bytes) -> bool:
        """See `Blobs.create`, and the class on what is not atomic.

        Where the answer to the request that won is lost, the next try is told that the name is taken: who gets False
        reads the blob where it matters whether it is its own.
        """
        if self._whole:
            return self._created(name, data)
        with self._creating:
            if self.size(name) is not None:
                return False
            self.write(name, [data])
            return True

    def describe(self, name: str) -> str:
        """See `Blobs.describe`."""
        return f"{self._url}/{name}" if name else self._url

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _ranges(self, path: str, starts: list[int], ends: list[int]) -> list[bytes]:
        if len(starts) == 1:
            return [self._fs.cat_file(path, start=starts[0], end=ends[0])]
        pieces: list[bytes] = self._fs.cat_ranges([path] * len(starts), starts, ends, on_error="raise")
        return pieces

    def _created(self, name: str, data: bytes) -> bool:
        """Whether a conditional request made the blob."""

        def put() -> bool:
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except Exception as error:
                if taken(error):
                    return False
                raise
            return True

        return self._call("created", name, put)

    def _upload(self, name: str, path: str, parts: Iterable[bytes | memoryview]) -> int:
        """Writes the parts to a path; an object store shows them once all are there. Returns their bytes."""
        blocks = in_blocks(parts, _BLOCK)
        first = bytes(next(blocks, b""))
        if len(first) < _BLOCK:
            self._call("written", name, self._fs.pipe_file, path, first)
            return len(first)

        # The client makes each request of an upload again, not we: a file that failed cannot go on. Closing completes.
        file = self._once("written", name, lambda: self._fs.open(path, "wb", block_size=_BLOCK))
        try:
            size: int = self._once("written", name, file.write, first)
            for block in blocks:
                size += self._once("written", name, file.write, block)
            self._once("written", name, file.close)
        except BaseException:
            with suppress(Exception):
                file.discard()
            with suppress(AttributeError):
                file.closed = True  # or it would complete the upload when it is collected
            raise
        return size

    def _check_length(self, name: str, wanted: int) -> None:
        """Raises CheckpointError where a blob is missing or too short."""
        size = self.size(name)
        if size is None:
            raise CheckpointError(f"{self.describe(name)} is missing; take another checkpoint")
        if size < wanted:
            raise too_short(self.describe(name), size, wanted)

    def _call(self, done: str, name: str, function: Callable[..., T], *args: Any, absent: bool = False) -> T:
        """What the file system answers, after as many tries as it takes.

        Args:
            done: what should be done with the blob, for the error.
            absent: FileNotFoundError comes through.
        """
        return self._once(done, name, lambda: tried(lambda: function(*args), self._retries, name), absent=absent)

    def _once(self, done: str, name: str, function: Callable[..., T], *args: Any, absent: bool = False) -> T:
        """What the file system answers the first time."""
        try:
            return function(*args)
        except Exception as error:
            if absent and isinstance(error, FileNotFoundError):
                raise
            raise CheckpointError(f"{self.describe(name)} cannot be {done} {explained(error)}") from error


def _requests_tried_again(protocol: str, options: Mapping[str, Any], retries: int) -> dict[str, Any]:
    """The options, with which the client of S3 itself tries each request again, also those in the middle of an upload.

    That of Google Cloud Storage does so always, five times.
    """
    if protocol not in _S3:
        return dict(options)
    tries = {"mode": "standard", "total_max_attempts": retries + 1}
    return {**options, "config_kwargs": {"retries": tries, **options.get("config_kwargs", {})}}
