"""Launchers as a sweep uses them: those that take trials one by one, and any other, which takes them by the batch."""

import logging
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from kgexp.errors import ConfigError, KgexpError
from kgexp.explain import explain
from kgexp.sweep.job import Composer, Ended, Job, Pool, error_of, folder_name
from kgexp.sweep.slots import at_a_time
from kgexp.train.note import Note
from kgexp.train.record import Record

log = logging.getLogger("kgexp")


class PoolLauncher(Launcher):  # type: ignore[misc]
    """A launcher with a pool; for Hydra's own sweepers it is one like any other."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        self.config, self.task_function, self.hydra_context = config, task_function, hydra_context

    @abstractmethod
    def pool(self) -> Pool:
        """A new one, for one sweep."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs jobs to their end; what they return is the objective in their `result.json`."""
        assert self.config is not None and self.hydra_context is not None
        composer = Composer(self.hydra_context.config_loader, self.config)
        jobs = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            config = composer.compose(number, overrides)
            folder = Path(config.hydra.sweep.dir, folder_name(config))
            Note("/".join(folder.parent.absolute().parts[-2:]), " ".join(overrides), number).write(folder)
            jobs.append(Job(number, list(overrides), config, folder))
        errors: dict[int, str | None] = {}
        pool = self.pool()
        try:
            pool.submit(jobs)
            while len(errors) < len(jobs):
                errors |= {ended.number: ended.error for ended in pool.wait(1.0)}
        finally:
            pool.close()
        return [_returned(job, errors[job.number]) for job in jobs]


class Batches:
    """Any launcher of Hydra's as a pool: it is given all jobs that wait, and comes back when all of them are over.

    Args:
        launcher: set up.
        room: jobs that it is given at once at most; None for no limit.
    """

    quiet = False

    def __init__(self, launcher: Launcher, room: int | None) -> None:
        self.room = room
        self._launcher = launcher
        self._waiting: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> dict[int, str]:
        """Takes in jobs for `wait`."""
        self._waiting += jobs
        return {}

    def wait(self, seconds: float) -> list[Ended]:
        """Has the launcher run jobs with successive numbers, as it must, however long that takes."""
        batch: list[Job] = []
        while self._waiting and (not batch or self._waiting[0].number == batch[-1].number + 1):
            batch.append(self._waiting.pop(0))
        if not batch:
            time.sleep(seconds)
            return []
        before, records = HydraConfig.instance().cfg, [_stamp(job) for job in batch]
        try:
            returned = self._launcher.launch([job.overrides for job in batch], batch[0].number)
        except Exception as error:
            begun = [job for job, stamp in zip(batch, records, strict=True) if _stamp(job) != stamp]
            return self._lost(batch, begun, error)
        finally:
            HydraConfig.instance().cfg = before
            if before is not None:
                configure_log(before.hydra.hydra_logging, before.hydra.verbose)
        return [Ended(job.number, error_of(one)) for job, one in zip(batch, returned, strict=True)]

    def stop(self) -> list[int]:
        """Nothing runs between two calls of `wait`."""
        dropped = [job.number for job in self._waiting]
        self._waiting.clear()
        return dropped

    def close(self) -> None:
        """Nothing is left."""

    def _lost(self, batch: Sequence[Job], begun: Sequence[Job], error: Exception) -> list[Ended]:
        """A launcher that dies, as joblib's does with one of its processes: what has not begun waits again."""
        log.error("the launcher failed", exc_info=error)
        if not begun:
            raise KgexpError(f"the launcher cannot start trials ({explain(error)[0]}): see hydra/launcher.") from error
        self._waiting = [job for job in batch if job not in begun] + self._waiting
        words = f"the launcher lost it ({explain(error)[0]})."
        running = {job.number for job in begun if Record(job.folder).values.get("status") == "running"}
        return [Ended(job.number, words if job.number in running else None) for job in begun]


def pool_of(launcher: Launcher, room: int | None) -> Pool:
    """The pool of a launcher.

    Raises:
        ConfigError: it puts trials elsewhere, while torchrun has started ranks for them here.
    """
    if isinstance(launcher, PoolLauncher):
        return launcher.pool()
    from kgexp.ranks import is_led

    if is_led() and type(launcher).__name__ != "BasicLauncher":
        raise ConfigError(
            f"{type(launcher).__name__} puts runs into other processes than those that were launched: with torchrun "
            "and srun leave hydra/launcher out."
        )
    return Batches(launcher, _at_a_time(launcher) if room is None else room)


def _at_a_time(launcher: Launcher) -> int | None:
    """How many trials a launcher of Hydra's runs at once; None where it is not known."""
    if type(launcher).__name__ == "BasicLauncher":
        return 1
    jobs = getattr(launcher, "joblib", {}).get("n_jobs")
    return None if jobs is None else at_a_time(jobs)


def _stamp(job: Job) -> int | None:
    """When the job's `result.json` was written; None where there is none."""
    path = job.folder / "result.json"
    return path.stat().st_mtime_ns if path.is_file() else None


def _returned(job: Job, error: str | None) -> JobReturn:
    """What Hydra's sweepers expect of a job."""
    values = Record(job.folder).values
    returned = JobReturn(overrides=job.overrides, cfg=job.config, working_dir=str(job.folder))
    if values.get("status") in ("finished", "pruned", "stopped") and error is None:
        returned.status, returned.return_value = JobStatus.COMPLETED, values.get("objective")
    else:
        returned.status = JobStatus.FAILED
        returned.return_value = KgexpError(values.get("error") or error or "the trial ended without a result.")
    return returned
