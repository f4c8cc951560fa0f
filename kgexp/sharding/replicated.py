"""Tables that every rank holds whole, and keeps equal: relations, and with `sharding=replicated` entities too."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.optim.base import RowOptimizer
from kgexp.sharding.exchange import GroupExchange
from kgexp.sharding.local import LocalTable
from kgexp.sharding.route import Route
from kgexp.team import ONE, Team
from kgexp.transfer import sent


@dataclass(frozen=True)
class ReplicatedRoute(Route):
    """The rows that this rank wants, and those that any rank wants.

    Attributes:
        union: int64[v], distinct and ascending: the ids of all ranks.
        place: int64[u], where `ids` stand in `union`.
    """

    union: Tensor
    place: Tensor

    @classmethod
    def of(cls, ids: Tensor, everyones: Tensor) -> "ReplicatedRoute":
        """The route for the ids of this rank and those of all, in any order and number."""
        union = torch.unique(everyones)
        return cls(ids, union, torch.searchsorted(union, ids))

    def to(self, device: torch.device) -> "ReplicatedRoute":
        """See `Route.to`."""
        return ReplicatedRoute(sent(self.ids, device), sent(self.union, device), sent(self.place, device))


class ReplicatedTable(LocalTable):
    """All rows on every rank: gradients are summed over ranks, and every rank does the same update with the same bits.

    Args:
        over: the ranks that hold the table. The others are those of `LocalTable`.
    """

    def __init__(
        self,
        name: str,
        weight: Tensor,
        state: dict[str, Tensor],
        optimizer: RowOptimizer,
        over: GroupExchange,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        team: Team = ONE,
    ) -> None:
        super().__init__(name, weight, state, optimizer, dtype, seed, team)
        self.over = over

    def begin_update(self, route: Route, grad: Tensor) -> Callable[[float, int], None]:
        """See `Table.begin_update`."""
        assert isinstance(route, ReplicatedRoute)
        if self._rows.waiting is not None:
            ids, rest = route.ids[:0], grad[:0]  # nothing but what waits, once it is summed
            arriving = self.over.start_all_sum(self._rows.waiting.index_add_(0, route.ids, grad))
        else:
            ids, rest = route.union, grad.new_zeros(len(route.union), self.dim).index_copy_(0, route.place, grad)
            arriving = self.over.start_all_sum(rest)

        def finish(factor: float, step: int) -> None:
            arriving()
            self._rows.update(ids, rest, factor, step)

        return finish
