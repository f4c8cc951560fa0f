"""What the trainers of a partitioned table follow: which slices are in memory when, and what is trained then.

A slice is a contiguous range of ids. Each pass groups the slices of each type anew, at random, into partitions of
equally many and plans its stays over these (turns.py). So the entities that are candidates for one another differ from
pass to pass, and nothing has to be rewritten for it. Delaying pairs (`spread`) is what COMET does (MariusGNN: Waleffe
and others, EuroSys 2023): without it a stay trains little but the partition that has just come.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kgexp.randomness import Purpose, key, uniform
from kgexp.sharding.covering import Bool, Int64
from kgexp.sharding.orders import Stay, shuffled
from kgexp.sharding.turns import Turn, turns


@dataclass(frozen=True)
class Visit:
    """Triples that are trained as one stream while the same rows are in memory."""

    resident: tuple[int, ...]
    """Slices in memory, ascending."""
    buckets: Int64
    """int64[x]: a * K + b of the pairs (head slice a, tail slice b) that are trained; can be empty. `Itinerary` has
    them ascend."""
    heads: tuple[int, ...]
    """Slices, ascending, that the candidates for a missing head come from."""
    tails: tuple[int, ...]
    """Slices, ascending, that the candidates for a missing tail come from."""
    unit: int = 0
    """Counts the matches of a pass; for one trainer, its stays. One trainer does the visits of a unit in turn; those
    of one stay follow each other with the same slices in memory."""
    round: int = 0
    """The units of a round have no slice in common but pinned ones."""
    trainer: int = 0
    """The rank that the plan gives it to."""


class Itinerary:
    """The visits of every pass: a function of the settings, the seed and the number of the pass alone.

    There are K slices: the `pinned` ones, which are in memory always, and `partitions * slices` others, which come and
    go: those of the first type, of which there are `types[0]` partitions, before those of the next; by default there
    is one. At most `buffer` partitions, each of `slices` slices, are in memory besides these. `needed`, bool[K, K] or
    all, are the pairs (head slice, tail slice) that have triples: each is in exactly one visit of a pass.

    With `mix` a stay is one visit, and all that is in memory is a candidate. Without it a bucket of partitions is one
    visit, and the candidates come from its two partitions and the pinned slices (PyTorch-BigGraph). `spread` trains a
    pair of slices, in both directions, in a random one of the stays that hold it instead of the first.

    Several `trainers`, each with a `buffer` of its own, share a pass by a tournament of `teams` (tournament.py), into
    which the partitions are divided: two for each trainer by default, but no more than there are partitions.
    """

    def __init__(
        self,
        partitions: int,
        slices: int,
        buffer: int,
        order: str,
        seed: int,
        *,
        mix: bool,
        spread: bool,
        needed: Bool | None = None,
        pinned: tuple[int, ...] = (),
        types: tuple[int, ...] = (),
        trainers: int = 1,
        teams: int | None = None,
    ) -> None:
        self.slices = partitions * slices + len(pinned)
        self._moving = np.setdiff1d(np.arange(self.slices), pinned)
        if len(self._moving) != partitions * slices or sorted(pinned) != list(pinned):
            raise ValueError(f"pinned is {pinned}: it must have distinct slices below {self.slices}, ascending")
        if sum(types or (partitions,)) != partitions:
            raise ValueError(f"types is {types}: together they must have the {partitions} partitions")
        if spread and not mix:
            raise ValueError("spread needs mix: a visit to one bucket trains this bucket alone")
        if trainers < 1 or (teams is not None and (trainers == 1 or teams < 2)):
            raise ValueError(
                f"{trainers} trainers, {teams} teams: at least one trainer, and two teams where more share"
            )
        self.needed = np.ones((self.slices, self.slices), dtype=bool) if needed is None else needed
        if self.needed.shape != (self.slices, self.slices):
            raise ValueError(
                f"needed is {self.needed.shape}: it must be ({self.slices}, {self.slices}), pinned included"
            )
        self.partitions, self.buffer, self.order, self.seed = partitions, buffer, order, seed
        self.mix, self.spread, self.pinned = mix, spread, pinned
        self.trainers, self.teams = trainers, min(partitions, teams or 2 * trainers)
        self._types, self._of_partition = types or (partitions,), slices
        self._visits = lru_cache(maxsize=2)(self._plan)  # a pass, and the one before it for `loads`

    def visits(self, number: int) -> list[Visit]:
        """Pass `number`, counted from 0; at least one visit."""
        return self._visits(number)

    def loads(self, number: int) -> int:
        """Slices that come into memory in pass `number`, of all trainers together; see `loads_of`."""
        return sum(self.loads_of(number, trainer) for trainer in range(self.trainers))

    def loads_of(self, number: int, trainer: int) -> int:
        """Slices that come into a trainer's memory in pass `number`, after what the pass before left there; those that
        another has trained meanwhile come again."""
        before = self.visits(number - 1) if number else []
        return self._loads([*before, *self.visits(number)], trainer) - self._loads(before, trainer)

    def _loads(self, visits: list[Visit], trainer: int) -> int:
        count, held = 0, set[int]()
        for visit in visits:
            if visit.trainer == trainer:
                count += len(set(visit.resident) - held)
                held = set(visit.resident)
            else:
                held -= set(visit.resident).difference(self.pinned)
        return count

    def _plan(self, number: int) -> list[Visit]:
        groups = self._groups(number)
        plan = self._turns(groups, number)
        held = [self._rows(groups, turn.stay.resident) for turn in plan]
        wait = np.zeros((self.slices, self.slices), dtype=np.int64)
        if self.spread:
            wait = self._delays(held, number)
        wait[~self.needed] = -1
        if self.mix or not self.partitions:
            return [self._visit(turn, rows, rows, rows, wait) for turn, rows in zip(plan, held, strict=True)]
        return [
            self._visit(turn, rows, self._rows(groups, (i,)), self._rows(groups, (j,)), wait)
            for turn, rows in zip(plan, held, strict=True)
            for i, j in turn.stay.buckets
        ]

    def _turns(self, groups: Int64, number: int) -> list[Turn]:
        """The stays over the partitions of a pass."""
        if not self.partitions:
            return [Turn(Stay((), ()))]  # all slices are pinned
        needed = self._between(groups)
        return turns(self.order, needed, self.buffer, self.teams, self.trainers, self.seed, number, ahead=self.mix)

    def _groups(self, number: int) -> Int64:
        """int64[P, slices], the slices of each partition of a pass, ascending: of one type."""
        groups, first = [], 0
        for kind, partitions in enumerate(self._types):
            size = partitions * self._of_partition
            stream = key(self.seed, Purpose.PASS, number, 1, *((kind,) if kind else ()))
            own = self._moving[first : first + size][shuffled(size, stream)]
            groups.append(np.sort(own.reshape(partitions, self._of_partition), axis=1))
            first += size
        return np.concatenate(groups)

    def _between(self, groups: Int64) -> Bool:
        """bool[P, P]: the buckets of partitions that have triples; those with a pinned slice count as (i, i)."""
        blocks = self.needed[groups[:, None, :, None], groups[None, :, None, :]]  # [P, P, slices, slices]
        needed: Bool = np.logical_or.reduce(blocks, axis=(2, 3))
        fixed = np.array(self.pinned, dtype=np.int64)
        pinned: Bool = np.logical_or.reduce(np.hstack([self.needed[:, fixed], self.needed[fixed].T]), axis=1)
        needed |= np.diag(pinned[groups].any(axis=1))
        needed[0, 0] |= not needed.any()  # pairs of pinned slices alone need a visit too
        return needed

    def _rows(self, groups: Int64, partitions: tuple[int, ...]) -> Int64:
        """The slices of these partitions and the pinned ones, ascending."""
        own = groups[np.array(partitions, dtype=np.int64)]
        return np.sort(np.concatenate([own.reshape(-1), np.array(self.pinned, dtype=np.int64)]))

    def _delays(self, held: list[Int64], number: int) -> Int64:
        """int64[K, K], symmetric: how many of the stays that hold both slices pass before the pair is trained."""
        present = np.zeros((len(held), self.slices), dtype=np.float32)
        for stay, rows in enumerate(held):
            present[stay, rows] = 1
        together = present.T @ present  # exact: fewer than 2**24 stays
        a, b = np.indices(together.shape)
        draws = uniform(key(self.seed, Purpose.PASS, number, 2), np.minimum(a, b) * self.slices + np.maximum(a, b))
        return (draws * together).astype(np.int64)

    def _visit(self, turn: Turn, resident: Int64, heads: Int64, tails: Int64, wait: Int64) -> Visit:
        """The visit that trains what has waited long enough; every other pair that is here has passed one more."""
        here = np.ix_(heads, tails)
        due = np.argwhere(wait[here] == 0)
        wait[here] -= 1
        buckets = heads[due[:, 0]] * self.slices + tails[due[:, 1]]
        return Visit(
            tuple(resident.tolist()),
            buckets,
            tuple(heads.tolist()),
            tuple(tails.tolist()),
            unit=turn.unit,
            round=turn.round,
            trainer=turn.trainer,
        )
