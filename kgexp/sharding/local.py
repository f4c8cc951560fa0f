"""`sharding=none`: every row is in this process, in memory or in a memory-mapped file."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from kgexp.optim.base import RowOptimizer
from kgexp.sharding.base import Sharding, TableSpec
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.owners import Owners
from kgexp.sharding.route import Plan, Route, local_plan
from kgexp.sharding.table import Block, Table
from kgexp.world import World

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
        self.bounds, self.first_row, self.local_rows = (0, self.num_rows), 0, self.num_rows
        self.exchange = Exchange()
        self.dtype = weight.dtype
        self.device = weight.device
        self._weight = weight
        self._state = state
        self._optimizer = optimizer
        self._grad: Tensor | None = None  # of all rows: made when a technique scores against all entities
        self._grad_in_use = False

    def gather(self, route: Route) -> Tensor:
        """See `Table.gather`."""
        return self._weight.index_select(0, route.ids).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`."""
        return self._weight.index_select(0, ids.reshape(-1)).reshape(*ids.shape, self.dim)

    def update(self, route: Route, grad: Tensor, factor: float = 1.0) -> None:
        """See `Table.update`."""
        if self._grad is not None and self._grad_in_use:
            self._grad.index_add_(0, route.ids, grad)
            self._optimizer.step(self._weight, self._state, None, self._grad, factor)
            self._grad.zero_()
            self._grad_in_use = False
        else:
            self._optimizer.step(self._weight, self._state, route.ids, grad, factor)

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


def new_rows(spec: TableSpec, rows: range, suffix: str = "") -> tuple[Tensor, dict[str, Tensor]]:
    """The rows `rows` of a new table, drawn, and their optimizer state, zero.

    Args:
        spec: the whole table.
        rows: those that are wanted.
        suffix: tells the files of this process from those of others, where the storage has files.
    """
    weight = spec.storage.empty(f"{spec.name}{suffix}.weight", (len(rows), spec.dim), spec.dtype, spec.device)
    size = max(1, _FILL // spec.dim)
    for start in range(0, len(rows), size):
        ids = np.arange(rows.start + start, min(rows.start + start + size, rows.stop), dtype=np.int64)
        weight[start : start + size] = torch.from_numpy(spec.initial(ids))
    state = {
        key: spec.storage.empty(f"{spec.name}{suffix}.{key}", shape, spec.dtype, spec.device).zero_()
        for key, shape in spec.optimizer.state_shapes(len(rows), spec.dim).items()
    }
    return weight, state


def local_table(spec: TableSpec) -> LocalTable:
    """A new table whose rows are all in this process."""
    return LocalTable(spec.name, *new_rows(spec, range(spec.num_rows)), spec.optimizer)


class LocalSharding(Sharding):
    """Makes tables whose rows all live in this process."""

    def open(self, world: World, device: torch.device) -> None:
        """See `Sharding.open`: there is nobody to connect to."""

    @property
    def exchange(self) -> Exchange:
        """See `Sharding.exchange`."""
        return Exchange()

    def owners(self, num_entities: int) -> Owners:
        """See `Sharding.owners`."""
        return Owners(num_entities, 1)

    def entity_table(self, spec: TableSpec) -> LocalTable:
        """See `Sharding.entity_table`."""
        return local_table(spec)

    def relation_table(self, spec: TableSpec) -> LocalTable:
        """See `Sharding.relation_table`."""
        return local_table(spec)

    def plan(self, entity: Tensor, relation: Tensor, signal: int = 0) -> Plan:
        """See `Sharding.plan`."""
        return local_plan(entity, relation)
