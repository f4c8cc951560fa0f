"""How long a run will take on this machine: from some of its steps and queries, timed in this process.

The steps are those of one rank, with its part of every batch; what it sends to other ranks, or moves between memory and
storage, is not among them. Of large tables some rows are in memory, over and over (`kgexp.tools.folded`), so that no
time goes into drawing the others, and a graph that does not fit here can be timed all the same. Where all entities are
scored, a part of many is, and the time taken as many times.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from kgexp import environment
from kgexp.data.graph import Graph
from kgexp.errors import ConfigError
from kgexp.evaluation.evaluator import Evaluator
from kgexp.evaluation.ranker import nonfinite_rows
from kgexp.scoring.all_entities import AllEntities
from kgexp.scoring.batch import Batch
from kgexp.sharding.local import local_table
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.rows import TableSpec
from kgexp.sharding.table import Table
from kgexp.storage.memory import MemoryStorage
from kgexp.threads import thread_count
from kgexp.tools.folded import FoldedTable
from kgexp.tools.needs import in_one_process
from kgexp.train.assembly import Parts
from kgexp.train.memory import size
from kgexp.train.step import prepare, run_step

#: Numbers of the rows in memory, at most: more than caches hold, and drawn in a second.
_NUMBERS = 1 << 24

#: Entities that are scored, at most, where all of them would be.
_SCORED = 1 << 15

#: Triples that are ranked first; each time after it so many times as many.
_FIRST, _MORE = 16, 4


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        triples_per_second: of a rank's steps, counting the whole batch that all ranks train in one; of queries where
            these are the examples.
        steps: that were timed.
        rows: entity rows in memory meanwhile.
        threads: of every operation.
        per_row: seconds of drawing an entity row.
        per_query: seconds of ranking for each query; 0 where nothing is ranked.
        per_evaluation: seconds of an evaluation besides.
        ranked: queries that were ranked.
    """

    triples_per_second: float
    steps: int
    rows: int
    threads: int
    per_row: float
    per_query: float = 0.0
    per_evaluation: float = 0.0
    ranked: int = 0

    def evaluation(self, queries: int) -> float:
        """Seconds of an evaluation of so many queries, by one process."""
        return queries * self.per_query + self.per_evaluation if queries else 0.0


def calibrate(parts: Parts, seconds: float) -> Speed:
    """Times training and ranking for about so long, but at least one step and a few queries.

    Args:
        parts: of a rank of the run, made by `Parts.supposing`.
        seconds: half of them for each.

    Raises:
        ConfigError: it cannot be done here; says why.
    """
    devices = parts.device.type, parts.config["sharding"].get("state_device")
    if "cuda" in devices and not torch.cuda.is_available():
        raise ConfigError("the run is to have a GPU, and torch sees none here")
    alone, splits = in_one_process(parts), parts.config["evaluation"]["splits"]
    free = min(environment.available_memory(parts.device).values(), default=None)
    spec, of_relations = (_placed(spec, alone) for spec in alone.table_specs(MemoryStorage()))
    k = _rows_in_memory(alone, spec, free)
    graph = parts.graph if len(parts.graph.valid) else replace(parts.graph, valid=parts.graph.test)
    with _threads(parts) as threads:
        begin = _now(parts.device)
        entity, relation = FoldedTable.of(spec, k), local_table(of_relations)
        per_row = (_now(parts.device) - begin) / k
        # Ranked first: later the rows that fell together are of no use.
        ranking = (
            _ranking(alone, graph, entity, relation, seconds / 2) if splits and len(graph.valid) else (0.0, 0.0, 0)
        )
        rate, steps = _training(parts, alone, entity, relation, seconds / 2)
    return Speed(rate, steps, k, threads, per_row, *ranking)


def _placed(spec: TableSpec, parts: Parts) -> TableSpec:
    """A table with its state where the run keeps it."""
    return spec.with_state_on(parts.config["sharding"]["state_device"])


