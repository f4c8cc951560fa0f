"""A table whose rows are spread over ranks: distinct ids go to their owners, rows come back, gradients go home."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.sharding.exchange import GroupExchange
from kgexp.sharding.owners import Owners
from kgexp.sharding.route import Route
from kgexp.sharding.rows import OwnRows
from kgexp.sharding.table import Block, Table
from kgexp.transfer import sent


@dataclass(frozen=True)
class RowwiseRoute(Route):
    """The rows that this rank wants from their owners, and those that the others want from it.

    Attributes:
        send: how many of `ids` each rank owns.
        receive: how many of this rank's rows each rank wants.
        incoming: int64[Σ receive], which rows of this rank these are, those that rank 0 wants first.
        touched: int64[v], the distinct ones of them, ascending.
        slots: for each rank, where its rows stand in `touched`.
    """

    send: Sequence[int]
    receive: Sequence[int]
    incoming: Tensor
    touched: Tensor
    slots: Sequence[Tensor]

    @classmethod
    def of(cls, ids: Tensor, send: Sequence[int], incoming: Tensor, receive: Sequence[int]) -> "RowwiseRoute":
        """The route for the ids of this rank, and for what the others want of its rows, numbered from its first."""
        touched, place = torch.unique(incoming, return_inverse=True)
        return cls(ids, send, receive, incoming, touched, place.split(list(receive)))

    def to(self, device: torch.device) -> "RowwiseRoute":
        """See `Route.to`."""
        ids, incoming, touched = (sent(x, device) for x in (self.ids, self.incoming, self.touched))
        slots = sent(torch.cat(list(self.slots)), device).split(list(self.receive))
        return RowwiseRoute(ids, self.send, self.receive, incoming, touched, slots)


class RowwiseTable(Table):
    """Rows float[n, d], of which this rank holds a contiguous range.

    Args:
        name: what messages and files call it.
        own: the rows of this rank.
        owners: who has which rows.
        exchange: over the ranks that own rows.
    """

    def __init__(self, name: str, own: OwnRows, owners: Owners, exchange: GroupExchange) -> None:
        self.name, self.dim, self.dtype, self.device = name, own.dim, own.dtype, own.device
        self.team = own.team
        self.num_rows, self.bounds = owners.num_rows, owners.bounds
        self.first_row, self.local_rows = own.first_row, own.num_rows
        self.exchange: GroupExchange = exchange
        self._own, self._owners = own, owners

    def gather(self, route: Route) -> Tensor:
        """See `Table.gather`."""
        assert isinstance(route, RowwiseRoute)
        return self._from_owners(route).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`."""
        wanted, place = torch.unique(ids.reshape(-1), return_inverse=True)
        send = self._owners.cut(wanted)
        one_each = [1] * self.exchange.ranks
        receive = self.exchange.all_to_all(torch.tensor(send, device=self.device), one_each, one_each).tolist()
        incoming = self.exchange.all_to_all(wanted, send, receive) - self.first_row
        # Never rounded: what is read is compared with rows that are nobody's message.
        rows = self.exchange.all_to_all(self._own.read(incoming), receive, send)
        return rows.index_select(0, place).reshape(*ids.shape, self.dim)

    def begin_update(self, route: Route, grad: Tensor) -> Callable[[float, int], None]:
        """See `Table.begin_update`."""
        assert isinstance(route, RowwiseRoute)
        arriving = self.exchange.start_rows(grad, route.send, route.receive)

        def finish(factor: float, step: int) -> None:
            total = grad.new_zeros(len(route.touched), self.dim)
            # One rank after the other: the order of the additions is fixed, and no two threads add to the same row.
            for slot, part in zip(route.slots, arriving().split(list(route.receive)), strict=True):
                total.index_add_(0, slot, part)
            self._own.update(route.touched, total, factor, step)

        return finish

    def local_blocks(self, size: int, *, grad: bool = False, ids: range | None = None) -> Iterator[Block]:
        """See `Table.local_blocks`."""
        return self._own.blocks(size, grad=grad, ranges=self._own.own(ids))

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`."""
        return self._own.state_tensors()

    def _from_owners(self, route: RowwiseRoute) -> Tensor:
        return self.exchange.rows(self._own.read(route.incoming), route.receive, route.send)
