"""The table: rows with their optimizer state, behind four operations.

The training step is written against this contract alone, so it is the same five lines wherever rows live:

    rows = table.gather(route)      # the rows of the distinct ids that the step touches: a leaf that wants a gradient
    loss = ...                      # ordinary autograd over ordinary tensors
    loss.backward()
    table.update(route, rows.grad)  # the row optimizer, once per touched row

The route to the rows is planned from the ids alone, which may be done while the step before still computes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kgexp.sharding.exchange import Exchange
from kgexp.sharding.route import Route
from kgexp.team import Team


@dataclass(frozen=True)
class Block:
    """A contiguous piece of the rows that this process owns.

    Attributes:
        start: id of the first row.
        rows: float[k, d], a view of the table, or a copy where it is kept in another dtype: read only.
        grad: float[k, d], a view of the gradient buffer that the next `update` applies; None outside training.
    """

    start: int
    rows: Tensor
    grad: Tensor | None = None

    @property
    def stop(self) -> int:
        """One past the id of the last row."""
        return self.start + len(self.rows)


class Table(Protocol):
    """Rows float[n, d] spread over whoever owns them, each with the state of the row optimizer.

    Attributes:
        name: what messages and files call it, such as `entity`.
        num_rows, dim: n and d.
        bounds: rank r owns the rows `bounds[r] … bounds[r + 1] - 1`; where every rank holds all of them, rank 0 does.
        first_row, local_rows: number of this process's first row, and how many it has: those in `state_tensors`.
        exchange: reduces over the ranks that own rows.
        dtype, device: of what `gather` gives.
        team: the threads that share the work on rows.
    """

    name: str
    num_rows: int
    bounds: tuple[int, ...]
    first_row: int
    local_rows: int
    exchange: Exchange
    dim: int
    dtype: torch.dtype
    device: torch.device
    team: Team

    def gather(self, route: Route) -> Tensor:
        """The rows of `route.ids`: a fresh leaf float[u, d] that wants a gradient."""

    def read(self, ids: Tensor) -> Tensor:
        """Any ids int64[…] to their rows float[…, d], without gradient. Every rank calls it, with ids of its own."""

    def update(self, route: Route, grad: Tensor, factor: float = 1.0, step: int = 0) -> None:
        """Applies the row optimizer once to every row that any rank touched, at `factor` times its learning rate, in
        the training step number `step`, by which numbers kept in bfloat16 are rounded.

        `grad` float[u, d] belongs to `route.ids`; what was added to the gradient buffers of
        `local_blocks(..., grad=True)` since the last update is added to it."""
        self.begin_update(route, grad)(factor, step)

    def begin_update(self, route: Route, grad: Tensor) -> Callable[[float, int], None]:
        """Sends the gradient to those who need it; called with `factor` and `step`, the result ends the update."""

    def local_blocks(self, size: int, *, grad: bool = False, ids: range | None = None) -> Iterator[Block]:
        """The rows that this process owns, or those of them in a range of `ids`, in ascending blocks of at most `size`
        rows."""

    def candidate_blocks(self, size: int, *, grad: bool = False) -> Iterator[Block]:
        """Of these rows, the ones that training scores against when it scores against all: all of them, unless only
        some are in memory."""
        return self.local_blocks(size, grad=grad)

    @property
    def num_candidates(self) -> int:
        """How many these are, over all who own rows."""
        return self.num_rows

    def state_tensors(self) -> dict[str, Tensor]:
        """The rows and their optimizer state as tensors of this process's rows, by name: `weight`, and the
        state's names. Views, each in the dtype and on the device where it is kept: what is written into them is in
        the table. Where only some rows are in memory, of the places in memory."""
