"""The other side of `kgexp.ranks.spawned`: a process that is one rank, and what it reports at its end."""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from kgexp.errors import KgexpError
from kgexp.explain import causes
from kgexp.ranks.worker import find, take_part

if TYPE_CHECKING:  # it imports torch
    from kgexp.store_world import StoreWorld

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Seat:
    """What a rank is told at its start.

    Attributes:
        store: the file of the ranks' common store.
        timeout: seconds of silence after which a rank counts as dead.
        world: path of the context that gives the ranks their world.
        worker: path of the function that does the run.
        parent: id of the process that starts the ranks.
    """

    rank: int
    size: int
    store: str
    timeout: float
    world: str
    worker: str
    config: dict[str, Any]
    folder: str
    job_logging: dict[str, Any] | None
    parent: int


@dataclass(frozen=True)
class Report:
    """What a rank says at its end: the value of its run, the exit code it stopped with, or what went wrong.

    Attributes:
        trace: the traceback of `error`, which does not travel with it.
    """

    value: float | None = None
    stopped: int | None = None
    error: BaseException | None = None
    trace: str = ""


#: What a rank says when the others can hear of it.
JOINED = "joined"


def main(seat: Seat, pipe: Connection) -> None:
    """The process: takes its seat, reports, and exits with 1 where it failed."""
    die_with(seat.parent)
    # The terminal interrupts all processes, but the ranks stop together: the parent tells the first of them. Others
    # are held back until the run listens, and mean nothing when it has ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(signum, lambda signum, frame: None)
    try:
        report = Report(value=_run(seat, pipe))
    except SystemExit as stop:
        report = Report(stopped=stop.code if isinstance(stop.code, int) else 1)
    except BaseException as error:
        report = Report(error=_portable(error), trace=f"rank {seat.rank} (process {os.getpid()}):\n{_trace(error)}")
    pipe.send(report)
    pipe.close()
    sys.exit(0 if report.error is None else 1)


def store_world(seat: Seat) -> "StoreWorld":
    """The world of ranks that share a file."""
    from torch._C._distributed_c10d import FileStore

    from kgexp.store_world import StoreWorld, heartbeat

    store = FileStore(seat.store, -1)  # the parent deletes it
    beat = heartbeat(seat.config.get("sharding", {}))
    return StoreWorld(store, seat.rank, seat.size, seat.rank, seat.size, seat.timeout, beat=beat)


def _run(seat: Seat, pipe: Connection) -> float | None:
    with find(seat.world)(seat) as world:
        pipe.send(JOINED)
        return take_part(seat.worker, seat.config, seat.folder, world, seat.job_logging)


def die_with(parent: int) -> None:
    """Has the system kill this process when its parent ends, which may be too late to say so itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The error that people are told about, or one that reads like it where it cannot be pickled."""
    told = next((cause for cause in causes(error) if isinstance(cause, KgexpError)), error)
    try:
        pickle.loads(pickle.dumps(told))
    except Exception:
        return RuntimeError(f"{type(told).__name__}: {told}")
    return told


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
