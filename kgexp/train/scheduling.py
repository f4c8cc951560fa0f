"""Which trainer trains what, and when: two ways behind one interface.

A pass consists of units: visits that one trainer makes one after the other while nobody else has their slices. Whoever
trains a unit, its batches and candidates are the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kgexp.sharding.handover import Place
from kgexp.sharding.joint_table import JointTable
from kgexp.train.visits import Leg, VisitBatches
from kgexp.world import World

#: Units that a pass may have, for tokens.
_UNITS = 1 << 24


@dataclass(frozen=True)
class Unit:
    """Visits of a pass that one trainer makes.

    Attributes:
        number: of the unit in its pass.
        legs: its visits that have triples, in their order.
        round, trainer: when a tournament has it trained, and by which rank.
    """

    number: int
    legs: Sequence[Leg]
    round: int
    trainer: int

    @property
    def slices(self) -> tuple[int, ...]:
        """All that are in memory in one of its visits, ascending."""
        return tuple(sorted({k for leg in self.legs for k in leg.visit.resident}))

    @property
    def steps(self) -> int:
        """How many it has."""
        return sum(leg.stop - leg.start for leg in self.legs)

    @property
    def token(self) -> int:
        """Its number in the run, from 1."""
        return self.legs[0].number * _UNITS + self.number + 1


@dataclass(frozen=True)
class Task:
    """What a trainer does next.

    Attributes:
        unit: that it trains; None where it has nothing to train until others have.
        points: into so many parts its steps are cut; shared rows are exchanged after each.
        round: of a tournament.
        begun: of the points, those that were over before.
        following: the slices that its next unit begins with.
    """

    unit: Unit | None
    points: int
    round: int = 0
    begun: int = 0
    following: tuple[int, ...] = ()


class TrainersLost(Exception):
    """Some trainers are gone, and the others have trained what was theirs.

    Attributes:
        ranks: of those that are gone.
        step: steps of the run that are trained.
    """

    def __init__(self, ranks: Sequence[int], step: int) -> None:
        one = len(ranks) == 1
        super().__init__(f"rank{'' if one else 's'} {', '.join(map(str, ranks))} {'is' if one else 'are'} gone")
        self.ranks, self.step = ranks, step


@dataclass
class Position:
    """How far the trainers are in a pass.

    Attributes:
        number: of the pass.
        round, point: with a tournament, the round, and the points of it that are over.
        done: with locks, the units that are trained.
    """

    number: int
    round: int = 0
    point: int = 0
    done: list[int] = field(default_factory=list)


class BucketScheduler(Protocol):
    """Gives a trainer its tasks."""

    def tasks(self, begun: Position) -> Iterator[Task]:
        """Those of this trainer in a pass, from a position on; a task is over when the next one is asked for."""

    def over(self, position: Position) -> int:
        """Steps of its pass that are trained, at a position."""

    def taken_away(self) -> bool:
        """Whether the unit of the task under way is another trainer's by now."""

    def lost(self, number: int) -> list[int]:
        """The trainers that are gone while the others have trained all of pass `number`; waits for the others."""

    def places(self, number: int) -> Mapping[int, Place]:
        """Where all slices are that anybody has stored in pass `number`, once no trainer trains."""

    def stopped(self, number: int) -> Position | None:
        """Where pass `number` is, if this scheduler has stopped it; None at its end."""


def units_of(legs: Sequence[Leg]) -> list[Unit]:
    """The units of a pass that have triples, in their order."""
    groups: dict[int, list[Leg]] = {}
    for leg in legs:
        groups.setdefault(leg.visit.unit, []).append(leg)
    return [Unit(number, own, own[0].visit.round, own[0].visit.trainer) for number, own in groups.items()]


