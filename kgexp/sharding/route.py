"""Which rows a step wants, and the way to them: known before any row is read."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kgexp.transfer import sent


@dataclass(frozen=True)
class Route:
    """The rows of a table that this process wants for a step.

    Attributes:
        ids: int64[u], distinct and ascending.
        planned: the same on the host, once `to` has sent `ids` to a device; else None.
    """

    ids: Tensor
    planned: Tensor | None = field(default=None, kw_only=True)

    @property
    def on_host(self) -> Tensor:
        """The ids on the host, for a table that has to look at them."""
        return self.ids if self.planned is None else self.planned

    def to(self, device: torch.device) -> "Route":
        """The same route with its tensors on a device, where `Table` wants them."""
        return Route(sent(self.ids, device), planned=self.ids)


@dataclass(frozen=True)
class Plan:
    """What ranks have told each other about a step, before it.

    Attributes:
        entity, relation: the routes to the rows of both tables.
        signals: those that have asked any rank to stop; none where there is but one, which knows its own.
    """

    entity: Route
    relation: Route
    signals: tuple[int, ...] = ()

    def to(self, device: torch.device) -> "Plan":
        """The same plan with its routes on a device."""
        if device.type == "cpu":
            return self
        return Plan(self.entity.to(device), self.relation.to(device), self.signals)


#: From the distinct ids int64[u], ascending, of entity rows and of relation rows to the plan of the step, on the host.
Planner = Callable[[Tensor, Tensor], Plan]


def local_plan(entity: Tensor, relation: Tensor) -> Plan:
    """The plan of a process that trains alone: see `Planner`."""
    return Plan(Route(entity), Route(relation))
