"""What every rank of a job does, however it was started: sets up its log, does the run, leaves word if it failed."""

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.utils import configure_log
from omegaconf import OmegaConf

from kgexp.errors import GivenUpError
from kgexp.explain import explain

if TYPE_CHECKING:  # it imports torch
    from kgexp.store_world import StoreWorld

#: The function that runs a configuration; a path, as a rank imports it on its own: `f(config, folder, world)`.
RUN = "kgexp.run.run"


def configure_logging(job_logging: Mapping[str, Any] | None, rank: int) -> None:
    """Sets up logging as Hydra does in the process that it starts; ranks other than 0 log errors only.

    Args:
        job_logging: `hydra.job_logging` with its interpolations resolved; None leaves logging as it is.
    """
    if job_logging is not None:
        configure_log(OmegaConf.create(dict(job_logging)), False)
    if rank > 0:
        logging.disable(logging.WARNING)


def find(path: str) -> Any:
    """What the path of a function or class names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def take_part(
    worker: str,
    config: dict[str, Any],
    folder: str,
    world: "StoreWorld",
    job_logging: Mapping[str, Any] | None = None,
) -> float | None:
    """Sets up logging (`configure_logging`) and calls the worker; where that fails, leaves word for ranks that wait.

    The folder is made where it is not there: rank 0 has it, but another machine may not see that one.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        configure_logging(job_logging, world.rank)
        value: float | None = find(worker)(config, folder, world)
        return value
    except GivenUpError:
        raise  # the others go on
    except Exception as error:
        world.fail(explain(error)[0])
        raise
