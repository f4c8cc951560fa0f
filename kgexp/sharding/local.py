"""`sharding=none`: every row is in this process, in memory or in a memory-mapped file."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from kgexp.optim.base import RowOptimizer
from kgexp.sharding.base import Sharding
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.owners import Owners
from kgexp.sharding.route import Plan, Route, local_plan
from kgexp.sharding.rows import OwnRows, TableSpec, new_rows
from kgexp.sharding.table import Block, Table
from kgexp.team import ONE, Team
from kgexp.world import World


class LocalTable(Table):
    """All rows of a table float[n, d]: the rows of a process that owns every one.

    Args:
        name: what messages and files call it, such as `entity`.
        weight: float[n, d]; becomes the table's own.
        state: the tensors of `optimizer.state_shapes(n, d)`.
        optimizer: what `update` applies.
        dtype: of computing; None is that of the weights.
        seed: of the rounding to bfloat16, where anything is kept in it.
        team: the threads that share the work on rows.
    """

    def __init__(
        self,
        name: str,
        weight: Tensor,
        state: dict[str, Tensor],
        optimizer: RowOptimizer,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        team: Team = ONE,
    ) -> None:
        self._rows = OwnRows(name, weight, state, optimizer, 0, dtype, seed, team=team)
        self.name = name
        self.num_rows, self.dim = weight.shape
        self.bounds, self.first_row, self.local_rows = (0, self.num_rows), 0, self.num_rows
        self.exchange = Exchange()
        self.dtype, self.device, self.team = self._rows.dtype, self._rows.device, team

    def gather(self, route: Route) -> Tensor:
        """See `Table.gather`."""
        return self._rows.read(route.ids).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`."""
        return self._rows.read(ids.reshape(-1)).reshape(*ids.shape, self.dim)

    def begin_update(self, route: Route, grad: Tensor) -> Callable[[float, int], None]:
        """See `Table.begin_update`."""
        return partial(self._rows.update, route.ids, grad)

    def local_blocks(self, size: int, *, grad: bool = False, ids: range | None = None) -> Iterator[Block]:
        """See `Table.local_blocks`."""
        return self._rows.blocks(size, grad=grad, ranges=self._rows.own(ids))

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`."""
        return self._rows.state_tensors()


def local_table(spec: TableSpec, suffix: str = "") -> LocalTable:
    """A new table whose rows are all in this process; for `suffix` see `new_rows`."""
    weight, state = new_rows(spec, range(spec.num_rows), suffix)
    return LocalTable(spec.name, weight, state, spec.optimizer, spec.placement.dtype, spec.seed, spec.team)


class OneProcess(Sharding):
    """What shardings of one process share: nobody to connect to, no rows to wait for."""

    def open(self, world: World, device: torch.device) -> None:
        """See `Sharding.open`: there is nobody to connect to."""

    def suppose(self, ranks: int) -> None:
        """See `Sharding.suppose`: there is one process."""

    def close(self) -> None:
        """See `Sharding.close`."""

    @property
    def exchange(self) -> Exchange:
        """See `Sharding.exchange`."""
        return Exchange()

    def owners(self, num_entities: int) -> Owners:
        """See `Sharding.owners`."""
        return Owners(num_entities, 1)

    def plan(self, entity: Tensor, relation: Tensor, signal: int = 0) -> Plan:
        """See `Sharding.plan`."""
        return local_plan(entity, relation)


class LocalSharding(OneProcess):
    """Makes tables whose rows all live in this process.

    Args:
        state_device: `cpu` or `cuda`, where the optimizer state is kept; None is where the weights are.
    """

    def __init__(self, state_device: str | None = None) -> None:
        self._state_device = state_device

    def entity_table(self, spec: TableSpec) -> LocalTable:
        """See `Sharding.entity_table`."""
        return local_table(spec.with_state_on(self._state_device))

    def relation_table(self, spec: TableSpec) -> LocalTable:
        """See `Sharding.relation_table`."""
        return local_table(spec.with_state_on(self._state_device))
