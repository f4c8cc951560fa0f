"""Pruning: a trial of a search tells the study how it fares, and ends early where others fared better.

The study is a file that all trials reach, of Optuna's journal; its steps are hundredths of an epoch.
"""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kgexp.errors import ConfigError
from kgexp.train.note import Note
from kgexp.world import World

if TYPE_CHECKING:
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

    def __init__(self, folder: Path, note: Note | None, world: World) -> None:
        self._folder, self._note, self._world = folder, note, world
        self._opened: Trial | None = None
        self._over = False

    def __call__(self, epoch: float, value: float) -> bool:
        """Reports the objective after so many epochs; True where the trial should end."""
        verdict = None
        if self._world.rank == 0:
            trial = self._trial()
            if trial is not None:
                trial.report(value, round(100 * epoch))
            verdict = trial is not None and trial.should_prune()
        return bool(self._world.broadcast("whether the trial goes on", verdict))

    def _trial(self) -> "Trial | None":
        """The study's view of this trial; None where the study is through with it, and a user goes on."""
        if self._opened is None and not self._over:
            note = self._note
            assert note is not None and note.study is not None and note.pruner is not None
            package = optuna()
            file = storage(self._folder / note.study)
            study = package.load_study(study_name="kgexp", storage=file, pruner=pruner(**note.pruner))
            trial = study.trials[note.number]
            self._over = trial.state.is_finished()
            if not self._over:
                self._opened = package.trial.Trial(study, trial._trial_id)
        return self._opened


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
