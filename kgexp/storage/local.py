"""`storage=local`: tables in memory-mapped files, for rows that do not fit the memory of the machine.

The operating system moves pages between the file and memory as rows are touched. The files are scratch of the
running process, not a checkpoint: they are made anew at every start and deleted at the end.
"""

import math
import shutil
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from kgexp.errors import ConfigError
from kgexp.storage.base import CHECKPOINTS, Storage
from kgexp.storage.blobs import Blobs, LocalBlobs


class LocalStorage(Storage):
    """A file `<path>/<name>.bin` for every tensor, sparse until it is written.

    Args:
        path: folder of the files, best on a fast local disk; None is `tables` in the run's folder. Processes
            that share it must give different names.
    """

    in_memory = False  # pages that are in memory can go back to their file

    def __init__(self, path: str | None = None) -> None:
        self._path = None if path is None else Path(path).expanduser()
        self._folder: Path | None = None
        self._files: list[Path] = []
        self._run: Path | None = None

    def open(self, folder: Path) -> None:
        """See `Storage.open`. Raises ConfigError where the folder cannot be made."""
        self._folder, self._run = self._path or folder / "tables", folder
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"storage.path: the folder {self._folder} for tables cannot be made ({error.strerror}): "
                "set storage.path to a folder that you can write to."
            ) from error

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Storage.empty`; zeros, in fact, as a new file is.

        Raises:
            ConfigError: a device other than the CPU, or a disk without room for the file.
        """
        if self._folder is None:
            raise RuntimeError("open the storage before taking tensors from it")
        if device.type != "cpu":
            raise ConfigError(
                f"storage=local keeps tables in files that only the CPU can address, not device {device}: "
                "set train.device=cpu or storage=memory."
            )
        size = math.prod(shape) * dtype.itemsize
        if size == 0:  # a rank that owns nothing is legal, an empty mapping is not
            return torch.empty(shape, dtype=dtype)
        file = self._folder / f"{name}.bin"
        # Unlinked, not emptied: to shrink a file under a process that still maps it would kill that process.
        file.unlink(missing_ok=True)
        self._check_room(file, size)
        self._files.append(file)
        return torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=dtype).view(shape)

    def blobs(self) -> Blobs:
        """See `Storage.blobs`: in the run's folder."""
        if self._run is None:
            raise RuntimeError("open the storage first")
        return LocalBlobs(self._run / CHECKPOINTS)

    def close(self) -> None:
        """Deletes the files, and the folder if that leaves it empty; tensors taken from them stay usable."""
        for file in self._files:
            file.unlink(missing_ok=True)
        self._files.clear()
        if self._folder is not None:
            with suppress(OSError):  # others' files are there, or another process was faster
                self._folder.rmdir()

    def _check_room(self, file: Path, size: int) -> None:
        """A full disk would otherwise show as a bus error, when the page that finds no room is written."""
        free = shutil.disk_usage(file.parent).free - sum(_unwritten(earlier) for earlier in self._files)
        if size > free:
            raise ConfigError(
                f"storage=local needs {size / 1e9:,.1f} GB for {file}, but the disk has "
                f"{max(free, 0) / 1e9:,.1f} GB left: set storage.path to a folder on a larger disk, "
                "or lower model.dim."
            )


def _unwritten(file: Path) -> int:
    """Bytes that the sparse file has promised and not yet taken from the disk."""
    status = file.stat()
    return max(0, status.st_size - 512 * status.st_blocks)
