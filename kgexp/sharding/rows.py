"""The rows of a table that a process owns: where their numbers are kept, and how a step reaches them.

Weights or optimizer state may be kept in bfloat16, and the state on another device than the weights; the optimizer
computes in one dtype on the weights' device all the same. What it computes with is then a copy of the touched rows,
some at a time, and rounding on the way back is stochastic.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kgexp.optim.base import ROWS, RowOptimizer
from kgexp.randomness import Float64, Int64, Purpose, key
from kgexp.sharding.rounding import rounded
from kgexp.sharding.table import Block
from kgexp.storage.base import Storage
from kgexp.team import ONE, Team, cut

#: Numbers drawn at a time when rows are filled; drawing holds several times as many in float64.
FILL = 1 << 18

#: Numbers of the rows that a thread updates at a time: its temporaries stay in a core's cache.
_NUMBERS = 1 << 17

#: What the weights are called among the tensors of the state.
WEIGHT = "weight"


@dataclass(frozen=True)
class Placement:
    """Where the numbers of a table are kept, and in which dtype.

    Attributes:
        device: of the weights; what is read and computed is there too.
        dtype: of what is read, of gradients, and of what the optimizer computes with.
        weight_dtype: of the weights where they are kept; None is `dtype`.
        state_dtype: of the optimizer state but for what the optimizer calls exact; None is `dtype`.
        state_device: of the optimizer state; None is `device`.
    """

    device: torch.device
    dtype: torch.dtype
    weight_dtype: torch.dtype | None = None
    state_dtype: torch.dtype | None = None
    state_device: torch.device | None = None

    def dtype_of(self, optimizer: RowOptimizer, name: str) -> torch.dtype:
        """In which a tensor is kept: the weights, or one of the optimizer's state by its name."""
        if name == WEIGHT:
            return self.weight_dtype or self.dtype
        return self.dtype if name in optimizer.exact_state else self.state_dtype or self.dtype


@dataclass(frozen=True)
class TableSpec:
    """A table that is to be made.

    Attributes:
        name: such as `entity`.
        num_rows, dim: its shape.
        initial: draws weights: ids int64[u] to float64[u, dim].
        optimizer: of its rows; says what state there is.
        storage: gives the memory.
        placement: of the numbers.
        seed: of the rounding.
        team: the threads that share the work on the rows.
    """

    name: str
    num_rows: int
    dim: int
    initial: Callable[[Int64], Float64]
    optimizer: RowOptimizer
    storage: Storage
    placement: Placement
    seed: int = 0
    team: Team = ONE

    def with_state_on(self, device: str | None) -> "TableSpec":
        """The same with the optimizer state on `cpu` or `cuda`; None is where the weights are."""
        state_device = None if device is None else torch.device(device)
        return replace(self, placement=replace(self.placement, state_device=state_device))


