"""Ranks as processes of this machine: starts them, passes a stop signal on, and ends them all when one fails."""

import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from kgexp.errors import GivenUpError, RankError
from kgexp.explain import explain
from kgexp.ranks.child import JOINED, Report, Seat, main
from kgexp.ranks.worker import RUN
from kgexp.threads import thread_count
from kgexp.train.record import Record
from kgexp.train.signals import STOP_SIGNALS, StopSignal

log = logging.getLogger("kgexp")

#: Seconds between two looks at the stop signal; for the other ranks to report, once one has failed; to exit.
_LOOK, _GRACE, _EXIT = 0.2, 3.0, 30.0


def spawn(
    config: dict[str, Any],
    folder: str,
    job_logging: dict[str, Any] | None,
    ranks: int,
    stop: StopSignal,
    worker: str = RUN,
    world: str = "kgexp.ranks.child.store_world",
) -> float | None:
    """Runs the configuration in `ranks` processes of this machine, which share a file as their store.

    Args:
        config, folder: of the run.
        job_logging: `hydra.job_logging`, resolved; None leaves logging alone.
        stop: of this process; the first rank is told when it notes a signal, and all ranks stop together.
        worker: path of the function that each rank calls.
        world: path of the context that gives each rank its world, from its `Seat`.

    Returns:
        What the worker returned on rank 0.

    Raises:
        Exception: what went wrong first, in whichever rank; `result.json` says so, unless rank 0 has.
        RankError: a rank was killed; names it and the signal.
        SystemExit: a signal stopped the run, after it had saved.
    """
    timeout = float(config["sharding"].get("timeout", 300.0))
    with tempfile.TemporaryDirectory(prefix="kgexp-ranks-") as scratch:
        store, parent = os.path.join(scratch, "store"), os.getpid()
        seats = [
            Seat(rank, ranks, store, timeout, world, worker, config, folder, job_logging, parent)
            for rank in range(ranks)
        ]
        files = config["storage"]["_target_"] != "kgexp.storage.memory.MemoryStorage" if "storage" in config else False
        crew = _Crew(files and config["sharding"].get("scheduler") == "locks")
        try:
            with _birth(thread_count(config.get("train", {}).get("threads", "auto"), ranks)):
                for seat in seats:
                    crew.start(seat)
            crew.watch(stop)
        finally:
            crew.end()
    if (failure := crew.root()) and not crew.finished():
        for other in crew.failures:
            if other is not failure:  # it may tell more than what is raised
                log.error("rank %d: %s", other.rank, other.error, exc_info=other.trace)
        if failure.rank > 0 or not failure.told:
            _record(folder, failure.error)
        raise failure.error from failure.trace
    reports = [member.report for member in crew.members if member.report is not None]
    codes = [report.stopped for report in reports if report.stopped is not None]
    if codes:
        stop.finish()
        raise SystemExit(codes[0])  # the ranks were told by somebody else
    return reports[0].value


class _Trace(Exception):
    """The traceback of another process, shown above that of this one."""


class _Failure:
    """What went wrong with a rank.

    Attributes:
        told: the rank said so itself.
        own: it is no consequence of what happened to another rank.
    """

    def __init__(self, rank: int, error: BaseException, trace: str = "", *, told: bool) -> None:
        self.rank, self.error, self.told = rank, error, told
        self.own = not (told and isinstance(error, RankError))
        self.trace = _Trace(f"\n{trace}") if trace else None


