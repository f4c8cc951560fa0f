"""A table of many rows of which few are in memory, over and over: for measuring time, never for results."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from kgexp.sharding.exchange import Exchange
from kgexp.sharding.route import Route
from kgexp.sharding.rows import OwnRows, TableSpec, new_rows
from kgexp.sharding.table import Block, Table


class FoldedTable(Table):
    """Looks like float[n, d], but row i is row i mod k of the k in memory: all that is read, scored and updated takes
    the time that it takes in a table of n rows, as long as k rows are more than a processor's cache holds.

    Args:
        rows: the rows in memory.
        name: of the table.
        num_rows: n; it may be less than k.
        shown: share of any range of ids that its blocks are of, the first ones.
    """

    def __init__(self, rows: OwnRows, name: str, num_rows: int, shown: float = 1.0) -> None:
        self._rows, self._k, self._shown = rows, rows.num_rows, shown
        self.name, self.num_rows, self.dim = name, num_rows, rows.dim
        self.bounds, self.first_row, self.local_rows = (0, num_rows), 0, num_rows
        self.exchange = Exchange()
        self.dtype, self.device, self.team = rows.dtype, rows.device, rows.team

    @classmethod
    def of(cls, spec: TableSpec, k: int) -> "FoldedTable":
        """The table of a specification, with at most k rows in memory."""
        weight, state = new_rows(spec, range(min(k, spec.num_rows)))
        rows = OwnRows(spec.name, weight, state, spec.optimizer, 0, spec.placement.dtype, spec.seed, team=spec.team)
        return cls(rows, spec.name, spec.num_rows)

    def of_size(self, num_rows: int) -> "FoldedTable":
        """The same rows as a table of another size."""
        return FoldedTable(self._rows, self.name, num_rows)

    def showing(self, share: float) -> "FoldedTable":
        """The same table, whose blocks are of a share of the rows."""
        return FoldedTable(self._rows, self.name, self.num_rows, share)

    def gather(self, route: Route) -> Tensor:
        """See `Table.gather`."""
        return self._rows.read(route.ids % self._k).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`."""
        return self._rows.read(ids.reshape(-1) % self._k).reshape(*ids.shape, self.dim)

    def begin_update(self, route: Route, grad: Tensor) -> Callable[[float, int], None]:
        """See `Table.begin_update`; rows that fall together are updated in no order."""

        def finish(factor: float, step: int) -> None:
            ranges = [places for _, places in self._pieces(range(self.num_rows), self._k)]
            self._rows.update(route.ids % self._k, grad, factor, step, ranges)

        return finish

    def local_blocks(self, size: int, *, grad: bool = False, ids: range | None = None) -> Iterator[Block]:
        """See `Table.local_blocks`."""
        ids = range(self.num_rows) if ids is None else ids
        for start, places in self._pieces(ids[: math.ceil(self._shown * len(ids))], size):
            for block in self._rows.blocks(size, grad=grad, ranges=[places]):
                yield replace(block, start=start)

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`: of the rows in memory."""
        return self._rows.state_tensors()

    def _pieces(self, ids: range, size: int) -> Iterator[tuple[int, range]]:
        """Cuts consecutive ids into pieces of at most `size` that lie together in memory: first id, and the places."""
        start = ids.start
        while start < ids.stop:
            place = start % self._k
            length = min(size, self._k - place, ids.stop - start)
            yield start, range(place, place + length)
            start += length
