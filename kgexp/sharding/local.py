"""`sharding=none`: every row is in this process, in memory or in a memory-mapped file."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from kgexp.optim.base import RowOptimizer
from kgexp.randomness import Float64, Int64
from kgexp.sharding.table import Block, Table
from kgexp.storage.base import Storage

#: Numbers drawn at a time when a table is filled.
_FILL = 1 << 22


class LocalTable(Table):
    """All rows of a table float[n, d] in one tensor.

    Args:
        name: what messages and files call it, such as `entity`.
        weight: float[n, d]; becomes the table's own.
        state: the tensors of `optimizer.state_shapes(n, d)`.
        optimizer: what `update` applies.
    """

    def __init__(self, name: str, weight: Tensor, state: dict[str, Tensor], optimizer: RowOptimizer) -> None:
        self.name = name
        self.num_rows, self.dim = weight.shape
        self.bounds, self.first_row = (0, self.num_rows), 0
        self.dtype = weight.dtype
        self.device = weight.device
        self._weight = weight
        self._state = state
        self._optimizer = optimizer
        self._grad: Tensor | None = None  # of all rows: made when a technique scores against all entities
        self._grad_in_use = False

    def gather(self, ids: Tensor) -> Tensor:
        """See `Table.gather`."""
        return self._weight.index_select(0, ids).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`."""
        return self._weight.index_select(0, ids.reshape(-1)).reshape(*ids.shape, self.dim)

    def update(self, ids: Tensor, grad: Tensor, factor: float = 1.0) -> None:
        """See `Table.update`."""
        if self._grad is not None and self._grad_in_use:
            self._grad.index_add_(0, ids, grad)
            self._optimizer.step(self._weight, self._state, None, self._grad, factor)
            self._grad.zero_()
            self._grad_in_use = False
        else:
            self._optimizer.step(self._weight, self._state, ids, grad, factor)

    def local_blocks(self, size: int, *, grad: bool = False) -> Iterator[Block]:
        """See `Table.local_blocks`."""
        if grad:
            if self._grad is None:
                self._grad = torch.zeros_like(self._weight)
            self._grad_in_use = True
        for start in range(0, self.num_rows, size):
            piece = slice(start, start + size)
            yield Block(start, self._weight[piece], self._grad[piece] if grad and self._grad is not None else None)

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`."""
        return {"weight": self._weight, **self._state}


class LocalSharding:
    """Makes tables whose rows all live in this process."""

    def table(
        self,
        name: str,
        num_rows: int,
        dim: int,
        initial: Callable[[Int64], Float64],
        optimizer: RowOptimizer,
        storage: Storage,
        dtype: torch.dtype,
        device: torch.device,
    ) -> LocalTable:
        """A new table `name` float[num_rows, dim], its rows drawn by `initial` (ids int64[u] to float64[u, dim]),
        its optimizer state zero, its memory taken from `storage`."""
        weight = storage.empty(f"{name}.weight", (num_rows, dim), dtype, device)
        size = max(1, _FILL // dim)
        for start in range(0, num_rows, size):
            ids = np.arange(start, min(start + size, num_rows), dtype=np.int64)
            weight[start : start + size] = torch.from_numpy(initial(ids))
        state = {
            key: storage.empty(f"{name}.{key}", shape, dtype, device).zero_()
            for key, shape in optimizer.state_shapes(num_rows, dim).items()
        }
        return LocalTable(name, weight, state, optimizer)