class _Member:
    """A rank, as the parent knows it."""

    def __init__(self, rank: int, process: SpawnProcess, pipe: Connection) -> None:
        self.rank, self.process, self.pipe = rank, process, pipe
        self.report: Report | None = None
        self.joined = self.ended = False

    def look(self) -> _Failure | None:
        """Takes in what is new of the rank; returns a failure once."""
        # In this order: a process that has ended reported before.
        exited = self.process.exitcode is not None
        if self.report is None and self.pipe.poll():
            try:
                said = self.pipe.recv()
                if said == JOINED:
                    self.joined = True
                    return self.look()
                self.report = said
            except EOFError:
                self.process.join(_EXIT)
                exited = True
            else:
                self.ended = True
                if self.report is not None and self.report.error is not None:
                    return _Failure(self.rank, self.report.error, self.report.trace, told=True)
        if exited and not self.ended:
            self.ended = True
            return _Failure(
                self.rank, RankError(f"rank {self.rank} (process {self.process.pid}) {self._end()}."), told=False
            )
        return None

    def _end(self) -> str:
        code = self.process.exitcode
        if code is not None and code < 0:
            hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
            name = f" ({signal.Signals(-code).name})" if -code in list(signal.Signals) else ""
            return f"was killed by signal {-code}{name}{hint}"
        return f"ended with code {code} without a word"


class _Crew:
    """The ranks of a job.

    Args:
        outlived: whether others may go on when one is killed, or was given up by them, but for the first.
    """

    def __init__(self, outlived: bool) -> None:
        self._outlived = outlived
        self.members: list[_Member] = []
        self.failures: list[_Failure] = []

    def start(self, seat: Seat) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=main, args=(seat, theirs), name=f"rank {seat.rank}")
        process.start()
        theirs.close()  # so that the end of the rank closes it
        self.members.append(_Member(seat.rank, process, ours))

    def watch(self, stop: StopSignal) -> None:
        """Returns when all ranks have ended, or a while after the first that failed."""
        told, deadline = False, None
        while waiting := [member for member in self.members if not member.ended]:
            if stop.requested is not None and not told:
                told = True
                self._tell_first()
            if deadline is not None and time.monotonic() > deadline:
                return
            connection.wait([x for m in waiting for x in (m.pipe, m.process.sentinel)], _LOOK)
            fresh = [failure for member in waiting if (failure := member.look())]
            # A death comes first: what others report in the same moment is a broken connection to the dead.
            self.failures += sorted(fresh, key=lambda failure: failure.told)
            if deadline is None and not all(self._may_be_outlived(failure) for failure in fresh):
                deadline = time.monotonic() + _GRACE

    def finished(self) -> bool:
        """Whether the first rank, and with it the run, came to its end, whoever was lost."""
        report = self.members[0].report
        return report is not None and report.error is None and all(map(self._may_be_outlived, self.failures))

    def _may_be_outlived(self, failure: _Failure) -> bool:
        lost = not failure.told or isinstance(failure.error, GivenUpError)
        # Of a rank that had not come yet the others would not hear that it is gone.
        return self._outlived and failure.rank > 0 and lost and self.members[failure.rank].joined

    def end(self) -> None:
        """No rank outlives this: those that reported exit by themselves, the others are killed."""
        for member in self.members:
            if member.ended and not self.failures:
                member.process.join(_EXIT)
            member.process.kill()
        for member in self.members:
            member.process.join()
            member.pipe.close()

    def root(self) -> _Failure | None:
        """What went wrong first, not counting ranks that only tell of another."""
        return next((failure for failure in self.failures if failure.own), next(iter(self.failures), None))

    def _tell_first(self) -> None:
        first = self.members[0].process
        if first.pid is not None and first.exitcode is None:
            os.kill(first.pid, signal.SIGTERM)


@contextmanager
def _birth(threads: int) -> Iterator[None]:
    """What the processes that start meanwhile inherit: threads, signals held back until they listen, and `spawn` as
    the way to start others, as joblib's is unknown to them."""
    resource_tracker.ensure_running()  # which changes the signal mask when it starts
    method = multiprocessing.get_start_method(allow_none=True)
    given = os.environ.get("OMP_NUM_THREADS")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        multiprocessing.set_start_method("spawn", force=True)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        yield
    finally:
        _restore("OMP_NUM_THREADS", given)
        multiprocessing.set_start_method(method, force=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _record(folder: str, error: BaseException) -> None:
    """Writes to `result.json` what rank 0 could not know, or could not say any more."""
    record = Record(Path(folder))
    if record.values.get("status") != "finished":
        record.update(status="failed", error=explain(error)[0])
