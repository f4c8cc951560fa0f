"""`sharding=rowwise` and `sharding=replicated`: tables over the ranks of a job, and the plan of a step among them."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kgexp.environment import device_identity
from kgexp.sharding.base import Sharding
from kgexp.sharding.exchange import Exchange, GroupExchange, Supposed
from kgexp.sharding.groups import connecting, gloo_group, nccl_group
from kgexp.sharding.local import local_table
from kgexp.sharding.owners import Owners
from kgexp.sharding.replicated import ReplicatedRoute, ReplicatedTable
from kgexp.sharding.route import Plan, Route, local_plan
from kgexp.sharding.rows import OwnRows, TableSpec, new_rows
from kgexp.sharding.rowwise import RowwiseRoute, RowwiseTable
from kgexp.sharding.table import Table
from kgexp.world import World


class DistributedSharding(Sharding, ABC):
    """What shardings over several ranks share; of one rank, tables are local.

    Two groups connect the ranks: one for rows and gradients, on the tables' device, and one on the CPU for the ids of
    the step to come, which another thread exchanges meanwhile.

    Args:
        ranks: processes of the job; `auto` is the launcher's number, else one a GPU, else two. Whoever starts the
            processes reads it.
        timeout: seconds that a rank waits for the others.
        state_device: `cpu` or `cuda`, where the optimizer state is kept; None is where the weights are.
    """

    _wire_dtype: torch.dtype | None = None

    def __init__(self, ranks: int | str = "auto", timeout: float = 300.0, state_device: str | None = None) -> None:
        self.ranks, self.timeout, self._state_device = ranks, timeout, state_device
        self._exchange: Exchange = Exchange()
        self._control: GroupExchange | None = None

    def open(self, world: World, device: torch.device) -> None:
        """See `Sharding.open`."""
        if world.size == 1:
            return
        with connecting(world, self.close):
            self._connect(world, device)

    def _connect(self, world: World, device: torch.device) -> None:
        """Makes both groups."""
        place, cpu = (world.rank, world.size, self.timeout), torch.device("cpu")
        self._control = GroupExchange(gloo_group(world.store, "control", *place, world.one_machine), cpu, world)
        devices = world.gather("the devices", device_identity(device))
        if device.type == "cuda" and len(set(devices)) == world.size:
            self._exchange = GroupExchange(
                nccl_group(world.store, "data", *place, device), device, world, self._wire_dtype
            )
        else:  # also where ranks share a GPU, which NCCL refuses
            group = gloo_group(world.store, "data", *place, world.one_machine)
            self._exchange = GroupExchange(group, cpu, world, self._wire_dtype)

    def suppose(self, ranks: int) -> None:
        """See `Sharding.suppose`."""
        self._exchange = Supposed(ranks)

    def close(self) -> None:
        """See `Sharding.close`."""
        for exchange in (self._control, self._exchange):
            if isinstance(exchange, GroupExchange):
                exchange.close()

    @property
    def exchange(self) -> Exchange:
        """See `Sharding.exchange`."""
        return self._exchange

    def owners(self, num_entities: int) -> Owners:
        """See `Sharding.owners`."""
        return Owners(num_entities, self._exchange.ranks)

    def relation_table(self, spec: TableSpec) -> Table:
        """See `Sharding.relation_table`: every rank holds all relations."""
        return self._replicated(spec)

    def plan(self, entity: Tensor, relation: Tensor, signal: int = 0) -> Plan:
        """See `Sharding.plan`. Two exchanges: of counts, with the signal, then of all ids."""
        if self._control is None:
            return local_plan(entity, relation)
        ranks, control = self._control.ranks, self._control
        # What goes to each rank: ids of the entities that concern it, then all of the relations.
        cut = self._cut(entity)
        message = torch.tensor([[count, len(relation), signal] for count in cut])
        got = control.all_to_all(message, [1] * ranks, [1] * ranks)
        counts = got[:, :2].tolist()
        parts = [part for ids in self._parts(entity, cut) for part in (ids, relation)]
        send = [count + len(relation) for count in cut]
        ids = control.all_to_all(torch.cat(parts), send, [sum(pair) for pair in counts])
        pieces = ids.split([count for pair in counts for count in pair])
        return Plan(
            entity=self._entity_route(entity, cut, torch.cat(pieces[::2]), [count for count, _ in counts]),
            relation=ReplicatedRoute.of(relation, torch.cat(pieces[1::2])),
            signals=tuple(code for code in got[:, 2].tolist() if code),
        )

    @abstractmethod
    def _cut(self, entity: Tensor) -> list[int]:
        """How many of the entity ids concern each rank."""

    @abstractmethod
    def _parts(self, entity: Tensor, cut: list[int]) -> list[Tensor]:
        """The entity ids that concern each rank."""

    @abstractmethod
    def _entity_route(self, entity: Tensor, cut: list[int], incoming: Tensor, receive: list[int]) -> Route:
        """The route to the entity rows, with the ids that the ranks have sent here."""

    def _replicated(self, spec: TableSpec) -> Table:
        """A table that every rank holds whole."""
        spec = spec.with_state_on(self._state_device)
        if not isinstance(self._exchange, GroupExchange):
            return local_table(spec)
        weight, state = new_rows(spec, range(spec.num_rows), f".{self._exchange.rank}")
        dtype, seed = spec.placement.dtype, spec.seed
        return ReplicatedTable(spec.name, weight, state, spec.optimizer, self._exchange, dtype, seed, spec.team)


class RowwiseSharding(DistributedSharding):
    """Every rank owns a contiguous range of the entity rows; relations are replicated.

    Args:
        ranks, timeout, state_device: see `DistributedSharding`.
        wire_dtype: `bfloat16` halves what entity rows and their gradients weigh on their way, and rounds them; None
            does not.
    """

    def __init__(
        self,
        ranks: int | str = "auto",
        timeout: float = 300.0,
        wire_dtype: str | None = None,
        state_device: str | None = None,
    ) -> None:
        super().__init__(ranks, timeout, state_device)
        self._wire_dtype = None if wire_dtype is None else getattr(torch, wire_dtype)
        self._num_entities = 0

    def entity_table(self, spec: TableSpec) -> Table:
        """See `Sharding.entity_table`."""
        spec = spec.with_state_on(self._state_device)
        if not isinstance(self._exchange, GroupExchange):
            return local_table(spec)
        self._num_entities = spec.num_rows
        owners, rank = self.owners(spec.num_rows), self._exchange.rank
        first, end = owners.bounds[rank], owners.bounds[rank + 1]
        weight, state = new_rows(spec, range(first, end), f".{rank}")
        dtype, seed = spec.placement.dtype, spec.seed
        own = OwnRows(spec.name, weight, state, spec.optimizer, first, dtype, seed, team=spec.team)
        return RowwiseTable(spec.name, own, owners, self._exchange)

    def _cut(self, entity: Tensor) -> list[int]:
        assert self._num_entities, "the table comes before the plan"
        return self.owners(self._num_entities).cut(entity)

    def _parts(self, entity: Tensor, cut: list[int]) -> list[Tensor]:
        return list(entity.split(cut))

    def _entity_route(self, entity: Tensor, cut: list[int], incoming: Tensor, receive: list[int]) -> Route:
        first = self.owners(self._num_entities).bounds[self._exchange.rank]
        return RowwiseRoute.of(entity, cut, incoming - first, receive)


class ReplicatedSharding(DistributedSharding):
    """Plain data parallelism: every rank holds every row, and all do the same updates."""

    def owners(self, num_entities: int) -> Owners:
        """See `Sharding.owners`: no rank needs another for its rows."""
        return Owners(num_entities, 1)

    def entity_table(self, spec: TableSpec) -> Table:
        """See `Sharding.entity_table`."""
        return self._replicated(spec)

    def _cut(self, entity: Tensor) -> list[int]:
        return [len(entity)] * self._exchange.ranks

    def _parts(self, entity: Tensor, cut: list[int]) -> list[Tensor]:
        return [entity] * len(cut)

    def _entity_route(self, entity: Tensor, cut: list[int], incoming: Tensor, receive: list[int]) -> Route:
        return ReplicatedRoute.of(entity, incoming)
