"""How the ranks of a job start, watch each other and end.

A run with several ranks starts them itself, on this machine; where a launcher such as torchrun or Slurm has started
them, rank 0 does what a single process does, and the others follow it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kgexp.errors import ConfigError
from kgexp.ranks.launched import Launch, launched
from kgexp.ranks.worker import RUN, find

if TYPE_CHECKING:  # it needs much that a refused configuration does not
    from kgexp.ranks.job import Job

__all__ = ["Launch", "follow", "is_led", "launched", "leading", "number_of_ranks", "start"]

#: The job that this process leads.
_led: "Job | None" = None


def start(config: dict[str, Any], folder: str, job_logging: dict[Any, Any] | None, worker: str = RUN) -> float | None:
    """Runs the configuration with the ranks that `sharding` wants; the caller leads them where they were launched.

    Args:
        config: checked.
        folder: the run's.
        job_logging: `hydra.job_logging`, resolved, for the ranks to set up theirs.
        worker: path of the function that each rank calls.

    Returns:
        The worker's value on rank 0.

    Raises:
        ConfigError: another number of ranks was launched than the configuration wants.
    """
    ranks = number_of_ranks(config, _led.launch.size if _led else None)
    if _led is not None and (_led.launch.size > 1 or ranks > 1):
        _compare(config, ranks, _led.launch.size)
        return _led.lead(worker, config, folder, job_logging)
    if ranks == 1:
        if _led is not None:
            _led.remember(folder)
        value: float | None = find(worker)(config, folder)
        return value
    from kgexp.ranks.spawned import spawn
    from kgexp.train.signals import StopSignal

    with StopSignal() as stop:
        return spawn(config, folder, job_logging, ranks, stop, worker)


@contextmanager
def leading(launch: Launch | None) -> Iterator[None]:
    """What rank 0 of a launched job does meanwhile is for all ranks; without a launch nothing changes.

    A start that is not the first comes back to the folder of the run: its arguments are added to the command line.
    """
    global _led
    if launch is None:
        yield
        return
    from kgexp.ranks.job import Job, restart_arguments

    job = Job(launch)
    with job.leading():
        _led = job
        try:
            if launch.attempt > 0 or job.known_place() is not None:
                sys.argv[1:] = restart_arguments(sys.argv[1:], job.known_place())
            yield
        finally:
            _led = None


def follow(launch: Launch) -> int:
    """What the other ranks of a launched job do: runs what rank 0 says. Returns the code to exit with."""
    from kgexp.ranks.job import Job

    return Job(launch).follow()


def is_led() -> bool:
    """Whether this process leads a launched job already."""
    return _led is not None


def number_of_ranks(config: dict[str, Any], launched_size: int | None = None) -> int:
    """How many ranks the configuration wants; `auto`: as many as were launched, else one a GPU, else 2; of trainers of
    partitions, each of which takes memory for some, 1."""
    ranks = config["sharding"].get("ranks", 1)
    if ranks != "auto":
        return int(ranks)
    if launched_size is not None:
        return launched_size
    if config["train"]["device"] != "cpu":
        import torch

        if gpus := torch.cuda.device_count():
            return gpus
    return 1 if "partitions" in config["sharding"] else 2


def _compare(config: dict[str, Any], ranks: int, size: int) -> None:
    if "ranks" not in config["sharding"]:
        raise ConfigError(
            f"{size} ranks were launched, but this sharding runs in one process: add sharding=rowwise or "
            "sharding=partitioned, or launch one process."
        )
    if ranks != size:
        raise ConfigError(
            f"sharding.ranks is {ranks}, but {size} ranks were launched: leave it at auto, or launch as many."
        )