def new_rows(spec: TableSpec, ids: range, suffix: str = "") -> tuple[Tensor, dict[str, Tensor]]:
    """Rows of a new table: weights float[k, dim], drawn, and optimizer state, zero.

    Args:
        spec: the whole table.
        ids: numbers of the k rows in it.
        suffix: tells the files of this process from those of others, where the storage has files.
    """
    optimizer, storage, placement = spec.optimizer, spec.storage, spec.placement
    device, state_device = placement.device, placement.state_device or placement.device
    name, dim, initial = f"{spec.name}{suffix}", spec.dim, spec.initial
    weight = storage.empty(f"{name}.{WEIGHT}", (len(ids), dim), placement.dtype_of(optimizer, WEIGHT), device)
    size = max(1, FILL // dim)
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        drawn = initial(np.arange(piece.start, piece.stop, dtype=np.int64))
        weight[start : start + size] = torch.from_numpy(drawn)
    state = {
        part: storage.empty(f"{name}.{part}", shape, placement.dtype_of(optimizer, part), state_device).zero_()
        for part, shape in optimizer.state_shapes(len(ids), dim).items()
    }
    return weight, state


class OwnRows:
    """The contiguous rows of a table that this process owns, with their optimizer state.

    Args:
        name: of the table.
        weight: float[k, d]; becomes its own.
        state: the tensors of `optimizer.state_shapes(k, d)`, all of them on one device.
        optimizer: what a step applies.
        first_row: number of the first of the rows in the whole table.
        dtype: of computing; None is that of the weights. To keep numbers in bfloat16 it has to be float32.
        seed: of the rounding.
        numbers: int64[k], the numbers of the rows in the whole table where they do not follow from the first one's; the
            caller may change them.
        team: the threads that share an update.

    Attributes:
        num_rows, dim: k and d.
        dtype, device: of what is read.
    """

    def __init__(
        self,
        name: str,
        weight: Tensor,
        state: dict[str, Tensor],
        optimizer: RowOptimizer,
        first_row: int = 0,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        numbers: Tensor | None = None,
        team: Team = ONE,
    ) -> None:
        self.team = team
        self.num_rows, self.dim = weight.shape
        self.first_row, self._numbers = first_row, numbers
        self.dtype, self.device = dtype or weight.dtype, weight.device
        self._weight, self._state, self._optimizer = weight, state, optimizer
        self._tensors = {WEIGHT: weight, **state}
        if self.dtype != torch.float32 and any(t.dtype == torch.bfloat16 for t in self._tensors.values()):
            raise ValueError(f"numbers of {name} in bfloat16 are rounded from float32, not from {self.dtype}")
        self._in_place = all(t.dtype == self.dtype and t.device == self.device for t in self._tensors.values())
        self._streams = {k: key(seed, Purpose.ROUNDING, *f"{name}.{k}".encode()) for k in self._tensors}
        self._grad: Tensor | None = None  # of all rows: made when a technique scores against all entities
        self._grad_in_use = False

    def read(self, index: Tensor) -> Tensor:
        """The rows `index` int64[u], any of them, counted from the first own one: float[u, d] in fresh memory."""
        if not self._in_place or self.device.type != "cpu":
            return self._weight.index_select(0, index).to(self.dtype)
        rows = self._weight.new_empty(len(index), self.dim)

        def take(piece: slice) -> None:
            torch.index_select(self._weight, 0, index[piece], out=rows[piece])

        self.team.map(take, cut(len(index), self._at_once))
        return rows

    @property
    def waiting(self) -> Tensor | None:
        """The gradient float[k, d] of all rows that waits for the next update; None where there is none."""
        return self._grad if self._grad_in_use else None

    def own(self, ids: range | None) -> list[range] | None:
        """Of a range of ids, the own rows, counted from the first one: for `blocks`. None are all rows."""
        return None if ids is None else [clipped(ids, range(self.first_row, self.first_row + self.num_rows))]

    def blocks(self, size: int, *, grad: bool = False, ranges: Sequence[range] | None = None) -> Iterator[Block]:
        """See `Table.local_blocks`; rows that are kept in another dtype are copies. Of `ranges` of own rows, each of
        which stands for consecutive rows of the whole table; by default of all."""
        if grad:
            if self._grad is None:
                self._grad = torch.zeros(self._weight.shape, dtype=self.dtype, device=self.device)
            self._grad_in_use = True
        for rows in self._ranges(ranges):
            first = self.first_row + rows.start if self._numbers is None else int(self._numbers[rows.start])
            for start in range(rows.start, rows.stop, size):
                piece = slice(start, min(start + size, rows.stop))
                gradient = self._grad[piece] if grad and self._grad is not None else None
                yield Block(first + start - rows.start, self._weight[piece].to(self.dtype), gradient)

    def update(
        self,
        index: Tensor,
        grad: Tensor,
        factor: float = 1.0,
        step: int = 0,
        ranges: Sequence[range] | None = None,
    ) -> None:
        """A `step` on the rows `index` int64[u] with `grad` float[u, d], or on all rows, or those in `ranges`, where
        the buffers of `blocks(..., grad=True)` hold more of the gradient."""
        if self._grad is not None and self._grad_in_use:
            self._grad.index_add_(0, index, grad)
            for rows in self._ranges(ranges):
                piece = slice(rows.start, rows.stop)
                self.step(piece, self._grad[piece], factor, step)
                self._grad[piece].zero_()
            self._grad_in_use = False
        else:
            self.step(index, grad, factor, step)

    @torch.no_grad()
    def step(self, index: Tensor | slice, grad: Tensor, factor: float = 1.0, step: int = 0) -> None:
        """One step of the optimizer.

        Args:
            index: the u own rows, counted from the first one: int64[u], distinct, or a slice.
            grad: float[u, d] in the dtype of computing.
            factor: multiplies the learning rate.
            step: number of the training step, by which numbers are rounded.
        """

        def step_on(piece: slice) -> None:
            if isinstance(index, slice):
                which: slice | Tensor = slice(index.start + piece.start, index.start + piece.stop)
            else:
                which = index[piece]
            if self._in_place:
                self._step_in_place(which, grad[piece], factor)
            else:
                self._step_aside(which, grad[piece], factor, step)

        self.team.map(step_on, cut(len(grad), self._at_once))

    def _ranges(self, ranges: Sequence[range] | None) -> Sequence[range]:
        return (range(self.num_rows),) if ranges is None else ranges

    @property
    def _at_once(self) -> int:
        """Rows that a thread updates at a time; a GPU takes all of them, unless it works on copies."""
        if self.device.type == "cpu":
            return max(1, _NUMBERS // self.dim)
        return self.num_rows if self._in_place else ROWS

    def _step_in_place(self, which: slice | Tensor, grad: Tensor, factor: float) -> None:
        """The step on a few rows, in the tensors of the table."""
        weight, state = self._weight, self._state
        if isinstance(which, slice):
            weight, state = weight[which], {name: tensor[which] for name, tensor in state.items()}
        self._optimizer.step(weight, state, which if isinstance(which, Tensor) else None, grad, factor)

    def _step_aside(self, which: slice | Tensor, grad: Tensor, factor: float, step: int) -> None:
        """The step on a few rows, computed on a copy of them."""
        places = {t.device: which if isinstance(which, slice) else which.to(t.device) for t in self._tensors.values()}
        rows = {
            name: _take(tensor, places[tensor.device]).to(self.device, self.dtype)
            for name, tensor in self._tensors.items()
        }
        state = {name: rows[name] for name in self._state}
        self._optimizer.step(rows[WEIGHT], state, None, grad, factor)
        for name, tensor in self._tensors.items():
            new = rows[name]
            if tensor.dtype == torch.bfloat16:
                new = rounded(new, key(self._streams[name], step), self._ids(which))
            tensor[places[tensor.device]] = new.to(tensor.device, tensor.dtype)

    def _ids(self, which: slice | Tensor) -> Tensor:
        """Numbers int64[u] in the whole table."""
        if self._numbers is not None:
            return _take(self._numbers, which)
        if isinstance(which, slice):
            which = torch.arange(which.start, which.stop, device=self.device)
        return which + self.first_row

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`."""
        return dict(self._tensors)


def clipped(ids: range, rows: range) -> range:
    """The places in `rows` of those of its ids that are in `ids` too; both are contiguous."""
    return range(max(ids.start, rows.start) - rows.start, max(min(ids.stop, rows.stop) - rows.start, 0))


def _take(tensor: Tensor, which: slice | Tensor) -> Tensor:
    """Rows of a tensor; a slice gives a view."""
    # Faster than an index in brackets, on the CPU.
    return tensor[which] if isinstance(which, slice) else tensor.index_select(0, which)
