"""`storage=memory`: tables in the memory of the process or of its GPU."""

from pathlib import Path

import torch
from torch import Tensor

from kgexp.storage.base import CHECKPOINTS, Storage
from kgexp.storage.blobs import Blobs, LocalBlobs


class MemoryStorage(Storage):
    """Plain allocation: as fast as it gets, and as large as the device."""

    in_memory = True

    def __init__(self) -> None:
        self._folder: Path | None = None

    def open(self, folder: Path) -> None:
        """See `Storage.open`."""
        self._folder = folder

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Storage.empty`."""
        return torch.empty(shape, dtype=dtype, device=device)

    def blobs(self) -> Blobs:
        """See `Storage.blobs`: in the run's folder."""
        if self._folder is None:
            raise RuntimeError("open the storage first")
        return LocalBlobs(self._folder / CHECKPOINTS)

    def close(self) -> None:
        """Nothing to give up: the memory goes with the tensors."""
