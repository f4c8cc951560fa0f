"""The batches of partitioned training: those of a visit are made of the triples whose rows are then in memory.

Step `i` is always the same triples, as everywhere: see `kgexp.train.batches`. With one visit a pass they are those
of a run without partitions.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgexp.data.buckets import Buckets
from kgexp.data.sides import Side
from kgexp.errors import ConfigError
from kgexp.randomness import Float64, Int64
from kgexp.scoring.batch import Batch
from kgexp.scoring.pool import Pool
from kgexp.scoring.share import ALL, Share
from kgexp.sharding.itinerary import Itinerary, Visit
from kgexp.sharding.slices import Slices
from kgexp.train.batches import Order
from kgexp.train.calendar import Calendar

Bools = npt.NDArray[np.bool_]

#: The held-out share is counted in parts of this.
MILLION = 1_000_000


@dataclass(frozen=True)
class Leg:
    """A visit with its steps.

    Attributes:
        visit: what is in memory and what is trained.
        number: of the pass, counted from 0 over the run.
        index: of the visit among those of its pass that have triples.
        start, stop: its first step and one past its last.
        kinds: of the triples that are trained, ascending: head type * T + tail type. The visit's buckets are in their
            order.
        sizes: triples of each kind.
        last: whether the pass ends with it.
    """

    visit: Visit = field(compare=False)  # follows from the rest, and arrays have no one answer
    number: int
    index: int
    start: int
    stop: int
    kinds: tuple[int, ...]
    sizes: tuple[int, ...]
    last: bool

    @property
    def triples(self) -> int:
        """How many are trained."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Cut:
    """Which triples a pass trains: every one that is not held out in one pass of its epoch.

    Attributes:
        chunks: passes of an epoch.
        millionths: of the triples that are held out, spread evenly over the sorted triples.
    """

    chunks: int = 1
    millionths: int = 0

    def held(self, positions: Int64) -> Int64:
        """How many of the triples before each position are held out."""
        return positions * self.millionths // MILLION

    def count(self, starts: Int64, stops: Int64, chunk: int) -> int:
        """Triples of a chunk in the ranges `starts … stops - 1` of positions."""

        def before(positions: Int64) -> Int64:
            return (positions - self.held(positions) - chunk + self.chunks - 1) // self.chunks

        return int((before(stops) - before(starts)).sum())

    def trained(self, positions: Int64, chunk: int) -> Bools:
        """Which positions a chunk trains."""
        held = self.held(positions)
        kept = self.held(positions + 1) == held
        trained: Bools = kept & ((positions - held) % self.chunks == chunk)
        return trained

    def held_out(self, positions: Int64) -> Bools:
        """Which positions no pass trains."""
        held_out: Bools = self.held(positions + 1) != self.held(positions)
        return held_out


@dataclass(frozen=True)
class _Triples:
    """The triples of a visit in memory."""

    triples: npt.NDArray[np.int32]
    weights: Float64 | None
    order: Order


