"""The contract of shardings: the choices of the group `sharding`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kgexp.optim.base import RowOptimizer
from kgexp.randomness import Float64, Int64
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.owners import Owners
from kgexp.sharding.route import Plan
from kgexp.sharding.table import Table
from kgexp.storage.base import Storage
from kgexp.world import World


@dataclass(frozen=True)
class TableSpec:
    """A table that is to be made.

    Attributes:
        name: such as `entity`.
        num_rows, dim: its shape.
        initial: from ids int64[u] to new rows float64[u, dim].
        optimizer: of its rows.
        storage: where its memory comes from.
        dtype, device: of its rows.
    """

    name: str
    num_rows: int
    dim: int
    initial: Callable[[Int64], Float64]
    optimizer: RowOptimizer
    storage: Storage
    dtype: torch.dtype
    device: torch.device


class Sharding(Protocol):
    """Decides where rows live, and how a step comes to them."""

    def open(self, world: World, device: torch.device) -> None:
        """Connects the ranks of the job, once, before anything else; `device` is where this one's rows will be."""

    def owners(self, num_entities: int) -> Owners:
        """Who owns which of the entity rows."""

    def entity_table(self, spec: TableSpec) -> Table:
        """The new table of the entities, its rows drawn and its optimizer state zero."""

    def relation_table(self, spec: TableSpec) -> Table:
        """The same for relations."""

    def plan(self, entity: Tensor, relation: Tensor, signal: int = 0) -> Plan:
        """The routes to the distinct rows int64[u], ascending, that this rank's part of a step wants, and the signals
        to stop that ranks have got, of which this one's is `signal` (0 for none). Another thread than the one that
        trains may call it."""

    @property
    def exchange(self) -> Exchange:
        """Over all ranks that train."""
