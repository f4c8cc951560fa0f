"""The entity table of partitioned training: a few slices in memory, every other one in storage."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgexp.sharding.backing import Backing
from kgexp.sharding.buffer import Buffer
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.itinerary import Visit
from kgexp.sharding.route import Route
from kgexp.sharding.rowfiles import Layout, RowFile, Rows
from kgexp.sharding.rows import FILL, WEIGHT, OwnRows, TableSpec, clipped
from kgexp.sharding.slices import Slices
from kgexp.sharding.table import Block, Table
from kgexp.storage.blobs import Blobs
from kgexp.storage.shards import NEAR

#: Makes a backing from what `Backing` takes.
MakeBacking = Callable[[Layout, Slices, Callable[[range, Rows], None], Blobs | None], Backing]


class PartitionedTable(Table):
    """Rows float[n, d] of which some slices are in memory: `gather` and `update` reach these alone, all else streams.

    Args:
        spec: of the table; its rows are drawn when they are first needed: all at once where there is room for all.
        slices: of its ids.
        slots: slices that have room in memory, beside the pinned ones.
        background: whether slices move while others are trained.
        pinned: slices that are in memory in every visit.
        backing: makes what has the rows that are not in memory.
    """

    def __init__(
        self,
        spec: TableSpec,
        slices: Slices,
        slots: int,
        background: bool,
        pinned: Sequence[int] = (),
        backing: MakeBacking = Backing,
    ) -> None:
        self.name, self.num_rows, self.dim = spec.name, spec.num_rows, spec.dim
        self.bounds, self.first_row = (0, spec.num_rows), 0
        self.exchange = Exchange()
        self.slices = slices
        self.backing = backing(
            _layout(spec), slices, partial(_draw, spec), None if spec.storage.in_memory else spec.storage.blobs()
        )
        placement = spec.placement
        self.buffer = Buffer(self.backing, slots, placement.device, background, pinned)
        state = {name: tensor for name, tensor in self.buffer.tensors.items() if name != WEIGHT}
        self._rows = OwnRows(
            spec.name,
            self.buffer.tensors[WEIGHT],
            state,
            spec.optimizer,
            dtype=placement.dtype,
            seed=spec.seed,
            numbers=self.buffer.numbers,
            team=spec.team,
        )
        self.local_rows = self._rows.num_rows
        self.dtype, self.device, self.team = self._rows.dtype, self._rows.device, spec.team
        self._candidates: tuple[int, ...] = ()
        self._fits = not background and slots + len(pinned) >= len(slices)
        self._enter_all()

    @property
    def layout(self) -> list[list[Any]]:
        """What a row consists of, as JSON values: name, dtype and shape of each tensor, in the order of its files."""
        return [[name, str(dtype), list(shape)] for name, (dtype, shape) in self.backing.layout.tensors.items()]

    def enter(self, visit: Visit, following: Sequence[int] = ()) -> None:
        """Makes the slices of a visit resident; those of the visit `following` are fetched meanwhile."""
        if visit.resident != self.buffer.resident:
            self.buffer.enter(visit.resident, following)
        self._candidates = tuple(sorted({*visit.heads, *visit.tails}))

    def gather(self, route: Route) -> Tensor:
        """See `Table.gather`; the rows have to be in memory."""
        return self._rows.read(self.buffer.places(route.on_host)).requires_grad_()

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`; rows that are not in memory are read from where they are."""
        self.buffer.settle()
        wanted, place = torch.unique(ids.reshape(-1), return_inverse=True)
        rows = torch.empty(len(wanted), self.dim, dtype=self.dtype, device=self.device)
        cut = torch.searchsorted(wanted.cpu(), torch.tensor(self.slices.bounds)).tolist()
        for k in range(len(self.slices)):
            if cut[k] < cut[k + 1]:
                part = slice(cut[k], cut[k + 1])
                rows[part] = self._read(k, wanted[part] - self.slices.bounds[k]).to(self.device, self.dtype)
        return rows.index_select(0, place).reshape(*ids.shape, self.dim)

    def begin_update(self, route: Route, grad: Tensor) -> Callable[[float, int], None]:
        """See `Table.begin_update`."""
        self.buffer.touch()
        places, ranges = self.buffer.places(route.on_host), self.buffer.ranges(self._candidates)

        def finish(factor: float, step: int) -> None:
            self._rows.update(places, grad, factor, step, ranges)

        return finish

    def local_blocks(self, size: int, *, grad: bool = False, ids: range | None = None) -> Iterator[Block]:
        """See `Table.local_blocks`: slices that are not in memory are streamed."""
        assert not grad, "only rows in memory have a gradient"
        self.buffer.settle()
        for k in self._own_slices():
            places = clipped(range(self.num_rows) if ids is None else ids, self.slices.ids(k))
            if places and self.buffer.holds(k):
                first = self.buffer.ranges([k])[0].start
                yield from self._rows.blocks(size, ranges=[range(first + places.start, first + places.stop)])
                continue
            for start in range(places.start, places.stop, size):
                rows = self.backing.read(k, WEIGHT, start, min(start + size, places.stop))
                yield Block(self.slices.bounds[k] + start, rows.to(self.device, self.dtype))

    def candidate_blocks(self, size: int, *, grad: bool = False) -> Iterator[Block]:
        """See `Table.candidate_blocks`."""
        return self._rows.blocks(size, grad=grad, ranges=self.buffer.ranges(self._candidates))

    @property
    def num_candidates(self) -> int:
        """See `Table.num_candidates`."""
        return sum(self.slices.size(k) for k in self._candidates)

    def state_tensors(self) -> dict[str, Tensor]:
        """See `Table.state_tensors`: of the places in memory."""
        return self._rows.state_tensors()

    def commit(self, blobs: Blobs) -> Mapping[int, RowFile]:
        """Durable files of all slices, beside which a checkpoint that names them will lie."""
        self.buffer.flush()
        return self.backing.commit(blobs)

    def committed(self, files: Mapping[int, RowFile]) -> None:
        """The checkpoint is there that names these files, of all slices."""

    def adopt(self, files: Mapping[int, RowFile], blobs: Blobs) -> None:
        """Goes on from files that a `commit` gave."""
        self.buffer.clear()
        self.backing.adopt(files, blobs)
        self._enter_all()

    def restart(self, origin: Callable[[range, Rows], None]) -> None:
        """Goes on from rows that `origin` fills in when they are needed."""
        self.buffer.clear()
        self.backing.restart(origin)
        self._enter_all()

    def _own_slices(self) -> Iterable[int]:
        """The slices that this process has to see to where all rows are looked at; ascending."""
        return range(len(self.slices))

    def _enter_all(self) -> None:
        """Makes all slices resident where there is room for all: who takes no visits finds every row."""
        if self._fits:
            self._candidates = tuple(range(len(self.slices)))
            self.buffer.enter(self._candidates)

    def _read(self, k: int, index: Tensor) -> Tensor:
        """Rows of a slice, counted from its first, ascending."""
        if self.buffer.holds(k):
            return self.buffer.rows(k)[WEIGHT].index_select(0, index)
        place, size = index.cpu(), max(1, FILL // self.dim)  # no more of it at a time than is drawn at a time
        near = max(1, NEAR // self.backing.layout.row_bytes(WEIGHT))
        rows = torch.empty(len(place), self.dim, dtype=self.backing.layout.tensors[WEIGHT][0])
        cuts = [0, *((place.diff() > near).nonzero()[:, 0] + 1).tolist(), len(place)]
        for start, end in pairwise(cuts):
            while start < end:
                first = int(place[start])
                stop = int(torch.searchsorted(place[:end], first + size))
                block = self.backing.read(k, WEIGHT, first, int(place[stop - 1]) + 1)
                torch.index_select(block, 0, place[start:stop] - first, out=rows[start:stop])
                start = stop
        return rows


def _layout(spec: TableSpec) -> Layout:
    """Of the weights and of the optimizer's state."""
    shapes = {WEIGHT: (1, spec.dim)} | spec.optimizer.state_shapes(1, spec.dim)
    dtype = partial(spec.placement.dtype_of, spec.optimizer)
    return Layout(spec.name, {name: (dtype(name), shape[1:]) for name, shape in shapes.items()})


def _draw(spec: TableSpec, ids: range, into: Rows) -> None:
    """The rows of a new table."""
    size = max(1, FILL // spec.dim)
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        drawn = spec.initial(np.arange(piece.start, piece.stop, dtype=np.int64))
        into[WEIGHT][start : start + len(piece)] = torch.from_numpy(drawn)
    for name, tensor in into.items():
        if name != WEIGHT:
            tensor.zero_()
