"""The steps of a run, timed in windows; what they take is that of a run, from the batches to the row optimizer."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kgexp.errors import ConfigError
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.storage.memory import MemoryStorage
from kgexp.tools.measuring import now, spread
from kgexp.train.ahead import Ahead
from kgexp.train.assembly import Parts
from kgexp.train.step import Work, prepare, run_step
from kgexp.world import World

#: Windows that are timed, seconds that each is to take, and steps that warm up first.
WINDOWS, SECONDS, WARM = 7, 2.0, 3


@dataclass(frozen=True)
class Window:
    """Some steps in a row.

    Attributes:
        triples, steps: how many, of all ranks.
        seconds: that they took.
        cpu: seconds of computing, of all threads of this process; what others do on the machine disturbs these least.
        prepared: of these, until the work of a step was ready.
        exchanged: of these, in collectives; where it is the others' turn, that is waiting for them.
    """

    triples: int
    steps: int
    seconds: float
    cpu: float
    prepared: float
    exchanged: float


class Steps:
    """The steps of a run, one after the other; the next is prepared meanwhile where a run would.

    Attributes:
        objective: what is minimised.
        entity, relation: the tables.

    Raises:
        ConfigError: rows come and go.
    """

    def __init__(self, parts: Parts) -> None:
        if isinstance(parts.sharding, PartitionedSharding):
            raise ConfigError("these steps have all rows in memory: the suites trainers and swap time partitions.")
        self.objective, self._sharding, self._batches = parts.objective, parts.sharding, parts.batches()
        self.entity, self.relation = parts.tables(MemoryStorage())
        self._ahead = Ahead(self.prepare, self._sharding.exchange.ranks > 1 or self.entity.device.type != "cpu")
        self._step, self._prepared = 0, 0.0

    def window(self, steps: int) -> Window:
        """The next steps, after one that is not timed: the caches are cold, and its work may have been ready long."""
        self._one()
        self._prepared, exchanged = 0.0, self._sharding.exchange.waited
        begin, cpu = now(self.entity.device), time.process_time()
        triples = sum(self._one() for _ in range(steps))
        # A step ends with a sum over ranks and an update of relations: it has ended for all.
        seconds, cpu = now(self.entity.device) - begin, time.process_time() - cpu
        return Window(triples, steps, seconds, cpu, self._prepared, self._sharding.exchange.waited - exchanged)

    def finish(self) -> None:
        """The last step: nothing is prepared after it but by `prepare`."""
        self._one(following=False)

    def prepare(self, step: int) -> Work:
        """The work of a step; every rank asks for the same."""
        batch, threads = self._batches(step), self.entity.team.threads
        return prepare(self.objective, self.entity.num_rows, batch, self._sharding.plan, threads, self.entity.device)

    def run(self, work: Work) -> None:
        """A step."""
        run_step(self.objective, self.entity, self.relation, work)

    @contextmanager
    def by_one_thread(self) -> Iterator[None]:
        """Steps are done by the calling thread alone, where it can be seen."""
        teams, threads = {self.entity.team, self.relation.team}, torch.get_num_threads()
        sizes = {team: team.threads for team in teams}
        for team in teams:
            team.threads = 1
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for team, size in sizes.items():
                team.threads = size

    def _one(self, following: bool = True) -> int:
        """A step; how many triples all ranks have trained."""
        begin = time.perf_counter()
        work = self._ahead(self._step, following)
        self._prepared += time.perf_counter() - begin
        self.run(work)
        self._step += 1
        return work.batch.total


def window_size(steps: Steps, world: World) -> int:
    """How many steps a window takes: as rank 0 says, for all ranks do the same."""
    window = steps.window(WARM)
    return int(world.broadcast("the steps of a window", max(round(SECONDS * window.steps / window.seconds), 1)))


def summary(windows: Sequence[Window], world: World) -> dict[str, Any]:
    """The figures of windows; of their seconds, those of every rank."""

    def of_ranks(name: str) -> list[float]:
        milliseconds = statistics.median(1000 * getattr(window, name) / window.steps for window in windows)
        return world.gather(name, round(milliseconds, 3))

    return {
        "triples_per_second": spread([window.triples / window.seconds for window in windows]),
        "steps_a_window": windows[0].steps,
        "ms_a_step_by_rank": {name: of_ranks(name) for name in ("seconds", "cpu", "prepared", "exchanged")},
    }
