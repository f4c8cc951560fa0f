"""A pass that several trainers train together."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from kgexp.errors import KgexpError, RankError
from kgexp.sharding.exchange import Exchange
from kgexp.sharding.joint_table import JointTable
from kgexp.sharding.shared_rows import Asynchronous, Synchronous
from kgexp.train.heldout import HeldOut
from kgexp.train.scheduling import BucketScheduler, Position, Task, TrainersLost, Unit
from kgexp.train.signals import STOP_SIGNALS, StopSignal, strongest
from kgexp.train.visits import Leg, VisitBatches
from kgexp.world import World


@dataclass
class Figures:
    """What trainers have done in a pass; those of several add up.

    Attributes:
        triples: trained.
        busy: seconds of training steps.
        rows, sharing: seconds of waiting for rows, and of exchanging shared rows.
        seconds: that passed.
        received: bytes of rows that came from other trainers.
        before, after: the losses, summed, of triples that are not trained, of visits that began and that ended.
        held_before, held_after: how many these are.
    """

    triples: float = 0.0
    busy: float = 0.0
    rows: float = 0.0
    sharing: float = 0.0
    seconds: float = 0.0
    received: float = 0.0
    before: float = 0.0
    after: float = 0.0
    held_before: float = 0.0
    held_after: float = 0.0

    def over(self, exchange: Exchange) -> "Figures":
        """The sum over trainers."""
        own = torch.tensor([getattr(self, field.name) for field in fields(self)], dtype=torch.float64)
        return Figures(*exchange.all_sum(own).tolist())

    def row(self) -> dict[str, float]:
        """What is logged of a pass: shares of the trainers' time, and megabytes."""
        seconds = max(self.seconds, 1e-9)
        row = {
            "pass/busy": self.busy / seconds,
            "pass/waited": self.rows / seconds,
            "pass/sharing": self.sharing / seconds,
            "pass/received_mb": self.received / 1e6,
        }
        if self.held_before:
            row["pass/held_out_loss_before"] = self.before / self.held_before
        if self.held_after:
            row["pass/held_out_loss"] = self.after / self.held_after
        return row


