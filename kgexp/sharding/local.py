"""`sharding=none`: every row is in this process, in memory or in a memory-mapped file."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kgexp.optim.base import RowOptimizer
from kgexp.randomness import Float64, Int64
from kgexp.sharding.rows import OwnRows, Placement, new_rows
from kgexp.sharding.table import Block, Table
from kgexp.storage.base import Storage


class LocalTable(Table):
    """All rows of a table float[n, d]: the rows of a process that owns every one.

    Args:
        name: what messages and files call it, such as `entity`.
        weight: float[n, d]; becomes the table's own.
        state: the tensors of `optimizer.state_shapes(n, d)`.
        optimizer: what `update` applies.
        dtype: of computing; None is that of the weights.
        seed: of the rounding to bfloat16, where anything is kept in it.
    """

    def __init__(
        self,
        name: str,
        weight: Tensor,
        state: dict[str, Tensor],
        optimizer: RowOptimizer,
        dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        self._rows = OwnRows(name, weight, state, optimizer, 0, dtype, seed)
        self.name = name
        self.num_rows, self.dim = weight.shape
        self.bounds, self.first_row = (0, self.num_rows), 0
        self.dtype, self.device = self._rows.dtype, self._rows.device

    def gather(self, ids: Tensor) -> Tensor:
        """See `Table.gather`."""
        return self._rows.read(ids).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`."""
        return self._rows.read(ids.reshape(-1)).reshape(*ids.shape, self.dim)

    def update(self, ids: Tensor, grad: Tensor, factor: float = 1.0, step: int = 0) -> None:
        """See `Table.update`."""
        self._rows.update(ids, grad, factor, step)

    def local_blocks(self, size: int, *, grad: bool = False) -> Iterator[Block]:
        """See `Table.local_blocks`."""
        return self._rows.blocks(size, grad=grad)

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`."""
        return self._rows.state_tensors()


class LocalSharding:
    """Makes tables whose rows all live in this process.

    Args:
        state_device: `cpu` or `cuda`, where the optimizer state is kept; None is where the weights are.
    """

    def __init__(self, state_device: str | None = None) -> None:
        self._state_device = None if state_device is None else torch.device(state_device)

    def table(
        self,
        name: str,
        num_rows: int,
        dim: int,
        initial: Callable[[Int64], Float64],
        optimizer: RowOptimizer,
        storage: Storage,
        placement: Placement,
        seed: int = 0,
    ) -> LocalTable:
        """A new table `name` float[num_rows, dim], its rows drawn by `initial` (ids int64[u] to float64[u, dim]),
        its optimizer state zero, its memory taken from `storage`; `seed` is that of the rounding."""
        placement = replace(placement, state_device=self._state_device)
        weight, state = new_rows(name, range(num_rows), dim, initial, optimizer, storage, placement)
        return LocalTable(name, weight, state, optimizer, placement.dtype, seed)
