"""Slices that trainers hand over to one another: from memory to memory, or through files that all of them reach.

A unit is what a trainer trains without anybody else on its slices. When it is complete its trainer keeps their rows
until whoever trains them next has taken them. So every slice is in one place, which its `Place` tells, and what a
trainer has beside its buffer is what it trained last: together they hold the table once.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from torch import Tensor

from kgexp.sharding.backing import Backing
from kgexp.sharding.rowfiles import Layout, RowFile, Rows
from kgexp.sharding.rows import WEIGHT
from kgexp.sharding.slices import Slices
from kgexp.storage.blobs import Blobs


@dataclass(frozen=True)
class Place:
    """Where the newest rows of a slice are.

    Attributes:
        rank: who has them.
        token: of the unit that has trained them last; 0: as they are there now.
        file: that holds them, where all ranks reach it.
    """

    rank: int
    token: int = 0
    file: RowFile | None = None

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Place":
        """From what `as_json` gave."""
        file = value["file"]
        return cls(value["rank"], value["token"], None if file is None else RowFile(**file))


class Trainers(Protocol):
    """The other trainers, as a backing knows them.

    Attributes:
        rank, ranks: which one this is, of how many.
        common: whether files that one of them writes are there for all.
    """

    rank: int
    ranks: int
    common: bool

    def take(self, k: int, place: Place, into: Rows, keep: bool = False) -> tuple[int, RowFile | None]:
        """Fills the tensors of a slice from the rank that has it, once it has: returns the bytes that came, or the file
        that holds the rows. The other one gives them up, unless it is to `keep` them.

        Raises:
            RankError: the rank has ended, or is silent.
            Withdrawn: nobody wants the rows any more.
        """

    def halted(self) -> AbstractContextManager[None]:
        """Meanwhile whoever waits for another trainer gives up, and gets `Withdrawn`."""


class Withdrawn(Exception):
    """What was waited for is not wanted any more."""


class HandoverBacking(Backing):
    """The slices of one table at one of several trainers.

    Args:
        layout, slices, origin, blobs: see `Backing`.
        trainers: the others.

    Attributes:
        received: bytes of rows that came from other trainers so far.
    """

    def __init__(
        self,
        layout: Layout,
        slices: Slices,
        origin: Callable[[range, Rows], None],
        blobs: Blobs | None,
        trainers: Trainers,
    ) -> None:
        super().__init__(layout, slices, origin, blobs)
        self.trainers = trainers
        self.received = 0
        self._held: set[int] = set()
        self._rooms: dict[int, dict[str, Tensor]] = {}  # the memory of what is kept, which may be for more rows
        self._spare: list[dict[str, Tensor]] = []
        self._expected: dict[int, Place] = {}
        self._tokens: dict[int, int] = {}  # of slices that others may take
        self._changed = threading.Condition()
        self._old: list[RowFile] = []  # superseded by the unit under way
        self._archive: dict[int, tuple[Place, RowFile]] = {}  # copies of what others have, for checkpoints

    def expect(self, places: Mapping[int, Place]) -> None:
        """Says where slices will have to be fetched from."""
        self._expected.update(places)

    @property
    def held(self) -> list[int]:
        """The slices whose newest rows are here, of those that any trainer has stored; ascending."""
        return sorted(self._held)

    def store(self, k: int, rows: Rows) -> None:
        """See `Backing.store`."""
        super().store(k, rows)
        self._held.add(k)

    def fetch(self, k: int, into: Rows) -> bool:
        """See `Backing.fetch`; the newest rows may be at another trainer, and not be ready yet."""
        place = self._expected.pop(k, None)
        if place is not None:
            self.know({k: place})
        if place is None or place.file is not None or place.rank == self.trainers.rank:
            if place is not None and place.token and k not in self._kept and k not in self._files:
                raise RuntimeError(f"slice {k} is said to be at rank {place.rank}, which does not have it")
            return super().fetch(k, into)
        size, file = self.trainers.take(k, place, into)
        self._forget(k)  # not before: who trains it first may have to take it from here
        self._held.add(k)
        if file is not None:
            self._files[k] = file
            return super().fetch(k, into)
        self.received += size
        return True

    def collect(self, slices: Iterable[int]) -> None:
        """Takes those of the slices that are still expected from other trainers."""
        for k in slices:
            if k in self._expected and self._expected[k].rank != self.trainers.rank:
                rows = self.layout.empty(self.slices.size(k))
                self.fetch(k, rows)
                self.store(k, rows)

    def open_to_others(self, token: int, slices: Iterable[int]) -> None:
        """The unit of that token is trained: these of its slices are stored, and may be taken."""
        with self._changed:
            self._tokens.update(dict.fromkeys(slices, token))
            self._changed.notify_all()

    def discard_old(self) -> None:
        """Deletes the files from which the unit began."""
        for file in self._old:
            assert self._place is not None
            self._place.delete(file.name)
        self._old.clear()

    def withdraw(self, slices: Iterable[int]) -> None:
        """The unit under way was somebody else's meanwhile: what was stored in it counts for nothing."""
        self._old.clear()
        for k in slices:
            self._tokens.pop(k, None)
            file = self._files.get(k)
            if file is not None and file.name not in self._committed and self._row_files.wrote(file):
                assert self._place is not None
                self._place.delete(file.name)
            self._forget(k)

    def know(self, places: Mapping[int, Place]) -> None:
        """Says where the newest rows of slices are: those in files that all reach can be read here as well."""
        for k, place in places.items():
            if place.file is not None and self._files.get(k) != place.file:
                self._forget(k)
                self._files[k] = place.file

    def place(self, k: int, token: int) -> Place:
        """Where a slice is that this trainer has stored."""
        return Place(self.trainers.rank, token, self._files.get(k) if self.has_common_files else None)

    @property
    def has_common_files(self) -> bool:
        """Whether all that is stored is in files that every trainer reaches."""
        return self.trainers.common and self._blobs is not None

    def offer(self, k: int, token: int, seconds: float) -> dict[str, Tensor] | RowFile | None:
        """A slice for another trainer, once the unit of that token is complete: its tensors, or the file that has them
        where all ranks reach it; None: not yet, after so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: token in (0, self._tokens.get(k)), seconds):
                return None
        if k in self._kept:
            return self._kept[k]
        if k in self._files and self.trainers.common:
            return self._files[k]
        rows = self.layout.empty(self.slices.size(k))
        super().fetch(k, rows)
        return rows

    def give_up(self, k: int, token: int) -> None:
        """Another trainer has taken the slice that it was offered; a file that it was offered is its own now."""
        with self._changed:
            if token not in (0, self._tokens.get(k)):
                return
            self._tokens.pop(k, None)
            file, common = self._files.get(k), self.trainers.common and k not in self._kept
            self._forget(k)
        if file is not None and not common and file.name not in self._committed and self._place is not None:
            self._place.delete(file.name)

    def commit_own(self, blobs: Blobs, places: Mapping[int, Place]) -> dict[int, RowFile]:
        """Durable files of the slices for which this rank has to see, for a checkpoint: those that it has; rank 0
        also of those that nobody has and, where ranks have no files in common, of all others."""
        first, own, files = self.trainers.rank == 0, [], {}
        for k in range(len(self.slices)):
            place = places.get(k)
            if place is None or place.file is not None:
                if first:
                    own.append(k)
            elif place.rank == self.trainers.rank:
                if first or self.trainers.common:
                    own.append(k)
            elif first and not self.trainers.common and self.slices.size(k):
                files[k] = self._collect(k, place, blobs)
        files |= self._store_all(blobs, own)
        blobs.sync(file.name for file in files.values() if file.name not in self._committed)
        return files

    def committed(self, files: Mapping[int, RowFile]) -> None:
        """A checkpoint names these files."""
        self._committed = {file.name for file in files.values()}

    def adopt(self, files: Mapping[int, RowFile], blobs: Blobs) -> None:
        """See `Backing.adopt`."""
        super().adopt(files, blobs)
        self._start_anew()

    def restart(self, origin: Callable[[range, Rows], None]) -> None:
        """See `Backing.restart`."""
        super().restart(origin)
        self._start_anew()

    def _start_anew(self) -> None:
        with self._changed:
            self._expected, self._tokens, self._old, self._archive = {}, {}, [], {}
            self._held, self._rooms, self._spare = set(), {}, []

    def _collect(self, k: int, place: Place, blobs: Blobs) -> RowFile:
        """A copy of a slice that another trainer has: an earlier one where the unit that has trained it last is known,
        and the same."""
        if not place.token or k not in self._archive or self._archive[k][0] != place:
            rows = self.layout.empty(self.slices.size(k))
            self.read_bytes += self.trainers.take(k, place, rows, keep=True)[0]
            self._archive[k] = place, self._row_files.write(k, rows, blobs)
        return self._archive[k][1]

    def _forget(self, k: int) -> None:
        """The rows that are here are not the newest any more."""
        self._held.discard(k)
        self._files.pop(k, None)
        if self._kept.pop(k, None) is not None:
            self._spare.append(self._rooms.pop(k))

    def _room(self, k: int) -> dict[str, Tensor]:
        """See `Backing._room`: that of slices which have gone, as new memory is slow at first."""
        size = self.slices.size(k)
        with self._changed:
            fit = next((i for i, room in enumerate(self._spare) if len(room[WEIGHT]) >= size), None)
            self._rooms[k] = self.layout.empty(size) if fit is None else self._spare.pop(fit)
        return {name: tensor[:size] for name, tensor in self._rooms[k].items()}

    def _supersede(self, file: RowFile, blobs: Blobs) -> None:
        """See `Backing._supersede`: until the unit is complete another trainer may have to begin from this file."""
        self._old.append(file)
