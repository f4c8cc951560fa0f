"""The part of a partitioned table that is in memory: slots for slices, which come and go while others are trained."""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from kgexp.sharding.backing import Backing
from kgexp.transfer import sent

#: The place of a row that is not in memory, before the id is added.
_ABSENT = -(1 << 62)


class Buffer:
    """Slots, each with room for the rows of one slice and their optimizer state.

    What left is written back, and what the next visit needs is fetched, by another thread while this visit's rows are
    trained: as far as there are free slots.

    Args:
        backing: where slices come from and go to.
        slots: how many slices have room.
        device: of the tensors.
        background: whether another thread works; False does everything when it is due.
        pinned: slices that are resident in every visit; each has a place of its own besides.

    Attributes:
        tensors: by name, float[k, …] with room for the pinned slices, and in each slot for the largest of the others.
        numbers: int64[k], the id of the row in each place; of no meaning where there is none.
        loads: slices that have become resident so far.
        waited: seconds that `enter` and `flush` took so far.
    """

    def __init__(
        self, backing: Backing, slots: int, device: torch.device, background: bool, pinned: Sequence[int] = ()
    ) -> None:
        self._backing, self._slices = backing, backing.slices
        slot, rows = self._slices.largest_but(pinned), 0
        self._own: dict[int, int] = {}  # the first place of every pinned slice
        for k in pinned:
            self._own[k] = rows
            rows += self._slices.size(k)
        self._free = [rows + number * slot for number in range(slots)][::-1]
        rows += slots * slot
        self.tensors = backing.layout.empty(rows, device)
        self.numbers = torch.zeros(rows, dtype=torch.int64, device=device)
        self.loads, self.waited = 0, 0.0
        self._first: dict[int, int] = {}  # the first place of every slice in memory
        self._dirty: set[int] = set()
        self._offset = torch.full((len(self._slices),), _ABSENT)
        self._resident: tuple[int, ...] = ()
        self._pool = ThreadPoolExecutor(1, "rows") if background else None
        self._underway: Future[None] | None = None
        self._evicted = threading.Event()  # what was to leave has left; nobody waits for what comes
        self._evicted.set()

    @property
    def resident(self) -> tuple[int, ...]:
        """The slices that are being trained, ascending."""
        return self._resident

    def enter(self, wanted: Sequence[int], following: Sequence[int] = ()) -> None:
        """Makes the slices `wanted` resident, and begins to fetch those of the visit that comes after."""
        start = time.perf_counter()
        self.settle()
        self.loads += len(set(wanted).difference(self._resident))
        leaving = [k for k in list(self._first) if k not in wanted]
        for k in wanted:
            if k not in self._first:
                if not self._free and k not in self._own:
                    self._evict(leaving.pop(0))
                self._load(k)
        self._resident = tuple(sorted(wanted))
        self._number()
        self.waited += time.perf_counter() - start
        if self._pool is not None:
            self._evicted.clear()
            self._underway = self._pool.submit(self._exchange, leaving, [k for k in following if k not in wanted])

    def leave(self, slices: Iterable[int]) -> None:
        """Stores slices and gives up their places at once: does not wait for what the other thread fetches, as that
        may be with somebody who waits for these."""
        start = time.perf_counter()
        self._evicted.wait()
        leaving = [k for k in slices if k in self._first]
        for k in leaving:
            self._evict(k)
        self._resident = tuple(k for k in self._resident if k not in leaving)
        self._number()
        self.waited += time.perf_counter() - start

    def store(self, slices: Iterable[int]) -> None:
        """Stores what has changed of some slices; they stay."""
        start = time.perf_counter()
        self._evicted.wait()
        for k in slices:
            if k in self._dirty:
                self._backing.store(k, self.rows(k))
                self._dirty.discard(k)
        self.waited += time.perf_counter() - start

    def forget(self, slices: Iterable[int]) -> None:
        """Gives up the places of slices, changed or not."""
        self._dirty.difference_update(slices)
        self.leave(slices)

    def flush(self, besides: Iterable[int] = ()) -> None:
        """Stores whatever has changed, but for some slices; all stay."""
        start = time.perf_counter()
        self.settle()
        for k in sorted(self._dirty.difference(besides)):
            self._backing.store(k, self.rows(k))
        self._dirty.intersection_update(besides)
        self.waited += time.perf_counter() - start

    def touch(self, slices: Iterable[int] | None = None) -> None:
        """Says that slices in memory change, by default the resident ones."""
        self._dirty.update(self._resident if slices is None else slices)

    def clear(self) -> None:
        """Forgets what is in memory, changed or not."""
        self.settle()
        for k in list(self._first):
            self._leave(k)
        self._dirty, self._resident = set(), ()
        self._number()

    def close(self) -> None:
        """Ends the other thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def places(self, ids: Tensor) -> Tensor:
        """Where the rows of the ids int64[u], on the host, are: int64[u] on the rows' device, counted from the first
        row of the first slot."""
        places = ids + self._offset[self._slices.of(ids)]
        if len(places) and int(places.min()) < 0:
            raise RuntimeError(f"the row of entity {int(ids[places.argmin()])} is not in memory")
        return sent(places, self.numbers.device)

    def holds(self, k: int) -> bool:
        """Whether the newest rows of a slice are here."""
        return k in self._first

    def ranges(self, slices: Iterable[int] | None = None) -> list[range]:
        """Places of the rows of slices, by default of all that are resident, in the order of their ids. Pinned slices
        that follow one another have places that do: they are one range."""
        joined: list[range] = []
        for k in self._resident if slices is None else slices:
            places = self._range(k)
            if k in self._own and k - 1 in self._own and joined and joined[-1].stop == places.start:
                joined[-1] = range(joined[-1].start, places.stop)
            elif places:
                joined.append(places)
        return joined

    def rows(self, k: int) -> dict[str, Tensor]:
        """The tensors of a slice that is in memory: views."""
        places = self._range(k)
        # Autograd must not take what comes into other slots meanwhile for a change of the rows that it has seen.
        return {name: tensor.data[places.start : places.stop] for name, tensor in self.tensors.items()}

    def _range(self, k: int) -> range:
        return range(self._first[k], self._first[k] + self._slices.size(k))

    def settle(self) -> None:
        """Waits for the other thread; raises what it met."""
        if self._underway is not None:
            underway, self._underway = self._underway, None
            underway.result()

    def _exchange(self, leaving: Sequence[int], following: Sequence[int]) -> None:
        """The other thread's work."""
        try:
            for k in leaving:
                self._evict(k)
        finally:
            self._evicted.set()
        for k in following:
            if self._free:
                self._load(k)

    def _evict(self, k: int) -> None:
        if k in self._dirty:
            self._backing.store(k, self.rows(k))
            self._dirty.discard(k)
        self._leave(k)

    def _load(self, k: int) -> None:
        self._first[k] = self._own[k] if k in self._own else self._free.pop()
        ids, places = self._slices.ids(k), self._range(k)
        self.numbers[places.start : places.stop] = torch.arange(ids.start, ids.stop, device=self.numbers.device)
        try:
            if self._backing.fetch(k, self.rows(k)):
                self._dirty.add(k)
        except BaseException:  # whoever looks on must not take what is there now for the rows
            self._leave(k)
            raise

    def _leave(self, k: int) -> None:
        """Gives up the place of a slice."""
        place = self._first.pop(k)
        if k not in self._own:
            self._free.append(place)

    def _number(self) -> None:
        """Tells where the rows are, of those that are resident."""
        self._offset.fill_(_ABSENT)
        for k in self._resident:
            self._offset[k] = self._range(k).start - self._slices.ids(k).start
