"""Units of a pass for whoever asks: see `kgexp.sharding.locks`. A trainer that is lost loses its unit to another."""

import math
from collections.abc import Iterator, Mapping, Sequence

from kgexp.sharding.handover import Place
from kgexp.sharding.joint_table import JointTable
from kgexp.sharding.ledger import Grant
from kgexp.sharding.ledger import Unit as Locked
from kgexp.sharding.locks import Locks
from kgexp.train.scheduling import BucketScheduler, Position, Task, units_of
from kgexp.train.signals import StopSignal
from kgexp.train.visits import VisitBatches
from kgexp.world import World


class Leasing(BucketScheduler):
    """Takes units under locks until all are trained.

    What a unit has changed is stored before it counts, so that a unit whose trainer is lost begins from where its
    slices were before it, at whoever does it then.

    Args:
        table: whose slices trainers hand over.
        batches: know the visits.
        world: of the trainers.
        locks: on the units.
        every: steps between two points.
        pinned: slices that all trainers have.
        stop: after it no more units are taken.
        lease: seconds of silence after which a trainer is lost; can be infinite.
    """

    def __init__(
        self,
        table: JointTable,
        batches: VisitBatches,
        world: World,
        locks: Locks,
        every: int,
        pinned: Sequence[int],
        stop: StopSignal,
        lease: float,
    ) -> None:
        self._table, self._batches, self._world, self._locks = table, batches, world, locks
        self._every, self._pinned, self._stop = every, frozenset(pinned), stop
        self._lease, self._calls = lease, 0
        self._grant: Grant | None = None

    def tasks(self, begun: Position) -> Iterator[Task]:
        """See `BucketScheduler.tasks`."""
        units = {unit.number: unit for unit in units_of(self._batches.pass_legs(begun.number))}
        locked = [Locked(n, tuple(k for k in unit.slices if k not in self._pinned)) for n, unit in units.items()]
        if self._world.rank == 0:
            # Entities are drawn apart: the first pass makes one space of them.
            places = {k: place.as_json() for k, place in self._table.places.items()}
            self._locks.new_pass(begun.number, locked, begun.number == 0, places, begun.done)
        self._world.barrier("the units of a pass")
        self._locks.join(begun.number, locked)
        _, grant = self._locks.advance(None)
        while grant is not None:
            self._grant, unit, slices = grant, units[grant.unit.number], grant.unit.slices
            token = grant.lease
            self._table.open_unit({k: Place.of_json(place) for k, place in grant.places.items()})
            yield Task(unit, -(-unit.steps // self._every))
            self._table.store(slices)
            places = {k: self._table.backing.place(k, token).as_json() for k in slices}
            if self._stop.noted:
                self._locks.stop()
            self._table.offer(token, slices)  # nobody asks for what they are now before the ledger says so
            counted, following = self._locks.advance(grant, places)
            if counted:
                # While this trainer waited others may have had what it has in memory.
                newest = {} if following is None else following.places
                self._table.leave([k for k in slices if newest.get(k) != places[k]])
                self._table.discard_old()
            else:
                self._table.drop_unit(slices)
            grant = following

    def stopped(self, number: int) -> Position | None:
        """See `BucketScheduler.stopped`."""
        done = self._locks.done(number)
        if len(done) == len(units_of(self._batches.pass_legs(number))):
            return None
        return Position(number, done=done)

    def over(self, position: Position) -> int:
        """See `BucketScheduler.over`."""
        units = units_of(self._batches.pass_legs(position.number))
        return sum(unit.steps for unit in units if unit.number in position.done)

    def taken_away(self) -> bool:
        """See `BucketScheduler.taken_away`."""
        return self._grant is not None and not self._locks.holds(self._grant)

    def lost(self, number: int) -> list[int]:
        """See `BucketScheduler.lost`."""
        if math.isinf(self._lease):
            self._world.barrier("the end of a pass")
            return []
        self._calls += 1
        return self._world.roll_call(f"{number}/{self._calls}", self._lease)

    def places(self, number: int) -> Mapping[int, Place]:
        """See `BucketScheduler.places`."""
        return {k: Place.of_json(place) for k, place in self._locks.places(number).items()}
