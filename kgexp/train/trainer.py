"""The loop of a run: steps, evaluations, checkpoints, in an order that a resumed run repeats exactly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from kgexp.errors import ConfigError
from kgexp.evaluation.evaluator import Evaluator
from kgexp.optim.schedule import Schedule
from kgexp.sharding.base import Sharding
from kgexp.sharding.table import Table
from kgexp.tracking.progress import Progress
from kgexp.tracking.tracker import Tracker
from kgexp.train.ahead import Ahead
from kgexp.train.averaging import Averaging
from kgexp.train.batches import Batches
from kgexp.train.best import Best
from kgexp.train.finite import check_finite
from kgexp.train.hogwild import Hogwild
from kgexp.train.meter import LossMeter
from kgexp.train.plan import Cadence, Plan
from kgexp.train.queries import QueryBatches
from kgexp.train.scheduling import TrainersLost
from kgexp.train.signals import StopRequested, StopSignal, strongest
from kgexp.train.stages import Stages
from kgexp.train.step import Objective, Work, prepare, run_step
from kgexp.train.together import Together
from kgexp.train.tour import Tour
from kgexp.train.visits import VisitBatches


class Save(Protocol):
    """Writes a checkpoint of the tables."""

    def __call__(self, step: int, state: dict[str, Any], alone: bool = False) -> None:
        """With the state it is given, for the step it is given; all ranks call it together. `alone`: rank 0 writes
        without the others, some of which are gone."""


@dataclass
class Trainer:
    """Trains tables until the plan is done, patience has run out or a signal says stop.

    After a step come, in this order and where due: a row of metrics, the evaluation, the checkpoint. All that later
    steps depend on is in the tables and in `state_dict`, so training from a checkpoint gives the numbers of a run
    that was never interrupted.

    Attributes:
        plan: when what happens.
        objective: what is minimised.
        entity, relation: the tables that are trained.
        batches: gives the triples of every step, of which this rank trains a part.
        sharding: plans the way to the rows.
        schedule: gives the factor of the learning rate.
        averaging: averages the weights late in training.
        best: watches the validation objective.
        evaluator: ranks the validation split, by the average once there is one.
        meter: watches the loss.
        tracker: takes the metrics.
        stages: takes the seconds.
        save: writes a checkpoint.
        validates: whether the validation split is to be ranked at all.
        judge: told the epoch and the objective of each validation; ends the training by saying True.
        tour: brings rows into memory where only some of them are there at a time.
        together: trains passes with other trainers, where there are some.
        workers: threads that train at once, see `Hogwild`.
        step: steps trained so far.
        trained: triples trained so far.
        evaluated: the step of the newest evaluation, -1 before the first.
        best_metrics: the validation metrics of the best evaluation.
        pruned: whether the judge has ended the training.
    """

    plan: Plan
    objective: Objective
    entity: Table
    relation: Table
    batches: Batches | QueryBatches | VisitBatches
    sharding: Sharding
    schedule: Schedule
    averaging: Averaging
    best: Best
    evaluator: Evaluator
    meter: LossMeter
    tracker: Tracker
    stages: Stages
    save: Save
    validates: bool = True
    judge: Callable[[float, float], bool] | None = None
    tour: Tour | None = None
    together: Together | None = None
    workers: int = 1
    step: int = 0
    trained: int = 0
    evaluated: int = -1
    best_metrics: dict[str, float] = field(default_factory=dict)
    pruned: bool = False

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.step >= self.plan.total or self.best.exhausted or self.pruned

    @property
    def epoch(self) -> float:
        """Epochs trained so far, the running one as a fraction."""
        return self.batches.calendar.epoch(self.step)

    @property
    def triples_per_step(self) -> float:
        """On average: the last batch of an epoch may be smaller."""
        return self.batches.triples / self.batches.calendar.steps(1)

    def fit(self, progress: Progress, stop: StopSignal) -> None:
        """Trains until `finished`, or until the first step after a stop signal, at which it saves.

        Raises:
            NonFiniteError: a loss, a row or a score is no longer finite; no such row is ever saved.
        """
        self._settle(stop)  # a resumed run may owe an evaluation that its stop put off
        if self.together is not None:
            self._train_together(self.together, progress, stop)
        elif self.workers > 1:
            self._train_at_once(progress, stop)
        else:
            self._train_in_turn(progress, stop)
        if self.validates and self.evaluated != self.step and stop.requested is None:
            # Off the cadence and only because this is the end: a run that goes on for longer must not know of it.
            self._evaluate(learn=False)

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on besides the tables, as JSON values; and `model_weight`, for readers."""
        return {
            "step": self.step,
            "snapshot": self._due(self.plan.snapshot),
            "trained": self.trained,
            "evaluated": self.evaluated,
            "best": self.best.state_dict(),
            "best_metrics": self.best_metrics,
            "schedule": self.schedule.state_dict(),
            "averaging": self.averaging.state_dict(),
            "meter": self.meter.state_dict(),
            "tour": None if self.tour is None else self.tour.state_dict(),
            "together": None if self.together is None else self.together.state_dict(),
            "model_weight": self.averaging.model_weight,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back a `state_dict`."""
        self.step, self.trained, self.evaluated = state["step"], state["trained"], state["evaluated"]
        self.best.load_state_dict(state["best"])
        self.best_metrics = state["best_metrics"]
        self.schedule.load_state_dict(state["schedule"])
        self.averaging.load_state_dict(state["averaging"])
        self.averaging.begin_anew_if_early()
        if self.together is None or self.sharding.exchange.rank == 0:  # who has the losses of all
            self.meter.load_state_dict(state["meter"])
        if self.tour is not None and (tour := state.get("tour")) is not None:  # else it was trained without partitions
            self.tour.load_state_dict(tour)
        if self.together is not None:
            self.together.load_state_dict(state.get("together"))

    def _train_in_turn(self, progress: Progress, stop: StopSignal) -> None:
        """One step after the other."""
        # The host is free while a GPU computes. A tour moves rows before a step is prepared: not under another one.
        free = self.entity.device.type != "cpu" and self.tour is None
        threaded = free or self.sharding.exchange.ranks > 1
        with Ahead(lambda step: self._prepare(step, stop), threaded) as ahead:
            while not self.finished and stop.requested is None:
                with self.stages.stage("train", self.step):
                    work = ahead(self.step, self.step + 1 < self.plan.total)
                    stop.adopt(strongest(work.plan.signals))
                    if stop.requested is None:
                        factor = self.schedule.factor(self.step, self.plan.total)
                        loss = run_step(self.objective, self.entity, self.relation, work, factor)
                        self._account(work.batch.total, loss, factor, progress)
                self._settle(stop)

    def _train_at_once(self, progress: Progress, stop: StopSignal) -> None:
        """Several steps at a time, none of them under way where something else happens."""
        with Hogwild(self._train_alone, self.workers, torch.get_num_threads()) as hogwild:
            while not self.finished and (stop.requested is None or self.step < hogwild.asked):
                with self.stages.stage("train", self.step):
                    if self.tour is not None:
                        self.tour.arrive(self.step)
                    ahead = self.step if stop.requested else self._alone_until(self.step + hogwild.window)
                    factor = self.schedule.factor(self.step, self.plan.total)
                    self._account(*hogwild(self.step, ahead), factor, progress)
                if self.step == hogwild.asked:
                    self._settle(stop)

    def _train_together(self, together: Together, progress: Progress, stop: StopSignal) -> None:
        """Pass after pass, of which this process trains the steps that are its own."""
        told = 0  # triples of the pass that the progress knows of

        def train(steps: range) -> int:
            nonlocal told
            total = 0
            for step, (triples, loss) in self._trained(steps):
                self.meter.add(step, triples, loss)
                total += triples
            new = together.trained()
            told += new
            progress.advance(new, epoch=f"{self.epoch:.1f}", loss=f"{self.meter.last:.4g}")
            return total

        while not self.finished and stop.requested is None:
            with self.stages.stage("train", self.step):
                try:
                    self.step, figures = together.run(self.step, train, stop)
                except TrainersLost as lost:
                    self.step = lost.step
                    self.save(self.step, self.state_dict(), alone=True)
                    raise
            self.trained += round(figures.triples)
            progress.advance(round(figures.triples) - told, epoch=f"{self.epoch:.1f}")
            told = 0
            self.meter.merge(self.sharding.exchange)
            row = figures.row() | {"train/loss": self.meter.mean("steps"), "train/epoch": self.epoch}
            row["train/lr_factor"] = self.schedule.factor(self.step - 1, self.plan.total)
            if self.batches.calendar.finished(self.step) is not None:
                row["train/epoch_loss"] = self.meter.mean("epoch")
            self.tracker.log(self.step, row)
            self._settle(stop)

    def _trained(self, steps: range) -> Iterator[tuple[int, tuple[int, Tensor]]]:
        """Trains steps whose rows are in memory: their numbers, triples and losses."""
        if self.workers == 1:
            for step in steps:
                yield step, self._train_alone(step)
            return
        with Hogwild(self._train_alone, self.workers, torch.get_num_threads()) as hogwild:
            for step in steps:
                yield step, hogwild(step, min(steps.stop, step + hogwild.window))

    def _train_alone(self, step: int) -> tuple[int, Tensor]:
        """A step in this process alone: its triples and its loss."""
        entity, batch = self.entity, self.batches(step)
        work = prepare(self.objective, entity.num_rows, batch, threads=entity.team.threads, device=entity.device)
        factor = self.schedule.factor(step, self.plan.total)
        return work.batch.total, run_step(self.objective, self.entity, self.relation, work, factor)

    def _alone_until(self, limit: int) -> int:
        """One past the last step, up to `limit`, between which and the next one nothing but training happens."""
        limit = min(limit, self.plan.total, limit if self.tour is None else self.tour.stop)
        for step in range(self.step + 1, limit):
            if any(self._due(what, step) for what in (self.plan.evaluate, self.plan.checkpoint, self.plan.snapshot)):
                return step
        return limit

    def _settle(self, stop: StopSignal) -> None:
        """What is due after a step: the evaluation, then the checkpoint."""
        improved = False
        if self.validates and self.evaluated != self.step and self._due(self.plan.evaluate) and not stop.requested:
            improved = self._evaluate(learn=True)
        due = self._due(self.plan.checkpoint) or self._due(self.plan.snapshot)
        if improved or stop.requested or self.finished or due:
            self.meter.flush()
            with self.stages.stage("checkpoint", self.step):
                check_finite((self.entity, self.relation), self.step)
                self.save(self.step, self.state_dict())

    def _prepare(self, step: int, stop: StopSignal) -> Work:
        """The work of a step; this tells the other ranks which signal this one has got."""
        if self.tour is not None:
            self.tour.arrive(step)
        plan, entity = partial(self.sharding.plan, signal=stop.noted or 0), self.entity
        return prepare(self.objective, entity.num_rows, self.batches(step), plan, entity.team.threads, entity.device)

    def _account(self, triples: int, loss: Tensor, factor: float, progress: Progress) -> None:
        """Counts a step that was trained, with the metrics that are due after it."""
        self.meter.add(self.step, triples, loss)
        self.step += 1
        self.trained += triples
        self.averaging.update(self.step, self.batches.calendar)
        row = {} if self.tour is None else self.tour.depart(self.step)
        if self.step % self.plan.log_steps == 0:
            row |= {"train/loss": self.meter.mean("steps"), "train/epoch": self.epoch, "train/lr_factor": factor}
        if self.batches.calendar.finished(self.step) is not None:
            row["train/epoch_loss"] = self.meter.mean("epoch")
        if row:
            self.tracker.log(self.step, row)
        progress.advance(triples, epoch=f"{self.epoch:.1f}", loss=f"{self.meter.last:.4g}")

    def _evaluate(self, learn: bool) -> bool:
        """Ranks the validation split; True when it is the best so far. A stop signal puts it off."""
        self.meter.flush()
        try:
            with self.stages.stage("evaluate", self.step), self.averaging.in_place():
                evaluation = self.evaluator.evaluate("valid")
        except StopRequested:
            return False
        self.evaluated = self.step
        if not evaluation.metrics:
            return False
        spent = {"train/epoch": self.epoch, "train/seconds": self.stages.seconds.get("train", 0.0)}
        self.tracker.log(self.step, evaluation.metrics | spent)
        name = self.evaluator.objective_name
        if name not in evaluation.metrics:
            raise ConfigError(f"{name} has no value on this graph: choose another evaluation.objective.")
        value = self.evaluator.objective_sign * evaluation.metrics[name]
        if learn:
            self.schedule.observe(value)
        improved = self.best.update(self.step, value)
        if improved:
            self.best_metrics = evaluation.metrics
        self._tell(evaluation.metrics, improved)
        if learn and self.judge is not None and self.step < self.plan.total:
            self.pruned = self.judge(self.epoch, evaluation.metrics[name])
        return improved

    def _tell(self, metrics: dict[str, float], improved: bool) -> None:
        """A line about an evaluation: how far training is, how long it took, what it has reached."""
        spent = timedelta(seconds=round(self.stages.seconds.get("train", 0.0)))
        name = self.evaluator.objective_name
        line = f"epoch {self.epoch:.1f}, {spent} of training: {name} {metrics[name]:.4f}"
        with_test = name.replace("/filtered/", "/filtered_with_test/")
        if with_test != name and with_test in metrics:
            line += f" ({metrics[with_test]:.4f} with test filtered too)"
        self.tracker.say(f"{line}, the best so far" if improved else line)

    def _due(self, cadence: Cadence, step: int | None = None) -> bool:
        return cadence.due(self.step if step is None else step, self.batches.calendar)
