"""`sharding=partitioned`: some slices of the entity rows are in memory, every other one is in storage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgexp.data.vocabulary import EntityType
from kgexp.errors import ConfigError, meant
from kgexp.sharding.backing import Backing, Layout, RowFile, Rows
from kgexp.sharding.base import Sharding
from kgexp.sharding.buffer import Buffer
from kgexp.sharding.covering import Bool
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.itinerary import Itinerary, Visit
from kgexp.sharding.local import local_table
from kgexp.sharding.owners import Owners
from kgexp.sharding.partitions import Partitions
from kgexp.sharding.route import Plan, Route, local_plan
from kgexp.sharding.rows import FILL, WEIGHT, OwnRows, TableSpec, clipped
from kgexp.sharding.slices import Slices
from kgexp.sharding.table import Block, Table
from kgexp.storage.blobs import Blobs
from kgexp.storage.shards import NEAR
from kgexp.world import World


class PartitionedTable(Table):
    """Rows float[n, d] of which some slices are in memory: `gather` and `update` reach these alone, all else streams.

    Args:
        spec: of the table; its rows are drawn when they are first needed: all at once where there is room for all.
        slices: of its ids.
        slots: slices that have room in memory, beside the pinned ones.
        background: whether slices move while others are trained.
        pinned: slices that are in memory in every visit.
    """

    def __init__(
        self, spec: TableSpec, slices: Slices, slots: int, background: bool, pinned: Sequence[int] = ()
    ) -> None:
        self.name, self.num_rows, self.dim = spec.name, spec.num_rows, spec.dim
        self.bounds, self.first_row = (0, spec.num_rows), 0
        self.exchange = Exchange()
        self.slices = slices
        self.backing = Backing(
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
        )
        self.local_rows = self._rows.num_rows
        self.dtype, self.device = self._rows.dtype, self._rows.device
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
        return self._rows.read(self.buffer.places(route.ids)).requires_grad_()

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
        places, ranges = self.buffer.places(route.ids), self.buffer.ranges(self._candidates)

        def finish(factor: float, step: int) -> None:
            self._rows.update(places, grad, factor, step, ranges)

        return finish

    def local_blocks(self, size: int, *, grad: bool = False, ids: range | None = None) -> Iterator[Block]:
        """See `Table.local_blocks`: slices that are not in memory are streamed."""
        assert not grad, "only rows in memory have a gradient"
        self.buffer.settle()
        for k in range(len(self.slices)):
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


class PartitionedSharding(Sharding):
    """Trains tables larger than memory: partition by partition, each made of slices that every pass groups anew.

    Args:
        partitions: into which the entities are cut, those of each type, P; a type that is one stays in memory.
        buffer: how many are in memory to be trained, beside those that stay, B; all of them where there are fewer.
        slices: ranges of ids that make up a partition.
        order: in which partitions come, see `orders`.
        mix: see `Itinerary`.
        spread: see `Itinerary`.
        chunks: passes that an epoch is cut into; each has its part of every bucket.
        holdout: share of the triples of every bucket that are never trained.
        prefetch: whether another thread moves slices while others are trained; it needs room for one partition more.
        workers: threads that train steps at once.
        type_partitions: partitions of types that are cut in another number, by name.
    """

    def __init__(
        self,
        partitions: int,
        buffer: int = 4,
        slices: int = 1,
        order: str = "covering",
        mix: bool = True,
        spread: bool = True,
        chunks: int = 1,
        holdout: float = 0.0,
        prefetch: bool = True,
        workers: int = 1,
        type_partitions: Mapping[str, int] | None = None,
    ) -> None:
        self._partitions, self._buffer, self._slices = partitions, buffer, slices
        self.order, self.mix, self.spread = order, mix, spread
        self.chunks, self.holdout, self.prefetch, self.workers = chunks, holdout, prefetch, workers
        self._of_types = dict(type_partitions or {})
        self._types: Sequence[EntityType] = ()
        self._joined: Bool = np.ones((1, 1), dtype=bool)

    def divide(self, types: Sequence[EntityType], joined: Bool) -> None:
        """Takes the types of the entities before anything is cut, and which (head type, tail type) a relation joins:
        bool[T, T]. Without it there is one.

        Raises:
            ConfigError: partitions are set for a type that there is not.
        """
        names = [name for name, _, _ in types]
        for name in self._of_types:
            if name not in names:
                raise ConfigError(
                    f"sharding.type_partitions names {name}, but the types of dataset.relation_types are "
                    f"{', '.join(names)}{meant(name, names)}"
                )
        self._types, self._joined = types, joined

    def cut(self, num_entities: int) -> Partitions:
        """How the entities are cut."""
        types = self._types or (EntityType("entity", 0, num_entities),)
        counts = [self._of_types.get(name, self._partitions) for name, _, _ in types]
        ranges = [range(start, stop) for _, start, stop in types]
        return Partitions.of(ranges, counts, self._buffer, self._slices, self._joined)

    def open(self, world: World, device: torch.device) -> None:
        """See `Sharding.open`: there is nobody to connect to."""

    def close(self) -> None:
        """See `Sharding.close`."""

    @property
    def exchange(self) -> Exchange:
        """See `Sharding.exchange`."""
        return Exchange()

    def owners(self, num_entities: int, ranks: int | None = None) -> Owners:
        """See `Sharding.owners`."""
        return Owners(num_entities, 1)

    def slices(self, num_entities: int) -> Slices:
        """The ranges of ids that this makes."""
        return self.cut(num_entities).slices

    def itinerary(self, num_entities: int, seed: int) -> Itinerary:
        """Which slices are in memory when, and what is trained meanwhile."""
        cut = self.cut(num_entities)
        return Itinerary(
            sum(cut.coming),
            cut.parts,
            cut.buffer,
            self.order,
            seed,
            mix=self.mix,
            spread=self.spread,
            needed=cut.needed,
            pinned=cut.pinned,
            types=cut.coming,
        )

    def ahead(self, num_entities: int) -> bool:
        """Whether another thread fetches what comes next: where all is in memory nothing does."""
        cut = self.cut(num_entities)
        return self.prefetch and cut.buffer < sum(cut.coming)

    def slots(self, num_entities: int) -> int:
        """Slices that have room in memory, beside those that stay."""
        cut = self.cut(num_entities)
        return (cut.buffer + self.ahead(num_entities)) * cut.parts

    def rows_in_memory(self, num_entities: int, ranks: int | None = None) -> int:
        """See `Sharding.rows_in_memory`."""
        cut = self.cut(num_entities)
        stay = sum(cut.slices.size(k) for k in cut.pinned)
        return stay + self.slots(num_entities) * cut.slices.largest_but(cut.pinned)

    def entity_table(self, spec: TableSpec) -> PartitionedTable:
        """See `Sharding.entity_table`."""
        n, cut = spec.num_rows, self.cut(spec.num_rows)
        return PartitionedTable(spec, cut.slices, self.slots(n), self.ahead(n), cut.pinned)

    def relation_table(self, spec: TableSpec) -> Table:
        """See `Sharding.relation_table`: relations are in memory."""
        return local_table(spec)

    def plan(self, entity: Tensor, relation: Tensor, signal: int = 0) -> Plan:
        """See `Sharding.plan`."""
        return local_plan(entity, relation)