def _rows_in_memory(parts: Parts, spec: TableSpec, free: int | None) -> int:
    """How many entity rows are to be in memory."""
    estimate = parts.estimate(MemoryStorage())
    rows = max(1, min(spec.num_rows, _NUMBERS // spec.dim))
    needed = sum(n for name, n in estimate.parts.items() if name != "entity table")
    needed += estimate.parts["entity table"] * rows // spec.num_rows
    if free is not None and needed > free:
        raise ConfigError(f"even with few rows in memory it takes {size(needed)}, and {size(max(free, 0))} are free")
    return rows


@contextmanager
def _threads(parts: Parts) -> Iterator[int]:
    """Inside, torch has the threads that it has in a rank of the run, all of whose ranks are on this machine."""
    before = torch.get_num_threads()
    at_once = parts.sharding.exchange.ranks * getattr(parts.sharding, "workers", 1)
    threads = thread_count(parts.config["train"]["threads"], at_once)
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


def _training(parts: Parts, alone: Parts, entity: FoldedTable, relation: Table, seconds: float) -> tuple[float, int]:
    """Triples a second and the steps that were timed, the first one left out where there are others."""
    of_step = _candidates(parts)
    n = min(of_step, _SCORED) if isinstance(parts.objective.scoring, AllEntities) else of_step
    table, batches = entity.of_size(n), alone.batches(parts.share)
    trained: list[int] = []
    clock = [_now(parts.device)]
    while len(trained) < 2 or clock[-1] - clock[0] < seconds:
        batch = _among(batches(len(trained)), n)
        work = prepare(parts.objective, n, batch, threads=table.team.threads, device=table.device)
        run_step(parts.objective, table, relation, work)
        trained.append(batch.total)
        clock.append(_now(parts.device))
        if len(trained) == 1 and clock[-1] - clock[0] > seconds:
            break
    first = 1 if len(trained) > 1 else 0
    return sum(trained[first:]) / (clock[-1] - clock[first]) * n / of_step, len(trained) - first


def _candidates(parts: Parts) -> int:
    """Entities that a step knows of: with partitions, those of a visit; else all."""
    n, sharding = parts.graph.num_entities, parts.sharding
    if not isinstance(sharding, PartitionedSharding):
        return n
    slices, visits = sharding.slices(n), sharding.itinerary(n, parts.config["seed"]).visits(0)
    return max(1, *(sum(slices.size(k) for k in {*visit.heads, *visit.tails}) for visit in visits))


def _among(batch: Batch, n: int) -> Batch:
    """The batch with its entities among the first n."""
    triples = batch.triples.clone()
    triples[:, [0, 2]] %= n
    return replace(batch, triples=triples)


def _ranking(
    parts: Parts, graph: Graph, entity: FoldedTable, relation: Table, seconds: float
) -> tuple[float, float, int]:
    """Seconds a query, those of an evaluation besides, and the queries that were ranked: of a sample of triples, the
    largest of several for which there is time."""
    config, limit = parts.config["evaluation"], parts.config["evaluation"]["max_valid_triples"]
    every = len(graph.valid) if limit is None else min(limit, len(graph.valid))
    model, seed, device = parts.objective.model, parts.config["seed"], parts.device
    shown = min(1.0, _SCORED / entity.num_rows)
    entity = entity.showing(shown)
    # Rows are looked through twice, before and after.
    begin = _now(device)
    nonfinite_rows(entity, relation, config["block"])
    twice = 2 * (_now(device) - begin)
    triples, spent = min(_FIRST, every), 0.0
    while True:
        clock: list[tuple[int, float]] = []
        evaluator = Evaluator(
            config | {"max_valid_triples": triples},
            model,
            entity,
            relation,
            graph,
            progress=lambda done, total: clock.append((done, _now(device))),  # noqa: B023 - it is called at once
            seed=seed,
        )
        took = evaluator.evaluate("valid").seconds
        (first, begin), (last, end) = clock[0], clock[-1]  # two at least: one a side
        per_query = (end - begin) / (last - first)
        besides = max(0.0, took - last * per_query)
        spent += took
        if triples == every or spent + _MORE * last * per_query + besides > seconds:
            per_query /= shown if config["protocol"] == "full" else 1.0
            return per_query, besides + twice * (1 / shown - 1), last
        triples = min(_MORE * triples, every)


def _now(device: torch.device) -> float:
    """Seconds, once all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
