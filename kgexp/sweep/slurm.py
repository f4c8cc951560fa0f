"""`hydra/launcher=slurm`: trials as jobs of Slurm, by submitit; a grid is one array.

A job that is preempted or out of time saves, is queued again by submitit's handler of SIGUSR2, and goes on in its
folder. The sweep follows its jobs by the queue, which needs no accounting, and finds those of an earlier start again.
"""

import getpass
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.types import TaskFunction
from omegaconf import DictConfig, OmegaConf

from kgexp.errors import ConfigError, KgexpError
from kgexp.ranks import is_led, launched
from kgexp.sweep.job import Ended, Job, Pool, error_of, run_composed
from kgexp.sweep.launching import PoolLauncher

if TYPE_CHECKING:
    from submitit import Job as SubmittedJob

log = logging.getLogger("kgexp")

#: Seconds between two looks at the queue; that a job has to leave its result once Slurm says that it has ended.
_LOOK, _GRACE = 5.0, 15.0
#: What Slurm says of a job that will not run again by itself.
_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)
_HANDLE = "slurm:"
#: Jobs of an array at most: Slurm takes 1,000 unless it is told otherwise.
_ARRAY = 500
#: Seconds before a command of Slurm's is tried again.
_PAUSES = (5, 20, 60, 180)
#: Arguments of the launcher that submitit knows under the same name for every kind of cluster.
_COMMON = ("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name")


class SlurmLauncher(PoolLauncher):
    """Submits trials to Slurm.

    Args:
        submitit_folder: of the job scripts and their output; `%j` is the job's id.
        max_num_timeout: how often a trial may run out of time and go on.
        settings: submitit's, those of Slurm without `slurm_` before their names; null leaves one to the cluster.
    """

    def __init__(self, submitit_folder: str, max_num_timeout: int, **settings: Any) -> None:
        super().__init__()
        self._folder, self._max_num_timeout = submitit_folder, max_num_timeout
        plain = {key: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for key, v in settings.items()}
        self._settings = {key if key in _COMMON else f"slurm_{key}": v for key, v in plain.items() if v is not None}

    def pool(self) -> Pool:
        """A new one, for one sweep."""
        if is_led():
            raise ConfigError("torchrun and srun have started ranks already: leave hydra/launcher out.")
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(
                "hydra/launcher=slurm needs submitit, which is not installed: pip install 'kgexp[slurm]'."
            ) from error
        try:
            executor = submitit.AutoExecutor(
                folder=self._folder, cluster="slurm", slurm_max_num_timeout=self._max_num_timeout
            )
            executor.update_parameters(**self._settings)
        except (RuntimeError, ValueError, TypeError, NameError) as error:
            raise ConfigError(f"hydra/launcher=slurm: {' '.join(str(error).split())}") from error
        assert self.task_function is not None
        return SlurmPool(executor, self._folder, self.task_function)


