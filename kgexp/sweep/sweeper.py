"""`hydra/sweeper=grid`: every combination of the swept values, one trial each."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from kgexp.errors import ConfigError, SweepError
from kgexp.explain import explain
from kgexp.protocol import LOWER_IS_BETTER
from kgexp.resume import continues
from kgexp.sweep.arguments import combinations
from kgexp.sweep.job import Composer, Settled
from kgexp.sweep.launching import pool_of
from kgexp.sweep.runner import Runner, Source
from kgexp.sweep.summary import closing_words, log_summary
from kgexp.sweep.trials import OVER, SweepFolder, Trial, open_sweep
from kgexp.train.note import Note
from kgexp.train.pruning import STUDY
from kgexp.train.signals import StopSignal

DIRECTIONS = ("maximize", "minimize")


class SourceSweeper(Sweeper):  # type: ignore[misc]
    """What our sweepers have in common: their trials come from a source, and what became of them is remembered.

    Args:
        params: swept arguments beside those of the command line.
        objectives: dotted keys of `result.json` with directions, maximize or minimize.
    """

    def __init__(self, params: Mapping[str, Any] | None, objectives: Mapping[str, str]) -> None:
        self._params = dict(params or {})
        # Null takes a key away: Hydra adds those of the command line to the file's.
        self._objectives = {str(key): str(direction) for key, direction in objectives.items() if direction is not None}
        if not self._objectives:
            raise ConfigError("hydra.sweeper.objectives is empty: name a key of result.json.")
        for key, direction in self._objectives.items():
            if direction not in (*DIRECTIONS, *(["auto"] if key == "objective" else [])):
                raise ConfigError(
                    f"hydra.sweeper.objectives.{key} is {direction} but must be {' or '.join(DIRECTIONS)}."
                )
        self._config: DictConfig
        self._launcher: Launcher
        self._context: HydraContext

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self._config, self._context = config, hydra_context
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> float | None:
        """Runs all trials; called by Hydra.

        Returns:
            The best value of the first objective.

        Raises:
            ConfigError: a sweep cannot be run so.
            SweepError: trials failed; all others have been run.
            SystemExit: a signal stopped the sweep.
        """
        given = [f"{key}={value}" for key, value in self._params.items()] + list(arguments)
        overrides = OverridesParser.create(config_loader=self._context.config_loader).parse_overrides(given)
        folder = Path(str(self._config.hydra.sweep.dir))
        continues(self._config.resume, str(folder))
        with open_sweep(folder, self._directions()) as sweep, StopSignal() as stop:
            OmegaConf.save(self._config, folder / "multirun.yaml")
            composer = Composer(self._context.config_loader, self._config)
            source = self._source(sweep, overrides)
            print(self._opening_words(sweep, source), flush=True)
            pool = pool_of(self._launcher, self._room())
            Runner(sweep, composer, pool, stop, lambda line: print(line, flush=True)).run(source)
            if stop.requested is not None:
                stop.finish()
            print(closing_words(sweep), flush=True)
            self._track(sweep)
            self._judge(source.planned or list(sweep.trials.values()))
        values = [trial.values[0] for trial in sweep.trials.values() if trial.values is not None]
        best = max if next(iter(sweep.objectives.values())) == "maximize" else min
        return best(values, default=None)

    def _directions(self) -> dict[str, str]:
        """The objectives with their directions."""
        metric = str(OmegaConf.select(self._config, "evaluation.objective", default="")).rpartition("/")[2]
        own = "minimize" if metric in LOWER_IS_BETTER else "maximize"
        return {key: own if direction == "auto" else direction for key, direction in self._objectives.items()}

    @abstractmethod
    def _source(self, sweep: SweepFolder, overrides: Sequence[Override]) -> Source:
        """Thinks up the trials."""

    def _room(self) -> int | None:
        """Trials at a time that a launcher is given which takes them by the batch; None for no limit."""
        return None

    def _judge(self, trials: Sequence[Trial]) -> None:
        """Raises SweepError where the sweep as a whole has failed."""
        failed = [trial for trial in trials if trial.status == "failed"]
        if failed:
            raise SweepError(f"{len(failed)} of {len(trials)} trials failed, the first with: {failed[0].error}")
        if left := sum(trial.status not in OVER for trial in trials):
            raise SweepError(f"{left} of {len(trials)} trials were stopped: the same command goes on with them.")

    def _track(self, sweep: SweepFolder) -> None:
        """Leaves the table at Weights & Biases; that this fails is no reason for the sweep to fail."""
        try:
            with Settled(self._config):
                tracking = OmegaConf.to_container(self._config.tracking, resolve=True)
            assert isinstance(tracking, dict)
            sync = log_summary(sweep, {str(key): value for key, value in tracking.items()})
        except Exception as error:
            print(f"Weights & Biases has no table of the sweep: {explain(error)[0]}", flush=True)
        else:
            if sync is not None:
                print(f"upload to Weights & Biases: {sync}", flush=True)

    def _opening_words(self, sweep: SweepFolder, source: Source) -> str:
        over = sum(trial.status in OVER for trial in sweep.trials.values())
        words = f"sweep of {source.total} trials in {sweep.path}"
        return f"{words}, {over} of them over" if over else words


class GridSweeper(SourceSweeper):
    """Every combination of the swept values."""

    def _source(self, sweep: SweepFolder, overrides: Sequence[Override]) -> Source:
        return Grid(sweep, overrides)


class Grid:
    """All combinations at once.

    Args:
        sweep: remembers which there were before.
        overrides: of the command line, swept ones among them.
    """

    wants_values = False

    def __init__(self, sweep: SweepFolder, overrides: Sequence[Override]) -> None:
        self._sweep = sweep
        if (sweep.path / STUDY).is_file():
            raise ConfigError(f"{sweep.path} holds a search: choose another hydra.sweep.dir.")
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise ConfigError(
                    f"a grid cannot try all {override.input_line}: list values, or add hydra/sweeper=optuna to search."
                )
        trials = {}
        for given, own in combinations(overrides):
            trial = sweep.add(given, own)
            trials[trial.number] = trial
        self.planned = list(trials.values())
        self.total = len(self.planned)
        self._left = list(self.planned)

    def next(self, room: int | None) -> list[Trial]:
        """The next ones, in their order."""
        taken = self._left[:room]
        del self._left[:room]
        return taken

    def note(self, trial: Trial) -> Note:
        """Its name and its group."""
        return Note(self._sweep.name, trial.label, trial.number)

    def tell(self, trial: Trial) -> None:
        """Nothing follows from it."""