class VisitBatches(Calendar):
    """Cuts the triples of every visit into batches of one kind; the last of each kind may be smaller.

    Args:
        buckets: the triples.
        slices: of the entities.
        itinerary: gives the visits of every pass.
        batch_size: triples in a batch.
        seed: of the run.
        dtype: of the weights in the batches.
        relation_weights: float64[m], which multiply the triples' own weights; None if all are 1.
        cut: which triples a pass trains.
        ahead: whether another thread reads the triples of the next visit meanwhile.
        share: the part of every batch that is wanted.
        types: int64[K], the type of each slice; by default there is one.

    Raises:
        ConfigError: there are more chunks than triples.
    """

    def __init__(
        self,
        buckets: Buckets,
        slices: Slices,
        itinerary: Itinerary,
        batch_size: int,
        seed: int,
        dtype: torch.dtype,
        relation_weights: Float64 | None = None,
        cut: Cut = Cut(),
        ahead: bool = False,
        share: Share = ALL,
        types: Int64 | None = None,
    ) -> None:
        self._types = np.zeros(len(slices), np.int64) if types is None else types
        self._num_types = int(self._types.max()) + 1
        self._kinds: Int64 = (self._types[:, None] * self._num_types + self._types).reshape(-1)  # of buckets
        self._buckets, self._slices, self._itinerary = buckets, slices, itinerary
        self._batch_size, self._seed, self._share = batch_size, seed, share
        self._dtype, self._relation_weights = dtype, relation_weights
        self._cut = cut
        self._firsts = [0]  # the first step of every pass so far, and one past the last
        self._passes: dict[int, list[Leg]] = {}
        self._lock = threading.RLock()  # several threads may train
        self._held: tuple[Leg, _Triples] | None = None
        self._pool = ThreadPoolExecutor(1, "triples") if ahead else None
        self._coming: tuple[Leg, Future[_Triples]] | None = None
        positions = np.array([len(buckets)])
        self.triples = len(buckets) - int(cut.held(positions)[0])
        if self.triples < cut.chunks:
            raise ConfigError(
                f"sharding.chunks is {cut.chunks}, but there are {self.triples} triples to train, so that some chunks "
                "would have none: lower it."
            )
        self.calendar: Calendar = self

    def __call__(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        leg = self.leg(step)
        with self._lock:
            triples = self._read(leg)
            piece = triples.order(leg.number, step - leg.start)
        chosen = piece.elements

        def relations_before() -> Tensor:
            before = triples.order.before(leg.number, step - leg.start)
            return torch.from_numpy(triples.triples[before, 1].astype(np.int64))

        return Batch(
            step,
            torch.from_numpy(triples.triples[chosen].astype(np.int64)),
            self._weights(triples.triples, triples.weights, chosen),
            share=self._share,
            whole=piece.whole,
            relations_before=relations_before,
            pools=self._pools(leg.visit, leg.kinds[piece.group]),
        )

    def leg(self, step: int) -> Leg:
        """The visit that a step is in."""
        while self._firsts[-1] <= step:
            self._legs(len(self._firsts) - 1)
        legs = self._legs(bisect_right(self._firsts, step) - 1)
        return legs[bisect_right([leg.start for leg in legs], step) - 1]

    def after(self, leg: Leg) -> Leg:
        """The visit that comes next."""
        return self._legs(leg.number)[leg.index + 1] if not leg.last else self._legs(leg.number + 1)[0]

    def next_resident(self, leg: Leg) -> tuple[int, ...]:
        """The slices that are in memory once others than now are: in this pass or in the next one."""
        now = leg.visit.resident
        for legs in (self._legs(leg.number)[leg.index + 1 :], self._legs(leg.number + 1)):
            for later in legs:
                if later.visit.resident != now:
                    return later.visit.resident
        return now

    @property
    def kept_bytes(self) -> int:
        """Bytes of the triples in memory: of the first pass's largest visit, and of the next if it is read ahead."""
        sizes = self._buckets.sizes()
        largest = max(int(sizes[leg.visit.buckets].sum()) for leg in self._legs(0))
        return largest * self._buckets.row_bytes * (1 if self._pool is None else 2)

    def pass_legs(self, number: int) -> Sequence[Leg]:
        """The visits of a pass."""
        return self._legs(number)

    def held_out(self, leg: Leg, size: int) -> Iterator[Batch]:
        """The triples of a visit that no pass trains, in batches of at most `size`, whose steps are negative."""
        every = np.flatnonzero(self._cut.held_out(self._positions(leg)))
        kinds = np.repeat(self._kinds[leg.visit.buckets], self._buckets.sizes()[leg.visit.buckets])[every]
        triples, weights = self._buckets.read(leg.visit.buckets)
        step = 0
        for kind in np.unique(kinds).tolist():
            own = every[kinds == kind]
            for start in range(0, len(own), size):
                chosen, step = own[start : start + size], step - 1
                yield Batch(
                    step,
                    torch.from_numpy(triples[chosen].astype(np.int64)),
                    self._weights(triples, weights, chosen),
                    pools=self._pools(leg.visit, kind),
                )

    def steps(self, epochs: int) -> int:
        """See `Calendar.steps`."""
        while len(self._firsts) <= epochs * self._cut.chunks:
            self._legs(len(self._firsts) - 1)
        return self._firsts[epochs * self._cut.chunks]

    def epoch(self, step: int) -> float:
        """See `Calendar.epoch`."""
        while self._firsts[-1] <= step:
            self._legs(len(self._firsts) - 1)
        number = bisect_right(self._firsts, step) - 1
        first, stop = self._firsts[number : number + 2]
        return (number + (step - first) / (stop - first)) / self._cut.chunks

    def finished(self, step: int) -> int | None:
        """See `Calendar.finished`."""
        while self._firsts[-1] < step:
            self._legs(len(self._firsts) - 1)
        number = bisect_right(self._firsts, step) - 1
        return number // self._cut.chunks if self._firsts[number] == step and number % self._cut.chunks == 0 else None

    def _legs(self, number: int) -> list[Leg]:
        """The visits of a pass that have triples."""
        with self._lock:
            if number not in self._passes:
                self._passes = {k: legs for k, legs in self._passes.items() if abs(k - number) < 2}
                self._passes[number] = self._plan(number)
                if number == len(self._firsts) - 1:
                    self._firsts.append(self._passes[number][-1].stop)
            return self._passes[number]

    def _plan(self, number: int) -> list[Leg]:
        step = self._firsts[number]
        counted = []
        for visit in self._itinerary.visits(number):
            kinds = self._kinds[visit.buckets]
            by_kind = replace(visit, buckets=visit.buckets[np.argsort(kinds, kind="stable")])
            if sizes := self._count(visit.buckets, kinds, number % self._cut.chunks):
                counted.append((by_kind, sizes))
        legs = []
        for index, (visit, sizes) in enumerate(counted):
            stop = step + sum(-(-size // self._batch_size) for size in sizes.values())
            last = index == len(counted) - 1
            legs.append(Leg(visit, number, index, step, stop, tuple(sizes), tuple(sizes.values()), last))
            step = stop
        return legs

    def _count(self, buckets: Int64, kinds: Int64, chunk: int) -> dict[int, int]:
        """The triples of a chunk in buckets int64[x], by their kinds int64[x], ascending; of those that have any."""
        sizes = {}
        for kind in np.unique(kinds).tolist():
            own = buckets[kinds == kind]
            if size := self._cut.count(self._buckets.offsets[own], self._buckets.offsets[own + 1], chunk):
                sizes[kind] = size
        return sizes

    def _read(self, leg: Leg) -> "_Triples":
        """The triples of a visit, and those of the next on their way."""
        if self._held is None or self._held[0] != leg:
            if self._coming is not None and self._coming[0] == leg:
                self._held = leg, self._coming[1].result()
            else:
                self._held = leg, self._fetch(leg)
            if self._pool is not None:
                following = self.after(leg)
                self._coming = following, self._pool.submit(self._fetch, following)
        return self._held[1]

    def _fetch(self, leg: Leg) -> "_Triples":
        triples, weights = self._buckets.read(leg.visit.buckets)
        if leg.triples < len(triples):
            chosen = self._cut.trained(self._positions(leg), leg.number % self._cut.chunks)
            triples, weights = triples[chosen], None if weights is None else weights[chosen]
        # The first order of a pass is that of an epoch without partitions.
        which = (leg.index,) if leg.index else ()
        order = Order(leg.sizes, self._batch_size, self._seed, self._share, which)
        return _Triples(triples, weights, order)

    def _positions(self, leg: Leg) -> Int64:
        """Of the triples of a visit among all, held out or not."""
        starts, stops = self._buckets.offsets[leg.visit.buckets], self._buckets.offsets[leg.visit.buckets + 1]
        sizes = stops - starts
        positions: Int64 = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        return positions

    def _pools(self, visit: Visit, kind: int) -> dict[Side, Pool]:
        """Where the candidates of each side come from: the slices in memory of the type that a kind has there."""
        types = zip((Side.HEAD, Side.TAIL), divmod(kind, self._num_types), (visit.heads, visit.tails), strict=True)
        return {
            side: Pool.of(self._slices.ids(k) for k in slices if self._types[k] == own) for side, own, slices in types
        }

    def _weights(self, triples: npt.NDArray[np.int32], weights: Float64 | None, chosen: Int64) -> Tensor | None:
        """Of the chosen triples: their own times their relation's."""
        weights = None if weights is None else weights[chosen]
        if self._relation_weights is not None:
            of_relations = self._relation_weights[triples[chosen, 1]]
            weights = of_relations if weights is None else weights * of_relations
        return None if weights is None else torch.from_numpy(weights).to(self._dtype)
