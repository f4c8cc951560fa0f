"""Pruning: a trial of a search tells the study how it fares, and ends early where others fared better.

The study is a file that all trials reach, of Optuna's journal; its steps are hundredths of an epoch.
"""

from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kgexp.errors import ConfigError
from kgexp.train.note import Note
from kgexp.world import World

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import JournalStorage
    from optuna.trial import Trial

#: Name of the study's file in a sweep's folder.
STUDY = "study.journal"
PRUNERS = ("median", "halving", "none")


def optuna() -> ModuleType:
    """The package, which takes a second to import. Raises ConfigError where it is not installed."""
    try:
        import optuna as package
    except ImportError as error:
        raise ConfigError("a search needs Optuna, which is not installed: pip install 'kgexp[sweep]'.") from error
    package.logging.set_verbosity(package.logging.WARNING)
    module: ModuleType = package
    return module


def storage(path: Path) -> "JournalStorage":
    """The study's file; it is made where it is not there."""
    optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


class Pruning:
    """Says after each validation whether the trial is worth going on.

    Args:
        folder: of the run.
        note: what the sweep told rank 0, with a study; others need none.
        world: rank 0 reports and decides for all.
    """

    def __init__(self, folder: Path, note: Note, world: World) -> None:
        assert note.study is not None and note.pruner is not None
        self._path, self._note, self._world = folder / note.study, note, world

    def __call__(self, epoch: float, value: float) -> bool:
        """Reports the objective after so many epochs; True where the trial should end."""
        verdict = None
        if self._world.rank == 0 and self._path.is_file() and (trial := self._trial()) is not None:
            trial.report(value, round(100 * epoch))
            verdict = bool(trial.should_prune())  # numpy's is no value of JSON
        return bool(self._world.broadcast("whether the trial goes on", verdict))

    @cached_property
    def _study(self) -> "Study":
        assert self._note.pruner is not None
        return optuna().load_study(study_name="kgexp", storage=storage(self._path), pruner=pruner(**self._note.pruner))

    def _trial(self) -> "Trial | None":
        """The study's view of this trial; None once it is over there: somebody continues its run by itself."""
        trials = optuna().trial
        known = self._study.get_trials(deepcopy=False)[self._note.number]
        return trials.Trial(self._study, known._trial_id) if known.state == trials.TrialState.RUNNING else None


def pruner(name: str, startup_trials: int, warmup_epochs: float) -> "BasePruner":
    """One of `PRUNERS`, but `none`.

    Args:
        name: `median` ends a trial whose best value so far is worse than the median of the finished ones at the same
            epoch; `halving` (asynchronous successive halving, Li et al., MLSys 2020) keeps the best quarter after
            `warmup_epochs`, of these the best quarter after four times as many, and so on.
        startup_trials: finished trials before `median` ends any.
        warmup_epochs: epochs before either ends a trial.
    """
    pruners: Any = optuna().pruners
    first = round(100 * warmup_epochs)
    made: BasePruner
    if name == "median":
        made = pruners.MedianPruner(n_startup_trials=startup_trials, n_warmup_steps=first)
    else:
        made = pruners.SuccessiveHalvingPruner(min_resource=max(1, first), reduction_factor=4)
    return made
