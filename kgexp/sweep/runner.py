"""The loop of a sweep: takes trials from whoever thinks them up, runs them, writes down what became of them."""

import shlex
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from kgexp.check import check, resolved, without_leftovers
from kgexp.config import holds_run
from kgexp.errors import ConfigError
from kgexp.explain import explain
from kgexp.resume import given_keys
from kgexp.sweep.job import Composer, Ended, Job, Pool, Settled, folder_name
from kgexp.sweep.trials import OVER, SweepFolder, Trial
from kgexp.train.lock import run_lock
from kgexp.train.note import Note
from kgexp.train.record import Record
from kgexp.train.signals import StopSignal

#: Composed configurations that wait for their trials: one takes a tenth of a second to make, and a megabyte to keep.
_READY = 32
#: Seconds between two looks at the stop signal.
_LOOK = 1.0


class Source(Protocol):
    """Thinks up trials.

    Attributes:
        total: how many there will be.
        planned: those that are known beforehand.
        wants_values: whether a trial without objectives is of no use.
    """

    total: int
    planned: list[Trial]
    wants_values: bool

    def next(self, room: int | None) -> list[Trial]:
        """The trials to start now, of which `room` would run at once; none while it waits for others, or at the end."""

    def note(self, trial: Trial) -> Note:
        """What a trial has to know."""

    def tell(self, trial: Trial) -> None:
        """A trial that it gave is over: has finished, was pruned, has failed, or was stopped by somebody else."""


