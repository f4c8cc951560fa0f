"""`storage=memory`: tables in the memory of the process or of its GPU."""

from pathlib import Path

import torch
from torch import Tensor

from kgexp.storage.base import Storage


class MemoryStorage(Storage):
    """Plain allocation: as fast as it gets, and as large as the device."""

    in_memory = True

    def open(self, folder: Path) -> None:
        """Nothing to prepare."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Storage.empty`."""
        return torch.empty(shape, dtype=dtype, device=device)

    def close(self) -> None:
        """Nothing to give up: the memory goes with the tensors."""
