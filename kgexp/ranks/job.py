"""Ranks that a launcher started: rank 0 composes and decides, the others follow.

Rank 0 says what to run as often as it has something, for a sweep once a run, and then how it ended. All that is said
lies in the store below a name of this start of the ranks, since a launcher that starts them again may keep the store;
only the folder does not: the next start comes back to it.
"""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from kgexp.errors import ConfigError, RankError
from kgexp.explain import explain
from kgexp.ranks.launched import Launch
from kgexp.ranks.meeting import meet
from kgexp.ranks.worker import take_part
from kgexp.resume import given_keys
from kgexp.threads import let_idle_threads_sleep

log = logging.getLogger("kgexp")

#: Seconds: without a sign of a rank between runs; for the others to hear of the end, as the store ends with rank 0.
_TIMEOUT, _GOODBYE = 300.0, 5.0
_FOLDER = "kgexp/folder"


class Job:
    """A launched job, as one of its ranks sees it; a context.

    Raises:
        RankError: the ranks' store cannot be reached.
    """

    def __init__(self, launch: Launch) -> None:
        # It tells all ranks that their time is nearly up. One that it ended before the run listens would leave the
        # others waiting for it, and nobody would save.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        let_idle_threads_sleep()
        from torch._C._distributed_c10d import PrefixStore

        from kgexp.store_world import StoreWorld

        self.launch = launch
        self._all_attempts = launch.store(_TIMEOUT)
        name = meet(self._all_attempts, launch.rank, launch.size, _TIMEOUT)
        self._store = PrefixStore(f"kgexp/{name}", self._all_attempts)
        self._runs = 0
        self._world = StoreWorld(
            PrefixStore("job", self._store), launch.rank, launch.size, launch.local_rank, launch.local_size, _TIMEOUT
        )

    def lead(
        self, worker: str, config: dict[str, Any], folder: str, job_logging: dict[str, Any] | None
    ) -> float | None:
        """Rank 0: has all ranks call the worker; returns what it returned here."""
        self.remember(folder)
        message = {"worker": worker, "config": config, "folder": folder, "job_logging": job_logging}
        self._world.broadcast("message", message)
        return self._run(worker, config, folder)

    def remember(self, folder: str) -> None:
        """Leaves word for a later attempt where the run is."""
        self._all_attempts.set(_FOLDER, _place(folder))

    def known_place(self) -> str | None:
        """The argument that leads to the folder of an earlier attempt; None where none got that far."""
        return self._all_attempts.get(_FOLDER).decode() if self._all_attempts.check([_FOLDER]) else None

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Rank 0: tells the others at the end with which code this process will exit."""
        code = 1
        with self._world:
            try:
                yield
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
                raise
            except KeyboardInterrupt:
                code = 130
                raise
            except Exception as error:
                code = explain(error)[1]
                raise
            finally:
                self._say_goodbye(code)

    def _say_goodbye(self, code: int) -> None:
        """Tells the end, and leaves the others time to hear of it."""
        with suppress(RankError, RuntimeError):  # nobody is left to tell
            self._world.broadcast("message", {"end": code})
            deadline = time.monotonic() + _GOODBYE
            gone = [f"gone/{rank}" for rank in range(1, self.launch.size)]
            while gone and not self._store.check(gone) and time.monotonic() < deadline:
                time.sleep(0.02)

    def follow(self) -> int:
        """Other ranks: do what rank 0 says until it ends; returns its exit code."""
        with self._world:
            while "end" not in (message := self._world.broadcast("message")):
                try:
                    self._run(message["worker"], message["config"], message["folder"], message["job_logging"])
                except SystemExit:
                    pass  # stopped together with rank 0, which says what follows
                except Exception as error:
                    self._report(error)
            self._store.set(f"gone/{self.launch.rank}", "")
            return int(message["end"])

    def _run(
        self, worker: str, config: dict[str, Any], folder: str, job_logging: dict[str, Any] | None = None
    ) -> float | None:
        from torch._C._distributed_c10d import PrefixStore

        from kgexp.store_world import StoreWorld, heartbeat

        self._runs += 1
        store, launch = PrefixStore(f"run/{self._runs}", self._store), self.launch
        beat = heartbeat(config["sharding"])
        timeout = float(config["sharding"].get("timeout", _TIMEOUT))
        try:
            with StoreWorld(
                store, launch.rank, launch.size, launch.local_rank, launch.local_size, timeout, beat=beat
            ) as world:
                return take_part(worker, config, folder, world, job_logging)
        finally:  # held back again until the next run listens
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    def _report(self, error: Exception) -> None:
        """What went wrong here goes to the log; people are told unless it only tells of another rank."""
        sentence, code = explain(error)
        log.error(f"rank {self.launch.rank}: {sentence}", exc_info=error if code == 1 else None)
        if os.environ.get("KGEXP_TRACEBACK") == "1":
            traceback.print_exception(error)
        if not isinstance(error, RankError):
            print(f"error: rank {self.launch.rank}: {sentence}", file=sys.stderr)


def restart_arguments(given: Sequence[str], place: str | None) -> list[str]:
    """The arguments of an attempt that is not the first: those given, and those that lead back to its run.

    Args:
        given: the command line.
        place: what an earlier attempt left (`Job.known_place`).

    Raises:
        ConfigError: neither says in which folder the run is.
    """
    overrides = [argument for argument in given if "=" in argument and not argument.startswith("-")]
    keys = given_keys(overrides)
    resume = "resume" in keys and not any(o in ("resume=null", "resume=auto") for o in overrides)
    added = []
    if not resume and not {"hydra.run.dir", "hydra.sweep.dir"} & set(keys):
        if place is None:
            raise ConfigError(
                "the ranks were started again, but in which folder their run is was lost: give hydra.run.dir=FOLDER "
                "and resume=auto at the first start."
            )
        added.append(place)
    if "resume" not in keys:
        added.append("resume=auto")
    # Next to the others: behind an option such as -m Hydra takes no more of them.
    last = max((i for i, argument in enumerate(given) if argument in overrides), default=len(given) - 1)
    return [*given[: last + 1], *added, *given[last + 1 :]]


def _place(folder: str) -> str:
    """The argument by which another start comes to the folder; that of the whole sweep where it is part of one."""
    key = "hydra.run.dir"
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        key, folder = "hydra.sweep.dir", str(HydraConfig.get().sweep.dir)
    quoted = os.path.abspath(folder).replace("'", "\\'")
    return f"{key}='{quoted}'"
