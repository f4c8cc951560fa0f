"""Speed of trainers of partitions by how many they are and by scheduler: a suite of `kgexp.tools.bench`.

    python -m kgexp.tools.bench trainers --ranks 1,2,4 sharding.partitions=16 scoring=negatives train.threads=1

Every number of trainers, with each scheduler unless an argument chooses one, trains some whole passes, all of them in
turns, from the batches to the moving of rows; nothing is ranked and no checkpoint is written. Triples are those of all
trainers, seconds those from the end of a pass to that of the next. `busy`, `waited` and `sharing` are shares of the
trainers' time: in training steps, waiting for rows, exchanging relations; one trainer, whose rows come from storage,
is busy while it does not wait. `speedup` is the ratio to the first. On a large graph `sharding.chunks` makes passes
shorter.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from kgexp.build import build
from kgexp.errors import ConfigError
from kgexp.resume import given_keys
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.tools.arguments import numbers
from kgexp.tools.benchmarks.grid import Settings
from kgexp.tools.composing import composed_sharded
from kgexp.tools.measuring import apart, measured, parts_of, report, spread
from kgexp.tracking.progress import Progress
from kgexp.tracking.tracker import MuteTracker
from kgexp.train.assembly import Parts
from kgexp.train.plan import Cadence, Plan
from kgexp.train.signals import StopSignal
from kgexp.train.stages import Stages
from kgexp.train.trainer_assembly import trainer_of
from kgexp.train.visits import VisitBatches
from kgexp.world import ALONE, World

#: Turns; passes of each that are timed, after one that warms up.
_TURNS, _PASSES = 3, 2

_SCHEDULERS = ("tournament", "locks")
_NEVER = Cadence(0, 0)


def compare(arguments: Sequence[str]) -> Settings:
    """The figures of each number of trainers and scheduler.

    Raises:
        ConfigError: the arguments choose another sharding, or how many trainers there are.
    """
    parser = argparse.ArgumentParser("python -m kgexp.tools.bench trainers", description="Speed of trainers.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of a run")
    parser.add_argument("--ranks", type=numbers, default=[1, 2], metavar="W,W,…", help="numbers of trainers: 1,2")
    options = parser.parse_intermixed_args(arguments)
    setups = _setups(options.overrides, options.ranks)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in setups}
    for _ in range(_TURNS):
        for name, config in setups.items():
            runs[name].append(apart(measured, config, f"{__name__}.passes"))
    figures = {
        name: of_setup[-1] | summary([row for run in of_setup for row in run["passes"]])
        for name, of_setup in runs.items()
    }
    first, *_ = (figure["triples_per_second"]["median"] for figure in figures.values())
    for figure in figures.values():
        del figure["passes"]  # of one turn
        figure["speedup"] = figure["triples_per_second"]["median"] / first
    return figures


def passes(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """On each trainer: some passes; leaves a row about each."""
    parts = parts_of(config, world)
    rows, _ = timed_passes(parts, folder)
    report(folder, parts, {"passes": rows})


def timed_passes(parts: Parts, folder: str) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Trains a pass and some more, on each trainer: a row about each of these, and the megabytes that a pass has `read`
    from where rows are kept, and `written`, means over all."""
    config, world, clock = parts.config, parts.world, _Passes(parts.config, folder)
    with (
        closing(parts.sharding),
        closing(build(config["storage"], plugins=config["plugins"])) as storage,
        StopSignal(shared=world.size > 1) as stop,
    ):
        storage.open(Path(folder))
        entity, relation = parts.tables(storage)
        evaluator = parts.evaluator(entity, relation, clock.say, lambda done, total: None)
        trainer = trainer_of(parts, entity, relation, evaluator, clock, Stages(world), _forget, stop)
        assert isinstance(trainer.batches, VisitBatches)
        legs = [trainer.batches.pass_legs(number) for number in range(1 + _PASSES)]
        triples, steps = [sum(leg.triples for leg in of_pass) for of_pass in legs], legs[-1][-1].stop
        trainer = replace(trainer, plan=Plan(steps, _NEVER, _NEVER, _NEVER, log_steps=steps), validates=False)
        world.barrier("the start of training")
        with Progress("none", 0) as progress:
            trainer.fit(progress, stop)
        stop.finish()
        world.barrier("the end")
    assert isinstance(entity, PartitionedTable)
    moved = {"read": entity.backing.read_bytes, "written": entity.backing.written_bytes}
    return clock.timed(triples), {f"{name}_mb_a_pass": size / len(legs) / 1e6 for name, size in moved.items()}


def summary(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians over passes."""
    figures: dict[str, Any] = {"triples_per_second": spread([row["triples_per_second"] for row in rows])}
    for name in ("seconds", "busy", "waited", "sharing", "received_mb"):
        if name in rows[0]:
            figures[name] = statistics.median(row[name] for row in rows)
    return figures


def _forget(step: int, state: dict[str, Any], alone: bool = False) -> None:
    """No checkpoint."""


class _Passes(MuteTracker):
    """Notes when passes end, and the figures that are logged then."""

    def __init__(self, config: dict[str, Any], folder: str) -> None:
        super().__init__(config["tracking"], Path(folder), config)
        self._ends: list[tuple[float, Mapping[str, Any]]] = []

    def log(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """See `Tracker.log`."""
        if "pass/waited" in row:
            self._ends.append((time.perf_counter(), row))

    def timed(self, triples: Sequence[int]) -> list[dict[str, float]]:
        """Of each pass but the first, by the triples of all: its rate, and where its time went."""
        rows = []
        for n, (begin, _), (end, row) in zip(triples[1:], self._ends, self._ends[1:], strict=False):
            figures = {name.removeprefix("pass/"): value for name, value in row.items() if name.startswith("pass/")}
            busy = figures.get("busy", 1 - figures["waited"])
            rows.append({"triples_per_second": n / (end - begin), "seconds": end - begin, **figures, "busy": busy})
        return rows


def _setups(overrides: Sequence[str], ranks: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The configurations that are timed, by name."""
    given = given_keys(overrides)
    if "sharding.ranks" in given:
        raise ConfigError("trainers compares several numbers of them: give --ranks 1,2 instead of sharding.ranks.")
    schedulers = _SCHEDULERS if "sharding.scheduler" not in given else (None,)
    setups = {}
    for number in ranks:
        for scheduler in schedulers if number > 1 else (None,):
            chosen = [f"sharding.ranks={number}"] + ([f"sharding.scheduler={scheduler}"] if scheduler else [])
            config = composed_sharded("partitioned", [*overrides, *chosen])
            if not config["sharding"]["_target_"].endswith(f".{PartitionedSharding.__name__}"):
                raise ConfigError("these are trainers of sharding=partitioned: leave the other choice out.")
            name = f"{number} trainer{'s' if number > 1 else ''}"
            setups[name if number == 1 else f"{name}, {config['sharding']['scheduler']}"] = config
    return setups
