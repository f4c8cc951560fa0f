"""A trial where it runs: Hydra's part of a job, from a configuration that the sweep has composed already.

The files below `conf/` may change while a trial waits for its turn, so they are not read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from hydra._internal.callbacks import Callbacks
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobRuntime, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from kgexp.explain import explain


@dataclass(frozen=True)
class Job:
    """A trial to run.

    Attributes:
        number: of the trial.
        overrides: its command-line arguments.
        config: composed, `hydra` included.
        folder: the run's.
        handle: what the pool that ran it before said of it, see `Pool.submit`.
    """

    number: int
    overrides: list[str]
    config: DictConfig
    folder: Path
    handle: str | None = None


@dataclass(frozen=True)
class Ended:
    """A trial is over; what became of it says `result.json`.

    Attributes:
        number: of the trial.
        error: what went wrong where the trial could not write so itself.
    """

    number: int
    error: str | None = None


class Pool(Protocol):
    """Runs trials, several at a time or on other machines.

    Attributes:
        room: trials that run at a time; None where a scheduler decides.
        quiet: whether the terminal is left to the sweep.
    """

    room: int | None
    quiet: bool

    def submit(self, jobs: Sequence[Job]) -> dict[int, str]:
        """Takes in jobs; returns, by number, what finds them again after the sweep's process has died."""

    def wait(self, seconds: float) -> list[Ended]:
        """The jobs that are over and have not been told yet; comes back without one after `seconds`."""

    def stop(self) -> list[int]:
        """Has the jobs save and stop. Returns those that `wait` will not tell of: that never began, or that go on
        without the sweep, as their scheduler has them."""

    def close(self) -> None:
        """Nothing of this machine outlives it."""


class Composer:
    """Composes trials as Hydra's launchers do.

    Args:
        loader: Hydra's.
        base: the sweep's configuration.
    """

    def __init__(self, loader: ConfigLoader, base: DictConfig) -> None:
        self._loader, self._base = loader, base

    def compose(self, number: int, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a trial, with `hydra`. Hydra raises what is wrong with the arguments."""
        config: DictConfig = self._loader.load_sweep_config(self._base, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
            config.hydra.sweep.dir = str(Path(self._base.hydra.sweep.dir).absolute())
        return config


class Settled:
    """A context in which `${hydra:…}` finds what it finds in the job of this configuration."""

    def __init__(self, config: DictConfig) -> None:
        self._config, self._before = config, HydraConfig.instance().cfg

    def __enter__(self) -> None:
        HydraConfig.instance().set_config(self._config)

    def __exit__(self, *error: object) -> None:
        HydraConfig.instance().cfg = self._before


def folder_name(config: DictConfig) -> str:
    """What a trial's folder is called below the sweep's."""
    with Settled(config):
        return str(config.hydra.sweep.subdir)


def run_composed(config: DictConfig, task: TaskFunction) -> JobReturn:
    """Calls the task as Hydra's launchers do; what it returned or raised is in the result."""
    setup_globals()
    JobRuntime.instance().set("name", OmegaConf.select(config, "hydra.job.name"))
    # Nothing is composed any more.
    context = HydraContext(config_loader=cast(Any, None), callbacks=Callbacks(config))
    return run_job(
        task_function=task,
        config=config,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        hydra_context=context,
    )


def error_of(returned: JobReturn) -> str | None:
    """The sentence about what a job raised."""
    error = returned._return_value
    return explain(error)[0] if isinstance(error, BaseException) else None