class SlurmTrial:
    """What a job calls. Several tasks are the ranks of one run: the first leads, the others follow.

    Args:
        config: composed.
        task: what a run does, importable.
    """

    def __init__(self, config: DictConfig, task: TaskFunction) -> None:
        self._config, self._task = config, task

    def __call__(self) -> float | None:
        """Runs the trial; raises what it raised."""
        launch = launched()
        if launch is not None and launch.rank > 0:
            followed: float | None = self._task(self._config)
            return followed
        returned = run_composed(self._config, self._task)
        if (error := error_of(returned)) is not None:
            raise KgexpError(error) from returned._return_value
        value: float | None = returned.return_value
        return value

    def checkpoint(self) -> Any:
        """Called by submitit when it queues the job again: the same trial, which finds its checkpoint itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass
class _Submitted:
    number: int
    job: "SubmittedJob[Any]"
    ended: float | None = None


class SlurmPool:
    """Jobs of Slurm.

    Args:
        executor: of submitit, set up.
        folder: its folder, with `%j`.
        task: what a trial does, importable.
    """

    room: int | None = None
    quiet = True

    def __init__(self, executor: Any, folder: str, task: TaskFunction) -> None:
        self._executor, self._folder, self._task = executor, folder, task
        self._jobs: list[_Submitted] = []
        self._looked = -_LOOK

    def submit(self, jobs: Sequence[Job]) -> dict[int, str]:
        """Submits jobs, as arrays where there are several; those that an earlier start left in the queue stay."""
        from submitit import SlurmJob

        queue = self._asked_until_it_answers() if any(job.handle for job in jobs) else {}
        fresh = []
        for job in jobs:
            known = (job.handle or "").removeprefix(_HANDLE)
            if queue.get(known, "COMPLETED") in _ENDED:
                fresh.append(job)
            else:
                self._jobs.append(_Submitted(job.number, SlurmJob(folder=self._folder, job_id=known)))
        for first in range(0, len(fresh), _ARRAY):
            some = fresh[first : first + _ARRAY]
            made = self._submitted([SlurmTrial(job.config, self._task) for job in some])
            self._jobs += [_Submitted(job.number, one) for job, one in zip(some, made, strict=True)]
        return {entry.number: f"{_HANDLE}{entry.job.job_id}" for entry in self._jobs}

    def _submitted(self, trials: Sequence[SlurmTrial]) -> "Sequence[SubmittedJob[Any]]":
        """Jobs of trials; a controller that is busy or starts anew is given some minutes."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        for pause in (*_PAUSES, None):
            try:
                with _outside_of_jobs():
                    if len(trials) == 1:
                        return [self._executor.submit(trials[0])]
                    made: Sequence[SubmittedJob[Any]] = self._executor.submit_array(trials)
                    return made
            except (FailedJobError, FailedSubmissionError, OSError, subprocess.SubprocessError) as error:
                if pause is None:
                    raise KgexpError(f"Slurm did not take the job: {_sentence(error)}") from error
                log.warning("Slurm did not take the job (%s): trying again in %d s", _sentence(error), pause)
                time.sleep(pause)
        raise AssertionError

    def _asked_until_it_answers(self) -> Mapping[str, str]:
        """The queue. Who took silence for an empty one would submit again what is running."""
        for pause in (*_PAUSES, None):
            if (queue := self._queue()) is not None:
                return queue
            if pause is not None:
                time.sleep(pause)
        raise KgexpError("squeue does not answer, so nobody knows which trials are running: see whether Slurm is up.")

    def wait(self, seconds: float) -> list[Ended]:
        """Looks for results, and into the queue for jobs that ended without one."""
        time.sleep(seconds if self._jobs else 0)
        ended = [entry for entry in self._jobs if entry.job.task(0).paths.result_pickle.exists()]
        over = [Ended(entry.number, _raised(entry.job)) for entry in ended]
        over += self._lost([entry for entry in self._jobs if entry not in ended])
        numbers = {end.number for end in over}
        self._jobs = [entry for entry in self._jobs if entry.number not in numbers]
        return over

    def stop(self) -> list[int]:
        """Slurm keeps them."""
        left = [entry.number for entry in self._jobs]
        self._jobs.clear()
        return left

    def close(self) -> None:
        """Slurm keeps them."""

    def _lost(self, entries: Sequence[_Submitted]) -> list[Ended]:
        """Those that Slurm has ended, or does not know any more, a while after it first said so."""
        if not entries or time.monotonic() - self._looked < _LOOK:
            return []
        self._looked = time.monotonic()
        if (queue := self._queue()) is None:
            return []
        lost = []
        for entry in entries:
            state = queue.get(str(entry.job.job_id))
            if state is not None and state not in _ENDED:
                entry.ended = None
            elif entry.ended is None:
                entry.ended = time.monotonic()
            elif time.monotonic() - entry.ended > _GRACE:
                folder = entry.job.task(0).paths.stderr.parent
                lost.append(
                    Ended(entry.number, f"Slurm job {entry.job.job_id} {_what(state)}: see its output in {folder}.")
                )
        return lost

    def _queue(self) -> Mapping[str, str] | None:
        """The user's jobs with their states; None where Slurm does not answer."""
        command = ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", "--format=%i %T"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("squeue does not answer (%s): asking again", error)
            return None
        return dict(line.split(maxsplit=1) for line in said.splitlines() if line.strip())


@contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """Hides the job that leads the sweep, where it is one: what it was given is not for the trials."""
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")) and name != "SLURM_CONF"
    }
    try:
        yield
    finally:
        os.environ.update(hidden)


def _what(state: str | None) -> str:
    return "is not in the queue any more" if state is None else f"ended as {state} without a result"


def _raised(job: "SubmittedJob[Any]") -> str | None:
    """The last line of what the job raised."""
    outcome, result = job.task(0)._get_outcome_and_result()
    return None if outcome == "success" else _sentence(str(result))


def _sentence(error: object) -> str:
    """The last line, where Python says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip().removeprefix("kgexp.errors.KgexpError: ") if lines else type(error).__name__