class Tournament(BucketScheduler):
    """The itinerary's own plan, which every trainer knows: nobody asks, and what comes next is fetched meanwhile.

    Args:
        table: whose slices trainers hand over.
        batches: know the visits.
        world: of the trainers.
        every: about so many steps lie between two points. All trainers of a round have as many points, each of them at
            the same share of its own unit.
        pinned: slices that all trainers have.
    """

    def __init__(
        self, table: JointTable, batches: VisitBatches, world: World, every: int, pinned: Sequence[int] = ()
    ) -> None:
        self._table, self._batches, self._world, self._every = table, batches, world, every
        self._pinned = frozenset(pinned)

    def tasks(self, begun: Position) -> Iterator[Task]:
        """See `BucketScheduler.tasks`."""
        units = [unit for unit in units_of(self._batches.pass_legs(begun.number)) if unit.round >= begun.round]
        before = self._before(units)
        own = [unit for unit in units if unit.trainer == self._world.rank]
        after, announced = self._next_holders(units), set[int]()
        for round in range(begun.round, 1 + max(unit.round for unit in units)):
            unit = next((unit for unit in own if unit.round == round), None)
            points = self._points(units, round)
            first = begun.point if round == begun.round else 0
            if unit is None:
                yield Task(None, points, round, first)
                continue
            following = next((u for u in own if u.round > round), None)
            self._table.open_unit({k: place for k, place in before[unit.number].items() if k not in announced})
            announced = set()
            if following is not None:  # it is fetched meanwhile; what both have, once this unit is over
                announced = before[following.number].keys() - set(unit.slices)
                self._table.backing.expect({k: before[following.number][k] for k in announced})
            yield Task(unit, points, round, first, following.legs[0].visit.resident if following else ())
            if first:  # its visits before the stop are not entered again
                self._table.collect(self._slices(unit))
            kept = () if following is None else (following.number,)
            leaving = [k for k in self._slices(unit) if after[unit.number].get(k) not in kept]
            self._table.leave(leaving)
            self._table.offer(unit.token, leaving)
            self._table.discard_old()

    def stopped(self, number: int) -> Position | None:
        """See `BucketScheduler.stopped`: trainers stop at a point."""
        return None

    def over(self, position: Position) -> int:
        """See `BucketScheduler.over`."""
        units = units_of(self._batches.pass_legs(position.number))
        now = [unit.steps for unit in units if unit.round == position.round]
        before = sum(unit.steps for unit in units if unit.round < position.round)
        return before + sum(steps * position.point // self._points(units, position.round) for steps in now)

    def taken_away(self) -> bool:
        """See `BucketScheduler.taken_away`: never."""
        return False

    def _points(self, units: Sequence[Unit], round: int) -> int:
        """Into how many parts the units of a round are cut."""
        return max((-(-unit.steps // self._every) for unit in units if unit.round == round), default=1)

    def lost(self, number: int) -> list[int]:
        """See `BucketScheduler.lost`: nobody does another's part."""
        self._world.barrier("the end of a pass")
        return []

    def places(self, number: int) -> Mapping[int, Place]:
        """See `BucketScheduler.places`: trainers tell each other what they have."""
        self._world.barrier("the slices of trainers")  # by now nobody takes one that was on its way at a stop
        held = self._world.gather("the slices of trainers", self._table.backing.held)
        # What nobody has stored since is where it was.
        return {**self._table.places, **{k: Place(rank) for rank, slices in enumerate(held) for k in slices}}

    def _slices(self, unit: Unit) -> list[int]:
        return [k for k in unit.slices if k not in self._pinned]

    def _before(self, units: Sequence[Unit]) -> dict[int, dict[int, Place]]:
        """Of each unit, where its slices are before it."""
        last, before = dict(self._table.places), {}
        for unit in units:
            before[unit.number] = {k: last[k] for k in self._slices(unit) if k in last}
            last |= dict.fromkeys(self._slices(unit), Place(unit.trainer, unit.token))
        return before

    def _next_holders(self, units: Sequence[Unit]) -> dict[int, dict[int, int]]:
        """Of each unit, the next unit that has each of its slices, where there is one."""
        coming: dict[int, int] = {}
        after = {}
        for unit in reversed(units):
            slices = self._slices(unit)
            after[unit.number] = {k: coming[k] for k in slices if k in coming}
            coming |= dict.fromkeys(slices, unit.number)
        return after
