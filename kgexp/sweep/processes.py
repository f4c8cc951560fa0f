"""`hydra/launcher=local`: trials as processes of this machine, several at a time.

A trial that crashes or runs out of memory takes nothing else with it, and leaves nothing behind in memory. Where a
launcher such as torchrun has started the ranks of all trials, they run in this process, one after the other.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from hydra.types import TaskFunction
from omegaconf import DictConfig

from kgexp.errors import ConfigError
from kgexp.ranks import is_led
from kgexp.ranks.child import die_with
from kgexp.sweep.job import Ended, Job, Pool, error_of, run_composed
from kgexp.sweep.launching import PoolLauncher
from kgexp.train.signals import STOP_SIGNALS

#: Where a trial writes what it would print, where several print at a time.
CONSOLE = "console.txt"
#: Characters of an error that a process tells.
_SAID = 4000


class LocalLauncher(PoolLauncher):
    """Runs trials as processes of this machine.

    Args:
        n_jobs: trials at a time; each has its part of the cores and GPUs, see `kgexp.sweep.slots`.
    """

    def __init__(self, n_jobs: int) -> None:
        super().__init__()
        if not isinstance(n_jobs, int) or n_jobs < 1:
            raise ConfigError(f"hydra.launcher.n_jobs is {n_jobs} but must be a whole number, at least 1.")
        self.n_jobs = n_jobs

    def pool(self) -> Pool:
        """A new one, for one sweep."""
        assert self.task_function is not None
        return InProcess(self.task_function) if is_led() else Processes(self.task_function, self.n_jobs)


class InProcess:
    """A pool without processes: the ranks of all trials follow this one."""

    room: int | None = 1
    quiet = False

    def __init__(self, task: TaskFunction) -> None:
        self._task = task
        self._waiting: deque[Job] = deque()

    def submit(self, jobs: Sequence[Job]) -> dict[int, str]:
        """Takes in jobs for `wait`."""
        self._waiting += jobs
        return {}

    def wait(self, seconds: float) -> list[Ended]:
        """Runs the next job, however long that takes."""
        if not self._waiting:
            return []
        job = self._waiting.popleft()
        return [Ended(job.number, error_of(run_composed(job.config, self._task)))]

    def stop(self) -> list[int]:
        """Nothing runs between two calls of `wait`."""
        dropped = [job.number for job in self._waiting]
        self._waiting.clear()
        return dropped

    def close(self) -> None:
        """Nothing is left."""


@dataclass
class _Child:
    job: Job
    process: SpawnProcess
    pipe: Connection
    error: str | None = None


class Processes:
    """A pool of processes of this machine, each for one trial.

    Args:
        task: what a trial does, importable.
        room: how many there are at a time.
    """

    def __init__(self, task: TaskFunction, room: int) -> None:
        self.room: int | None = room
        self.quiet = room > 1
        self._task, self._limit = task, room
        self._waiting: deque[Job] = deque()
        self._children: list[_Child] = []

    def submit(self, jobs: Sequence[Job]) -> dict[int, str]:
        """Takes in jobs; they start as processes end."""
        self._waiting += jobs
        self._fill()
        return {}

    def wait(self, seconds: float) -> list[Ended]:
        """Waits for the first process that ends."""
        self._fill()
        if self._children:
            connection.wait([child.process.sentinel for child in self._children], seconds)
        ended = [child for child in self._children if child.process.exitcode is not None]
        self._children = [child for child in self._children if child not in ended]
        self._fill()
        return [Ended(child.job.number, _last_words(child)) for child in ended]

    def stop(self) -> list[int]:
        """Tells the trials to save and stop; others do not start."""
        dropped = [job.number for job in self._waiting]
        self._waiting.clear()
        for child in self._children:
            if child.process.pid is not None and child.process.exitcode is None:
                os.kill(child.process.pid, signal.SIGTERM)
        return dropped

    def close(self) -> None:
        """Kills what still runs."""
        self._waiting.clear()
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.join()
            child.pipe.close()
        self._children.clear()

    def _fill(self) -> None:
        while self._waiting and len(self._children) < self._limit:
            job = self._waiting.popleft()
            console = str(job.folder / CONSOLE) if self.quiet else None
            ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
            with _birth():
                process = multiprocessing.get_context("spawn").Process(
                    target=_main,
                    args=(job.config, self._task, theirs, console, os.getpid()),
                    name=f"trial {job.number}",
                )
                process.start()
            theirs.close()
            self._children.append(_Child(job, process, ours))


def _main(config: DictConfig, task: TaskFunction, pipe: Connection, console: str | None, parent: int) -> None:
    """The process of a trial."""
    die_with(parent)
    # The sweep tells its trials to stop, and so may whoever interrupts all processes, as a terminal and Slurm do: what
    # comes when the run has saved already, or has not begun to listen, must not end it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(signum, lambda signum, frame: None)
    if console is not None:
        _print_to(Path(console))
    try:
        error = error_of(run_composed(config, task))
    finally:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)  # Python would give up a handler of its own as it ends
    if error is not None:
        with suppress(BrokenPipeError):
            pipe.send(error[:_SAID])  # what is longer would wait for somebody to read it
    sys.exit(0 if error is None else 1)


def _print_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _last_words(child: _Child) -> str | None:
    """What the process said went wrong, or how it died; None where it ended in peace, or stopped as it was told."""
    said: str | None = None
    with suppress(EOFError, OSError):
        said = child.pipe.recv() if child.pipe.poll() else None
    child.pipe.close()
    child.process.join()
    code = child.process.exitcode or 0
    if said is not None or code == 0 or code > 128:
        return said
    if code < 0:
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        name = f" ({signal.Signals(-code).name})" if -code in list(signal.Signals) else ""
        return f"the trial's process was killed by signal {-code}{name}{hint}."
    return f"the trial's process ended with code {code} without a word."


@contextmanager
def _birth() -> Iterator[None]:
    """Signals are held back in a process that starts meanwhile, until it listens."""
    resource_tracker.ensure_running()  # which changes the signal mask when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
