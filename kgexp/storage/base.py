"""The contract of storages: room for a table's rows and their optimizer state."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kgexp.storage.blobs import Blobs, LocalBlobs


class Storage(Protocol):
    """Gives out tensors that nobody has filled yet, and takes the room back at the end of the run.

    Attributes:
        in_memory: whether what it gives out takes memory that nothing else can have.
    """

    in_memory: bool

    def open(self, folder: Path) -> None:
        """Prepares the storage for a run; `folder`, the run's own, is the place where none was configured."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An unfilled tensor of that shape, dtype and device; a `name` (`entity.weight`) is given once."""

    def blobs(self, folder: Path) -> Blobs:
        """Where a run's absent partitions and checkpoints lie; `folder`, the run's own, unless they lie elsewhere."""
        return LocalBlobs(folder)

    def close(self) -> None:
        """Gives up whatever outlives the process, such as files; may be called twice."""
