"""The entity table that several trainers have together: each trains units of it that nobody else touches meanwhile."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from kgexp.sharding.exchange import ALONE, GroupExchange
from kgexp.sharding.handover import HandoverBacking, Place, Trainers, Withdrawn
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.rowfiles import Layout, RowFile, Rows
from kgexp.sharding.rows import TableSpec
from kgexp.sharding.slices import Slices
from kgexp.storage.blobs import Blobs


class JointTable(PartitionedTable):
    """Rows float[n, d] of which this trainer has those of some slices, and trains those of a unit.

    While a unit is open the table is this trainer's own, so a step asks nobody. Between units its rows are reduced and
    read over all trainers.

    Args:
        spec, slices, slots, background, pinned: see `PartitionedTable`. Every trainer has the pinned slices.
        trainers: the others.
        over: reduces over them.

    Attributes:
        places: where the newest rows of slices are that any trainer has stored, the same on all trainers between
            passes.
    """

    backing: HandoverBacking

    def __init__(
        self,
        spec: TableSpec,
        slices: Slices,
        slots: int,
        background: bool,
        pinned: Sequence[int],
        trainers: Trainers,
        over: GroupExchange,
    ) -> None:
        def backing(
            layout: Layout, slices: Slices, origin: Callable[[range, Rows], None], blobs: Blobs | None
        ) -> HandoverBacking:
            return HandoverBacking(layout, slices, origin, blobs, trainers)

        self.places: dict[int, Place] = {}
        self._trainers, self._pinned = trainers, tuple(pinned)
        super().__init__(spec, slices, slots, background, pinned, backing)
        self._fits = False  # no trainer has everything: what there is room for is drawn or taken when it is entered
        self.buffer.clear()
        self._over = self.exchange = over

    def begin(self) -> None:
        """A pass begins: the pinned slices are in memory, to be changed by whoever trains."""
        if not all(self.buffer.holds(k) for k in self._pinned):
            self.buffer.enter(self._pinned)
        self.buffer.touch(self._pinned)

    def open_unit(self, places: Mapping[int, Place]) -> None:
        """From now on the slices of a unit are this trainer's; `places` says where those have been that somebody has
        stored. They are fetched when they are entered."""
        self.exchange = ALONE
        self.backing.expect(places)

    def collect(self, slices: Iterable[int]) -> None:
        """Stores those slices of a unit here that were not entered in it."""
        self.backing.collect(slices)

    def store(self, slices: Iterable[int]) -> None:
        """Stores what has changed of some slices; they stay in memory."""
        self.buffer.store(slices)

    def leave(self, slices: Iterable[int]) -> None:
        """Stores what has changed of some slices, which need not be in memory any more."""
        self.buffer.leave(slices)

    def offer(self, token: int, slices: Iterable[int]) -> None:
        """The unit of this token is trained, and these of its slices are stored: others may take them."""
        self.backing.open_to_others(token, slices)

    def discard_old(self) -> None:
        """Nobody will want the rows any more that the unit began with."""
        self.backing.discard_old()

    def drop_unit(self, slices: Iterable[int]) -> None:
        """The unit was given to somebody else meanwhile: what has been trained is forgotten."""
        self.buffer.forget(slices)
        self.backing.withdraw(slices)

    def halt(self) -> None:
        """Nothing is fetched any more, and all that has changed is stored."""
        with self._trainers.halted():
            with suppress(Withdrawn):
                self.buffer.settle()
            self.buffer.flush(self._pinned)

    def between_units(self, places: Mapping[int, Place]) -> None:
        """All trainers are here, and know where all slices are."""
        self.exchange = self._over
        self.places = dict(places)
        self.backing.know(places)

    def shared_rows(self) -> dict[str, Tensor]:
        """The rows of the pinned slices, which every trainer has, and their optimizer state: views."""
        rows = sum(self.slices.size(k) for k in self._pinned)
        return {name: tensor.data[:rows] for name, tensor in self.buffer.tensors.items()}

    def read(self, ids: Tensor) -> Tensor:
        """See `Table.read`: rows come from the trainers that see to them."""
        wanted, place = torch.unique(ids.reshape(-1), return_inverse=True)
        owner = self._owners().to(wanted.device)[self.slices.of(wanted)]
        order = torch.argsort(owner, stable=True)
        ranks = self._over.ranks
        send = torch.bincount(owner, minlength=ranks).tolist()
        receive = self._over.all_to_all(torch.tensor(send), [1] * ranks, [1] * ranks).tolist()
        incoming = self._over.all_to_all(wanted[order], send, receive)
        rows = self._over.all_to_all(super().read(incoming), receive, send)
        return torch.empty_like(rows).index_copy_(0, order, rows).index_select(0, place).reshape(*ids.shape, self.dim)

    def commit(self, blobs: Blobs) -> Mapping[int, RowFile]:
        """See `PartitionedTable.commit`: those of the slices that this rank sees to; `committed` ends it."""
        self.buffer.flush(self._pinned if self._trainers.rank else ())
        return self.backing.commit_own(blobs, self.places)

    def committed(self, files: Mapping[int, RowFile]) -> None:
        """The checkpoint that names these files of all slices is there."""
        self.backing.committed(files)

    def adopt(self, files: Mapping[int, RowFile], blobs: Blobs) -> None:
        """See `PartitionedTable.adopt`."""
        super().adopt(files, blobs)
        self.places = {}

    def restart(self, origin: Callable[[range, Rows], None]) -> None:
        """See `PartitionedTable.restart`."""
        super().restart(origin)
        self.places = {}

    def begin_at_first(self) -> None:
        """Rank 0 alone has the checkpoint from which training goes on: every slice comes from there."""
        pinned = [self.slices.ids(k) for k in self._pinned]

        def elsewhere(ids: range, into: Rows) -> None:
            if ids not in pinned:  # these are spread below
                raise RuntimeError(f"the rows {ids.start} to {ids.stop - 1} were not taken from rank 0")

        if self._trainers.rank:
            self.restart(elsewhere)
        self.between_units({k: Place(0) for k in range(len(self.slices)) if k not in self._pinned})
        self.begin()
        self.spread(self.shared_rows().values())

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Makes tensors what they are at rank 0."""
        for tensor in tensors:
            mine = tensor.detach().to("cpu", torch.float64)
            tensor.copy_(self._over.all_sum(mine if self._trainers.rank == 0 else torch.zeros_like(mine)))

    def _own_slices(self) -> Iterable[int]:
        """See `PartitionedTable._own_slices`; during a unit nobody asks."""
        return (self._owners() == self._trainers.rank).nonzero()[:, 0].tolist()

    def _owners(self) -> Tensor:
        """int64[K]: who sees to the rows of each slice; to those that anybody can have, everybody to a part."""
        ranks, slices = self._trainers.ranks, len(self.slices)
        owners = {k: k * ranks // slices for k in range(slices)}
        owners |= {k: place.rank for k, place in self.places.items() if place.file is None}
        owners |= dict.fromkeys(self._pinned, 0)
        return torch.tensor([owners[k] for k in range(slices)])
