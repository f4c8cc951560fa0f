"""The suite `exchange`: rows to and from their owners, as a step of `sharding=rowwise` moves them, without the step.

    python -m kgexp.tools.bench exchange --rows 1000,10000,100000 --widths 100,400 sharding.ranks=2 train.threads=1

Every rank gathers so many distinct rows of a table, and sends gradients of them home, where the
row optimizer of the configuration takes them. Beside it the plain collective, `all_to_all_single`, of the same bytes.
Bytes a second are those that a rank sends to others; seconds those of the slowest rank.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch

from kgexp.build import build
from kgexp.errors import ConfigError
from kgexp.sharding.distributed import RowwiseSharding
from kgexp.sharding.rows import Placement, TableSpec
from kgexp.sharding.rowwise import RowwiseRoute, RowwiseTable
from kgexp.storage.memory import MemoryStorage
from kgexp.tools.arguments import numbers
from kgexp.tools.benchmarks.grid import Settings, measure, settings
from kgexp.tools.composing import composed_rowwise
from kgexp.tools.measuring import device_of, leave, now
from kgexp.world import ALONE, World

#: Repetitions that are timed, after one that warms up.
REPETITIONS = 15


def compare(arguments: Sequence[str]) -> Settings:
    """The figures of each number of rows and width.

    Raises:
        ConfigError: the arguments choose another sharding, or one rank.
    """
    parser = argparse.ArgumentParser("python -m kgexp.tools.bench exchange", description="Speed of exchanging rows.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of a run")
    parser.add_argument("--rows", type=numbers, default=[1000, 10_000, 50_000], metavar="U,U,…", help="of a step")
    parser.add_argument("--widths", type=numbers, default=[100, 400], metavar="D,D,…", help="numbers of a row")
    options = parser.parse_intermixed_args(arguments)
    asked = {"exchange": {"rows": options.rows, "widths": options.widths}}
    configs = settings(options.overrides, composed_rowwise)
    for config in configs.values():
        if not config["sharding"]["_target_"].endswith(f".{RowwiseSharding.__name__}"):
            raise ConfigError("these are the rows of sharding=rowwise: leave the other choice out.")
    return measure({name: config | asked for name, config in configs.items()}, f"{__name__}.exchange")


def exchange(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank."""
    if world.size == 1:
        raise ConfigError("one rank exchanges nothing: set sharding.ranks to 2 or more.")
    device, asked = device_of(config, world), config["exchange"]
    sharding: RowwiseSharding = build(config["sharding"], plugins=config["plugins"])
    cases: dict[str, Any] = {}
    with closing(sharding):
        sharding.open(world, device)
        for d in asked["widths"]:
            table = sharding.entity_table(_spec(config, 2 * max(asked["rows"]), d, device))
            assert isinstance(table, RowwiseTable)
            measuring = _Measuring(table, sharding, world, config["sharding"]["wire_dtype"])
            cases |= {f"{u} rows of {d}": measuring.figures(u) for u in asked["rows"]}
    leave(folder, world, device, {"cases": cases})


class _Measuring:
    """The exchanges of one table."""

    def __init__(self, table: RowwiseTable, sharding: RowwiseSharding, world: World, wire: str | None) -> None:
        self._table, self._sharding, self._world = table, sharding, world
        self._wire = table.dtype if wire is None else getattr(torch, wire)

    def figures(self, u: int) -> dict[str, Any]:
        """Of u rows of each rank."""
        table, relation = self._table, torch.zeros(1, dtype=torch.int64)
        drawn = np.random.default_rng([self._world.rank, u]).choice(table.num_rows, u, replace=False)
        ids = torch.from_numpy(np.sort(drawn))
        route = self._sharding.plan(ids, relation).entity
        assert isinstance(route, RowwiseRoute)
        grad = torch.full((u, table.dim), 1e-6, dtype=table.dtype, device=table.device)
        gather = self._beside_plain(lambda: table.gather(route), route.receive, route.send)
        update = self._beside_plain(lambda: table.update(route, grad), route.send, route.receive)
        return {
            "plan_ms": self._slowest(lambda: self._sharding.plan(ids, relation)),
            "gather": gather,
            "update": update,
            "bytes_a_step": gather["bytes"] + update["bytes"],
            "latency_ms": self._slowest(self._meet),
        }

    def _beside_plain(self, work: Callable[[], object], send: Sequence[int], receive: Sequence[int]) -> dict[str, Any]:
        """The figures of an exchange, and of nothing but its collective."""
        table, others = self._table, sum(send) - send[self._world.rank]
        rows = torch.ones(sum(send), table.dim, dtype=self._wire, device=table.device)
        sent = statistics.mean(self._world.gather("the bytes", others * table.dim * self._wire.itemsize))
        ms, plain = self._slowest(work), self._slowest(lambda: table.exchange.all_to_all(rows, send, receive))
        return {
            "bytes": round(sent),
            "ms": ms,
            "plain_ms": plain,
            "mb_per_second": sent / ms / 1000,
            "plain_mb_per_second": sent / plain / 1000,
        }

    def _slowest(self, work: Callable[[], object]) -> float:
        """Milliseconds of the slowest rank: its median."""
        work()
        times = []
        for _ in range(REPETITIONS):
            self._meet()
            begin = now(self._table.device)
            work()
            times.append(1000 * (now(self._table.device) - begin))
        of_ranks: list[float] = self._world.gather("the milliseconds", statistics.median(times))
        return max(of_ranks)

    def _meet(self) -> None:
        """The least that ranks can exchange: a number each."""
        self._table.exchange.all_sum(torch.zeros(1, device=self._table.device))


def _spec(config: dict[str, Any], num_rows: int, dim: int, device: torch.device) -> TableSpec:
    """A table of zeros with the optimizer of the configuration."""
    shared = {name: value for name, value in config["optimizer"].items() if name != "relation_lr"}
    optimizer = build(shared, plugins=config["plugins"])
    placement = Placement(device, getattr(torch, config["train"]["dtype"]))
    return TableSpec(
        "entity", num_rows, dim, lambda ids: np.zeros((len(ids), dim)), optimizer, MemoryStorage(), placement
    )