class Runner:
    """Runs the trials of a source.

    Args:
        sweep: remembers them.
        composer: composes them.
        pool: where they run.
        stop: the sweep's.
        say: prints a line.
    """

    def __init__(
        self, sweep: SweepFolder, composer: Composer, pool: Pool, stop: StopSignal, say: Callable[[str], None]
    ) -> None:
        self._sweep, self._composer, self._pool, self._stop, self._say = sweep, composer, pool, stop, say
        self._running: set[int] = set()
        self._refused: set[int] = set()
        self._ready: dict[int, DictConfig] = {}
        self._begun, self._ended = time.monotonic(), 0

    def run(self, source: Source) -> None:
        """Returns when all trials are over, or have stopped after a signal."""
        try:
            self._vet(source)
            while self._stop.requested is None:
                room = None if self._pool.room is None else max(0, self._pool.room - len(self._running))
                trials = source.next(room)
                for trial in self._start(trials, source):
                    source.tell(trial)
                if self._running:
                    self._take(self._pool.wait(_LOOK), source)
                elif not trials:
                    return
            self._wind_up(source)
        finally:
            self._pool.close()
            for number in self._running:  # a signal ended them together with this process
                self._sweep.trials[number].status = "stopped"
            self._sweep.save()

    def _vet(self, source: Source) -> None:
        """Says at once which trials cannot be run, and why, instead of in the middle of the night."""
        fresh = [trial for trial in source.planned if self._sweep.result(trial).get("status") not in OVER]
        for trial in fresh:
            trial.status = "waiting"
        for trial in fresh:
            if self._stop.requested is not None:
                break
            config = self._composed(trial, source)
            if config is None:
                self._refused.add(trial.number)
            elif len(self._ready) < _READY:
                self._ready[trial.number] = config
        self._sweep.save()

    def _start(self, trials: Sequence[Trial], source: Source) -> list[Trial]:
        """Starts trials; returns those that need no start: that are over already, or cannot be run at all."""
        jobs = []
        for trial in trials:
            if trial.number in self._refused or self._stop.requested is not None:
                continue
            if self._sweep.result(trial).get("status") in OVER:
                self._settle(trial, None, source.wants_values)
            elif (job := self._job(trial, source)) is not None:
                jobs.append(job)
        for job in jobs:
            self._sweep.trials[job.number].status = "running"
            self._running.add(job.number)
        for number, handle in self._pool.submit(jobs).items() if jobs else ():
            self._sweep.trials[number].job = handle
        self._sweep.save()
        return [trial for trial in trials if trial.number not in self._running]

    def _job(self, trial: Trial, source: Source) -> Job | None:
        """A trial made ready, with its note in its folder; None where it cannot be run."""
        config = self._ready.pop(trial.number, None) or self._composed(trial, source)
        if config is None:
            return None
        folder = self._sweep.place(trial)
        source.note(trial).write(folder)
        return Job(trial.number, trial.overrides, config, folder, trial.job)

    def _composed(self, trial: Trial, source: Source) -> DictConfig | None:
        """The configuration of a trial, checked; None where it is refused, which is noted."""
        try:
            config = self._composer.compose(trial.number, trial.overrides)
            folder = self._sweep.claim(trial, folder_name(config))
            if not holds_run(str(folder)):
                with Settled(config):
                    given = given_keys(list(HydraConfig.get().overrides.task))
                    task = config.copy()
                    with open_dict(task):
                        del task["hydra"]
                    check(without_leftovers(resolved(task), given))
        except Exception as error:
            trial.status, trial.error, trial.values = "failed", explain(error)[0], None
            self._say_end(trial, source)
            return None
        return config

    def _take(self, ended: Sequence[Ended], source: Source) -> None:
        """Writes down what became of trials that are over."""
        trials = [self._sweep.trials[end.number] for end in ended]
        for trial, end in zip(trials, ended, strict=True):
            self._running.remove(trial.number)
            self._settle(trial, end.error, source.wants_values)
            self._ended += trial.status != "stopped"
            self._say_end(trial, source)
        if trials:
            self._sweep.save()  # before others learn of it: who is told but not remembered would be lost
        for trial in trials:
            source.tell(trial)

    def _settle(self, trial: Trial, error: str | None, wants_values: bool) -> None:
        """The trial's status, error and values out of `result.json`, which is completed where its process could not.

        Args:
            trial: over.
            error: what its pool knows to have gone wrong.
            wants_values: whether a trial without objectives has failed.
        """
        result = self._sweep.result(trial)
        status, why = result.get("status"), error or result.get("error")
        values = self._sweep.objective_values(result)
        if status not in (*OVER, "stopped", "failed"):
            status, why = self._closed(trial, why or "it ended without a result: see its log.")
        elif status in OVER and values is None and wants_values:
            status, why = "failed", f"its result.json has no {' or no '.join(self._sweep.objectives)}."
        trial.status, trial.job = status, None
        trial.error = str(why).partition("\n")[0] if status == "failed" else None
        trial.values = values if status in OVER else None

    def _closed(self, trial: Trial, why: str) -> tuple[str, str]:
        """Completes the `result.json` of a trial that ended without a word; returns its status, and why.

        A trial may be under way in a process of an earlier start of the sweep, which nobody follows: it goes on.
        """
        folder = self._sweep.place(trial)
        folder.mkdir(exist_ok=True)
        try:
            with run_lock(folder):
                Record(folder).update(status="failed", error=why)
        except ConfigError:
            return "stopped", why
        return "failed", why

    def _wind_up(self, source: Source) -> None:
        """After a stop signal: trials save and stop, or stay with their scheduler."""
        left = []
        for number in self._pool.stop():
            self._running.remove(number)
            trial = self._sweep.trials[number]
            if trial.job is None:
                trial.status = "waiting"
            else:
                left.append(trial.job)
        while self._running:
            self._take(self._pool.wait(_LOOK), source)
        if left:
            self._say(f"{len(left)} trials go on by themselves: {', '.join(left)}")
        folder = shlex.quote(str(self._sweep.path))
        self._say(f"the sweep has stopped; it goes on with the same command and hydra.sweep.dir={folder}")

    def _say_end(self, trial: Trial, source: Source) -> None:
        """A line about a trial that is over."""
        total = source.total
        line = f"trial {trial.number} ({trial.label or 'nothing changed'}) {trial.status}"
        if trial.values is not None:
            line += f": {', '.join(f'{value:.4f}' for value in trial.values)}"
        if spent := self._sweep.result(trial).get("seconds"):
            line += f" in {timedelta(seconds=round(sum(spent.values())))}"
        if trial.error is not None:
            line += f": {trial.error}"
        mine = source.planned or list(self._sweep.trials.values())
        over = sum(trial.status in (*OVER, "failed") for trial in mine)
        line += f"  [{over} of {total}"
        if over < total and self._ended and self._stop.requested is None:
            left = (time.monotonic() - self._begun) / self._ended * (total - over)
            line += f", ETA {timedelta(seconds=round(left))}"
        self._say(f"{line}]")
