"""Speed of training steps and of ranking on this machine, for the configuration that a run would have.

    python -m kgexp.tools.bench train experiment=fb15k237_complex_negatives dataset.path=PATH/FB15k-237
    python -m kgexp.tools.bench train sharding=rowwise sharding.ranks=2 train.threads=1
    python -m kgexp.tools.bench scaling sharding.ranks=2 train.threads=1
    python -m kgexp.tools.bench trainers --ranks 1,2,4 scoring=negatives train.threads=1
    python -m kgexp.tools.bench evaluate model.dim=200

Prints the machine, the versions and the figures as one JSON object: the median of several windows with the slowest
and the fastest, for machines are noisy. The steps are those of a run, from its batches to its row optimizer, with as
many ranks as the configuration has: triples are those of all ranks, seconds those of rank 0. `scaling` times all ranks
and one alone in turns, on a quiet machine, for ranks wait for each other: `speedup` is the ratio of their triples a
second. `cpu_speedup` is that of the computing of one rank to that of the busiest, the exchange's included: what several
ranks with cores of their own can reach, and nearly the same on a busy machine. `trainers` times trainers of partitions:
see `kgexp.tools.trainers`.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgexp.errors import ConfigError
from kgexp.storage.memory import MemoryStorage
from kgexp.tools.composing import composed, composed_rowwise
from kgexp.tools.failing import failed
from kgexp.tools.measuring import measured, parts_of, report, spread
from kgexp.tools.trainers import compare
from kgexp.train.ahead import Ahead
from kgexp.train.assembly import Parts
from kgexp.train.step import Work, prepare, run_step
from kgexp.world import ALONE, World

#: Windows that are timed, seconds that each is to take, and steps that warm up first.
_WINDOWS, _SECONDS, _WARM = 7, 2.0, 3


def _suite(name: str, compose: Callable[[Sequence[str]], dict[str, Any]]) -> Callable[[Sequence[str]], dict[str, Any]]:
    """From the command line to the figures of the function `name` of this module."""
    return lambda given: measured(compose(given), f"kgexp.tools.bench.{name}")


_SUITES: Mapping[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    "train": _suite("train", composed),
    "scaling": _suite("scaling", composed_rowwise),
    "trainers": compare,
    "evaluate": _suite("evaluate", composed),
}


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if not arguments or arguments[0] not in _SUITES:
        print(f"usage: python -m kgexp.tools.bench {{{','.join(_SUITES)}}} [KEY=VALUE …]", file=sys.stderr)
        return 2
    suite, given = arguments[0], arguments[1:]
    try:
        figures = _SUITES[suite](given)
    except Exception as error:
        return failed(error)
    print(json.dumps({"suite": suite, "arguments": given, **figures}, indent=1))
    return 0


def train(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank: training triples a second, and where the seconds of a step go."""
    parts = parts_of(config, world)
    steps = _Steps(parts)
    size = _window_size(steps, world)
    windows = [steps.window(size) for _ in range(_WINDOWS)]
    report(folder, parts, _summary(windows, world, parts))


def scaling(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank: training of all ranks and of rank 0 alone, in turns, and the ratio of the medians."""
    if world.size == 1:
        raise ConfigError("scaling compares one rank with several: set sharding.ranks to 2 or more.")
    parts = parts_of(config, world)
    together, alone = _Steps(parts), None
    if world.rank == 0:
        alone = _Steps(Parts.of(config, parts.graph, parts.device))
    size, size_alone = _window_size(together, world), _window_size(alone, ALONE) if alone else 0
    windows, windows_alone = [], []
    for _ in range(_WINDOWS):
        if alone:
            windows_alone.append(alone.window(size_alone))
        world.barrier("the window of one rank")
        windows.append(together.window(size))
    of_all = _summary(windows, world, parts)
    if alone:
        figures = {"1 rank": _summary(windows_alone, ALONE, parts), f"{world.size} ranks": of_all}
        one, all_ranks = (figure["triples_per_second"]["median"] for figure in figures.values())
        cpu_one, cpu_all = (max(figure["ms_a_step_by_rank"]["cpu"]) for figure in figures.values())
        ratios = {"speedup": all_ranks / one, "cpu_speedup": cpu_one / max(cpu_all, 0.1)}
        report(folder, parts, ratios | figures)


def evaluate(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank: what the whole test split took, and queries a second."""
    parts = parts_of(config, world)
    entity, relation = parts.tables(MemoryStorage())
    evaluator = parts.evaluator(entity, relation, lambda line: None, lambda done, total: None)
    seconds = [evaluator.evaluate("test").seconds for _ in range(3)]
    queries, median = 2 * len(parts.graph.test.triples), statistics.median(seconds)
    per_second = queries / median if median else None
    report(folder, parts, {"test_seconds": spread(seconds), "queries_per_second": per_second})


@dataclass(frozen=True)
class _Window:
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


class _Steps:
    """The steps of a run, one after the other; the next is prepared meanwhile where a run would."""

    def __init__(self, parts: Parts) -> None:
        self._objective, self._sharding, self._batches = parts.objective, parts.sharding, parts.batches()
        self._entity, self._relation = parts.tables(MemoryStorage())
        self._ahead = Ahead(self._prepare, self._sharding.exchange.ranks > 1)
        self._step, self._prepared = 0, 0.0

    def window(self, steps: int) -> _Window:
        """The next steps, after one that is not timed: the caches are cold, and its work may have been ready long."""
        self._one()
        self._prepared, exchanged = 0.0, self._sharding.exchange.waited
        begin, cpu = time.perf_counter(), time.process_time()
        triples = sum(self._one() for _ in range(steps))
        # A step ends with a sum over ranks and an update of relations: it has ended for all.
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return _Window(triples, steps, seconds, cpu, self._prepared, self._sharding.exchange.waited - exchanged)

    def _one(self) -> int:
        """A step; how many triples all ranks have trained."""
        begin = time.perf_counter()
        work = self._ahead(self._step, True)
        self._prepared += time.perf_counter() - begin
        run_step(self._objective, self._entity, self._relation, work)
        self._step += 1
        return work.batch.total

    def _prepare(self, step: int) -> Work:
        batch, threads = self._batches(step), self._entity.team.threads
        return prepare(self._objective, self._entity.num_rows, batch, self._sharding.plan, threads)


def _window_size(steps: _Steps, world: World) -> int:
    """How many steps a window takes: as rank 0 says, for all ranks do the same."""
    window = steps.window(_WARM)
    return int(world.broadcast("the steps of a window", max(round(_SECONDS * window.steps / window.seconds), 1)))


def _summary(windows: Sequence[_Window], world: World, parts: Parts) -> dict[str, Any]:
    """The figures of windows; of their seconds, those of every rank."""

    def of_ranks(name: str) -> list[float]:
        milliseconds = statistics.median(1000 * getattr(window, name) / window.steps for window in windows)
        return world.gather(name, round(milliseconds, 1))

    return {
        "triples_per_second": spread([window.triples / window.seconds for window in windows]),
        "steps_a_window": windows[0].steps,
        "ms_a_step_by_rank": {name: of_ranks(name) for name in ("seconds", "cpu", "prepared", "exchanged")},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
