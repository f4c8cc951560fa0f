"""The contract of shardings: the choices of the group `sharding`."""

from typing import Protocol

import torch
from torch import Tensor

from kgexp.sharding.exchange import Exchange
from kgexp.sharding.owners import Owners
from kgexp.sharding.route import Plan
from kgexp.sharding.rows import TableSpec
from kgexp.sharding.table import Table
from kgexp.world import World


class Sharding(Protocol):
    """Decides where rows live, and how a step comes to them."""

    def open(self, world: World, device: torch.device) -> None:
        """Connects the ranks of the job, once, before anything else; `device` is where this one's rows will be."""

    def suppose(self, ranks: int) -> None:
        """Instead of `open`, for plans: answers as on the first of so many ranks, none of which is there."""

    def close(self) -> None:
        """Lets go of the other ranks, who may be waiting; may be called twice, and before `open`."""

    def owners(self, num_entities: int) -> Owners:
        """Who owns which of the entity rows."""

    def rows_in_memory(self, num_entities: int) -> int:
        """The most entity rows for which a rank has room in memory."""
        return max(self.owners(num_entities).sizes())

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
