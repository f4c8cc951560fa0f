"""`hydra/sweeper=optuna`: trials that learn from those before them, in a study that outlives its process.

The study is a journal file in the sweep's folder. Trials report to it themselves and hear from it whether to go on
(`kgexp.train.pruning`); the sweep asks it for trials and tells it what became of them.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from kgexp.errors import ConfigError, SweepError, meant
from kgexp.sweep.slots import at_a_time
from kgexp.sweep.space import arguments, check_same, distributions, within
from kgexp.sweep.sweeper import SourceSweeper
from kgexp.sweep.trials import SweepFolder, Trial
from kgexp.train.note import Note
from kgexp.train.pruning import PRUNERS, STUDY, optuna, storage

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

SAMPLERS = ("tpe", "random", "nsga2")
#: Trials at a time where neither the launcher nor the user says how many.
_AT_A_TIME = 8


class SearchSweeper(SourceSweeper):
    """Optuna.

    Args:
        n_trials: in all, those of earlier starts of the sweep among them.
        n_jobs: at a time; auto: as many as the launcher runs.
        sampler: one of `SAMPLERS`.
        seed: of the sampler; trial k draws with a seed of its own, whatever the number of starts.
        baseline: whether the first trial has the values that the configuration has without the search.
        pruner: one of `PRUNERS`.
        startup_trials: finished trials before any is pruned.
        warmup_epochs: epochs of a trial before it is pruned.
        params, objectives: see `SourceSweeper`.
    """

    def __init__(
        self,
        n_trials: int,
        n_jobs: int | str,
        sampler: str,
        seed: int,
        baseline: bool,
        pruner: str,
        startup_trials: int,
        warmup_epochs: float,
        params: Mapping[str, Any] | None,
        objectives: Mapping[str, str],
    ) -> None:
        super().__init__(params, objectives)
        for name, value, known in (("sampler", sampler, SAMPLERS), ("pruner", pruner, PRUNERS)):
            if value not in known:
                words = f"hydra.sweeper.{name} is {value} but must be {' or '.join(known)}"
                raise ConfigError(words + meant(value, known))
        jobs = [] if n_jobs == "auto" else [("n_jobs", n_jobs)]
        for name, number in [("n_trials", n_trials), *jobs]:
            if not isinstance(number, int) or number < 1:
                raise ConfigError(f"hydra.sweeper.{name} is {number} but must be a whole number, at least 1.")
        if pruner != "none" and list(self._objectives) != ["objective"]:
            several = len(self._objectives) > 1
            kind = "several objectives" if several else "another objective than that of their validations"
            raise ConfigError(f"trials with {kind} cannot be pruned: add hydra.sweeper.pruner=none.")
        self._n_trials, self._n_jobs, self._baseline = n_trials, n_jobs, baseline
        self._sampler, self._seed = sampler, seed
        settings = {"name": pruner, "startup_trials": startup_trials, "warmup_epochs": warmup_epochs}
        self._pruner = None if pruner == "none" else settings

    def _room(self) -> int:
        """Trials at a time."""
        if self._n_jobs != "auto":
            return int(self._n_jobs)
        return at_a_time(self._config.hydra.launcher.get("n_jobs") or _AT_A_TIME)

    def _source(self, sweep: SweepFolder, overrides: Sequence[Override]) -> "Search":
        if sweep.trials and not (sweep.path / STUDY).is_file():
            raise ConfigError(f"{sweep.path} holds a sweep that is no search: choose another hydra.sweep.dir.")
        # Of a key that is given twice the last value counts: of the command line, after those of a sweep file.
        overrides = list({override.get_key_element(): override for override in overrides}.values())
        space = distributions(overrides)
        fixed = [override for override in overrides if not override.is_sweep_override()]
        shared = [f"{o.get_key_element()}={o.get_value_element_as_str()}" for o in fixed]
        study = optuna().create_study(
            storage=storage(sweep.path / STUDY),
            study_name="kgexp",
            directions=list(sweep.objectives.values()),
            load_if_exists=True,
        )
        check_same(space, study)
        _check_fixed(sweep, shared, space)
        if self._baseline and not study.trials:
            study.enqueue_trial(within(space, _values(self._config, space)))
        return Search(sweep, study, space, shared, self._n_trials, self._room(), self._make_sampler, self._pruner)

    def _make_sampler(self, number: int) -> "BaseSampler":
        samplers = optuna().samplers
        seed = zlib.crc32(f"{self._seed}/{number}".encode())
        if self._sampler == "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=10)
        if self._sampler == "random":
            return samplers.RandomSampler(seed=seed)
        # Generations of a size that lets a search have several.
        return samplers.NSGAIISampler(seed=seed, population_size=max(2, min(50, self._n_trials // 5)))

    def _judge(self, trials: Sequence[Trial]) -> None:
        """Single failures are what a search learns from."""
        if not any(trial.values is not None for trial in trials):
            super()._judge(trials)
            raise SweepError("no trial has finished.")


class Search:
    """Asks a study for trials as others end.

    Args:
        sweep: remembers them.
        study: as of earlier starts, or new.
        space: what it chooses from.
        shared: arguments of all trials.
        total: trials in all.
        at_a_time: trials that run at once.
        sampler: makes the sampler of a trial out of its number.
        pruner: name and settings of the pruner, for the trials; None prunes none.
    """

    wants_values = True

    def __init__(
        self,
        sweep: SweepFolder,
        study: "Study",
        space: "Mapping[str, BaseDistribution]",
        shared: Sequence[str],
        total: int,
        at_a_time: int,
        sampler: Any,
        pruner: dict[str, Any] | None,
    ) -> None:
        self._sweep, self._study, self._space, self._shared = sweep, study, dict(space), list(shared)
        self.total, self._at_a_time = total, at_a_time
        self.planned: list[Trial] = []
        self._sampler, self._pruner = sampler, pruner
        running = optuna().trial.TrialState.RUNNING
        self._again = [t.number for t in study.trials if t.state == running]
        self._given = 0

    def next(self, room: int | None) -> list[Trial]:
        """First those that an earlier start left behind, then new ones."""
        free = self._at_a_time - self._given
        free = free if room is None else min(free, room)
        trials = [self._asked_before(self._again.pop(0)) for _ in range(min(free, len(self._again)))]
        while len(trials) < free and (number := self._asked()) < self.total:
            self._study.sampler = self._sampler(number)
            asked = self._study.ask(self._space)
            trials.append(self._trial(asked.number, asked.params))
        self._given += len(trials)
        return trials

    def note(self, trial: Trial) -> Note:
        """With the way to the study where trials are pruned."""
        if self._pruner is None:
            return Note(self._sweep.name, trial.label, trial.number)
        study = os.path.relpath(self._sweep.path / STUDY, self._sweep.place(trial))
        return Note(self._sweep.name, trial.label, trial.number, study, self._pruner)

    def tell(self, trial: Trial) -> None:
        """The study learns from it; one that was stopped is left for the next start."""
        self._given -= 1
        if trial.status == "stopped":
            return
        states = optuna().trial.TrialState
        state = {"finished": states.COMPLETE, "pruned": states.PRUNED}.get(trial.status, states.FAIL)
        values = trial.values if state == states.COMPLETE else None
        self._study.tell(trial.number, values, state=state, skip_if_finished=True)

    def _asked(self) -> int:
        """Trials that the study has given so far; those in its queue have a number, too."""
        waiting = optuna().trial.TrialState.WAITING
        return sum(trial.state != waiting for trial in self._study.get_trials(deepcopy=False))

    def _asked_before(self, number: int) -> Trial:
        """A trial of an earlier start; what that had no time to choose is chosen now."""
        params = self._study.trials[number].params
        if missing := {key: one for key, one in self._space.items() if key not in params}:
            self._study.sampler = self._sampler(number)
            asked = optuna().trial.Trial(self._study, self._study.trials[number]._trial_id)
            params |= {key: asked._suggest(key, distribution) for key, distribution in missing.items()}
        return self._trial(number, params)

    def _trial(self, number: int, params: Mapping[str, Any]) -> Trial:
        chosen = arguments(params)
        return self._sweep.put(number, [*self._shared, *chosen], chosen)


def _check_fixed(sweep: SweepFolder, shared: Sequence[str], space: Mapping[str, Any]) -> None:
    """Raises ConfigError where trials of earlier starts were others for what is not searched."""
    for trial in sweep.trials.values():
        keys = space.keys() | {argument.partition("=")[0] for argument in trial.swept}
        if differing := trial.fixed(keys) ^ Trial(trial.number, list(shared)).fixed(keys):
            raise ConfigError(
                f"{sweep.path} holds a search with other arguments ({', '.join(sorted(differing))}), whose trials "
                "cannot be compared with new ones: give the same, or choose another hydra.sweep.dir."
            )


def _values(config: DictConfig, keys: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration has without the search; of a group its choice."""
    choices = OmegaConf.to_container(config.hydra.runtime.choices)
    assert isinstance(choices, dict)
    return {key: choices.get(key, OmegaConf.select(config, key, default=None)) for key in keys}