class Together:
    """Trains passes together with the other trainers.

    Args:
        table: the entities.
        batches: know the visits.
        scheduler: gives this trainer its tasks.
        shared: makes the rows equal that all trainers have.
        over: reduces over the trainers, where all of them are.
        world: of the trainers.
        crew: what a position within a pass depends on, as JSON values.
        held_out: gives the loss of what visits do not train; None where nothing is held out.
    """

    def __init__(
        self,
        table: JointTable,
        batches: VisitBatches,
        scheduler: BucketScheduler,
        shared: Synchronous | Asynchronous,
        over: Exchange,
        world: World,
        crew: list[Any],
        held_out: HeldOut | None = None,
    ) -> None:
        self._table, self._batches, self._scheduler, self._shared = table, batches, scheduler, shared
        self._over, self._world, self._crew, self._held_out = over, world, crew, held_out
        self._position: Position | None = None
        self._told = self._counted = 0

    def run(self, step: int, train: Callable[[range], int], stop: StopSignal) -> tuple[int, Figures]:
        """Trains the pass that a step is in, from where all trainers are.

        Args:
            step: steps of the run that are trained.
            train: trains steps whose rows are in memory; returns their triples.
            stop: ends the pass before its end.

        Returns:
            Steps that are trained now, and what all trainers have done.

        Raises:
            TrainersLost: some are gone; the pass is trained all the same, as far as a stop let it be, and rank 0 can
                have all rows.
        """
        legs = self._batches.pass_legs(self._batches.leg(step).number)
        number, figures, started = legs[0].number, Figures(), time.perf_counter()
        buffer, backing = self._table.buffer, self._table.backing
        waited, received = buffer.waited, backing.received
        begun, self._position = self._position or Position(number), None
        self._table.begin()
        self._shared.begin()
        for task in self._scheduler.tasks(begun):
            done = task.begun if stop.requested else self._attempt(task, train, stop, figures)
            if done < task.points:
                self._position = Position(number, task.round, done)
                break
        self._table.halt()
        try:
            self._shared.flush()
        except RankError:
            self._scheduler.lost(number)  # says so if the others have gone on without this trainer
            raise
        lost = self._scheduler.lost(number)
        self._shared.finish()
        if lost:  # there is no collective any more in which who has finished would wait for those that ask it
            lost = self._scheduler.lost(number)
        figures.rows, figures.received = buffer.waited - waited, float(backing.received - received)
        figures.seconds = time.perf_counter() - started
        self._position = self._position or self._scheduler.stopped(number)
        self._table.between_units(self._scheduler.places(number))
        step = legs[-1].stop if self._position is None else legs[0].start + self._scheduler.over(self._position)
        if lost:
            raise TrainersLost(lost, step)
        stop.adopt(strongest(_codes(self._over.all_sum(_signals(stop)))))
        figures = figures.over(self._over)
        self._counted += round(figures.triples)
        self._told = self._counted
        return step, figures

    def state_dict(self) -> dict[str, Any] | None:
        """Where trainers have stopped within a pass, as JSON values."""
        return None if self._position is None else asdict(self._position) | {"crew": self._crew}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Takes back a `state_dict`; for other trainers it means nothing: they begin the pass anew."""
        if state is not None and state["crew"] == self._crew:
            self._position = Position(state["number"], state["round"], state["point"], state["done"])

    def trained(self) -> int:
        """Triples of the pass that all trainers have told of since the last call; the last are not heard any more."""
        counted = self._world.counted()
        before, self._told = self._told, max(counted, self._told)
        return self._told - before

    def _attempt(self, task: Task, train: Callable[[range], int], stop: StopSignal, figures: Figures) -> int:
        """`_train`, unless it fails because others have trained the task meanwhile, with its rows."""
        try:
            return self._train(task, train, stop, figures)
        except KgexpError:
            if self._scheduler.taken_away():
                return task.points
            raise

    def _train(self, task: Task, train: Callable[[range], int], stop: StopSignal, figures: Figures) -> int:
        """Trains a task until a stop; returns the points of it that are over."""
        unit = task.unit
        for point in range(task.begun, task.points):
            if unit is not None:
                low, high = (unit.steps * p // task.points for p in (point, point + 1))
                for leg, steps in _cut(unit, low, high):
                    self._enter(unit, leg, task.following)
                    self._stretch(leg, steps, train, figures)
            began = time.perf_counter()
            codes = self._shared.exchange(_signals(stop))
            figures.sharing += time.perf_counter() - began
            stop.adopt(strongest(_codes(codes)))
            if stop.requested:
                return point + 1
        return task.points

    def _enter(self, unit: Unit, leg: Leg, following: Sequence[int]) -> None:
        """The rows of a visit are in memory, and those of the next one on their way."""
        index = unit.legs.index(leg)
        self._table.enter(leg.visit, unit.legs[index + 1].visit.resident if index + 1 < len(unit.legs) else following)

    def _stretch(self, leg: Leg, steps: range, train: Callable[[range], int], figures: Figures) -> None:
        """Trains some steps of a visit."""
        if not steps:
            return
        if self._held_out is not None and steps.start == leg.start:
            total, triples = self._held_out.sums(leg)
            figures.before, figures.held_before = figures.before + total, figures.held_before + triples
        began = time.perf_counter()
        triples = train(steps)
        figures.busy += time.perf_counter() - began
        figures.triples += triples
        self._world.count(triples)
        if self._held_out is not None and steps.stop == leg.stop:
            total, triples = self._held_out.sums(leg)
            figures.after, figures.held_after = figures.after + total, figures.held_after + triples


def _cut(unit: Unit, low: int, high: int) -> Iterator[tuple[Leg, range]]:
    """The visits that some steps of a unit are in, and the steps' numbers in the run; of no steps, the visit due."""
    first = 0
    for leg in unit.legs:
        stop = first + leg.stop - leg.start
        if max(low, first) < min(high, stop) or first <= low == high < stop:
            yield leg, range(leg.start + max(low, first) - first, leg.start + min(high, stop) - first)
        first = stop


def _signals(stop: StopSignal) -> Tensor:
    """Of each signal, whether this rank has got it."""
    return torch.tensor([float(stop.noted == code) for code in STOP_SIGNALS])


def _codes(counts: Tensor) -> list[int]:
    """The signals that any rank has got."""
    return [code for code, count in zip(STOP_SIGNALS, counts.tolist(), strict=True) if count]
