"""Speed of ranking the test split, beside that of a plain ranking and of the matrix products alone.

The plain ranking is what one would write down first: all scores of 512 queries, the known answers set to -inf by index,
two comparisons and their sums. Its filters are looked up beforehand and not counted.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgexp.data.graph import Graph
from kgexp.data.known import TEST, TRAIN, VALID
from kgexp.data.sides import Side
from kgexp.evaluation.counts import RankCounts
from kgexp.evaluation.ranker import Ranker
from kgexp.models.base import DotProductModel, Model
from kgexp.randomness import Int64
from kgexp.sharding.table import Table
from kgexp.storage.memory import MemoryStorage
from kgexp.team import Team, cut
from kgexp.tools.measuring import parts_of, report, spread
from kgexp.train.assembly import Parts
from kgexp.world import ALONE, World

_BATCH = 512  # queries of the plain ranking at once
_PIECE = 1024  # entities of a product
_SECONDS = 20.0  # for the plain ranking; of more, a part is done
_REPEATS = 3


def evaluate(config: dict[str, Any], folder: str, world: World = ALONE) -> None:
    """The suite, on each rank: what the whole test split took, and where this process has the whole table, what the
    plain ranking and the products would have taken."""
    parts = parts_of(config, world)
    entity, relation = parts.tables(MemoryStorage())
    evaluator = parts.evaluator(entity, relation, lambda line: None, lambda done, total: None)
    seconds = [evaluator.evaluate("test").seconds for _ in range(_REPEATS)]
    queries, median = 2 * len(parts.graph.test.triples), statistics.median(seconds)
    figures: dict[str, Any] = {"test_seconds": spread(seconds), "queries": queries}
    if queries:
        figures["queries_per_second"] = queries / median
        if config["evaluation"]["protocol"] == "full":
            figures["candidates_per_second"] = queries * parts.graph.num_entities / median
            if world.size == 1 and entity.local_rows == entity.num_rows:
                figures |= _beside(parts, entity, relation, median)
    report(folder, parts, figures)


def _beside(parts: Parts, entity: Table, relation: Table, seconds: float) -> dict[str, Any]:
    """The figures of the other two, and in how many ranks the plain one differs: near ties are chance there."""
    model, graph, evaluation = parts.objective.model, parts.graph, parts.config["evaluation"]
    ranker = Ranker(model, entity, relation, graph, queries=evaluation["queries"], block=evaluation["block"])
    begin = time.process_time()
    counts = ranker.rank("test", {"filtered": TRAIN | VALID | TEST})
    cpu = time.process_time() - begin
    plain = _plain(model, entity, relation, graph, counts)
    distinct = sum(len(np.unique(counts.triples[:, [side.given, 1]], axis=0)) for side in Side)
    figures: dict[str, Any] = {"cpu_seconds": cpu, "distinct_queries": distinct, "plain": plain}
    figures["faster_than_plain"] = plain["seconds"] / seconds
    if isinstance(model, DotProductModel) and entity.device.type == "cpu":
        batches = -(-2 * len(counts) // evaluation["queries"])
        figures["products"] = products = _products(entity, distinct, batches)
        figures["share_of_products"] = products / seconds
    return figures


@dataclass(frozen=True)
class _Batch:
    """Queries of one side: the places of their triples, the ids of their rows, and the pairs that are filtered out."""

    side: Side
    places: slice
    given: Tensor
    relations: Tensor
    answers: Tensor
    filtered: tuple[Tensor, Tensor]


def _batches(model: Model, graph: Graph, triples: Int64, device: torch.device) -> Iterator[_Batch]:
    for side in Side:
        for places in cut(len(triples), _BATCH):
            some = triples[places]
            query, entity, _ = graph.known.lookup(side, some)
            others = entity != some[query, side.column]
            given, relation, answers, *pairs = (
                torch.from_numpy(np.ascontiguousarray(ids))
                for ids in (some[:, side.given], some[:, 1], some[:, side.column], query[others], entity[others])
            )
            relations = model.relation_rows(relation, side, graph.num_relations)
            ids = [x.to(device) for x in (given, relations, answers, *pairs)]
            yield _Batch(side, places, ids[0], ids[1], ids[2], (ids[3], ids[4]))


@torch.no_grad()
def _plain(model: Model, entity: Table, relation: Table, graph: Graph, counts: RankCounts) -> dict[str, Any]:
    rows, relations = (table.state_tensors()["weight"].to(table.dtype) for table in (entity, relation))
    batches = list(_batches(model, graph, counts.triples, entity.device))
    first = _count(model, rows, relations, batches[0])[1]
    step = max(1, round(len(batches) * first / _SECONDS))
    spent, cpu, queries, differ = 0.0, time.process_time(), 0, 0
    for batch in batches[::step]:
        (greater, equal), seconds = _count(model, rows, relations, batch)
        spent += seconds
        queries += len(greater)
        ours = (part["filtered"][batch.places, batch.side.value] for part in (counts.greater, counts.equal))
        differ += int(np.logical_or(*(a != b for a, b in zip(ours, (greater, equal), strict=True))).sum())
    cpu = time.process_time() - cpu
    of_all = 2 * len(counts) / queries
    return {"seconds": spent * of_all, "cpu_seconds": cpu * of_all, "queries": queries, "ranks_that_differ": differ}


def _count(model: Model, rows: Tensor, relations: Tensor, batch: _Batch) -> tuple[tuple[Int64, Int64], float]:
    """Greater and equal int64[b] of a batch, and the seconds that it took."""
    begin = time.perf_counter()
    scores = model.score(model.query(batch.side, rows[batch.given], relations[batch.relations]), rows)
    answer = scores.gather(1, batch.answers[:, None])
    scores[batch.filtered] = -torch.inf
    greater, equal = (scores > answer).sum(1).cpu(), (scores == answer).sum(1).cpu() - 1
    return (greater.numpy(), equal.numpy()), time.perf_counter() - begin


def _products(entity: Table, queries: int, batches: int) -> float:
    """Seconds of the products of so many queries, in batches, with all entities: by a team, into memory that is
    there."""
    rows = entity.state_tensors()["weight"].to(entity.dtype)
    size = max(1, min(queries // batches, len(rows)))
    given, team = rows[:size], Team(torch.get_num_threads())
    pieces = cut(len(rows), _PIECE)
    outputs = [rows.new_empty((size, piece.stop - piece.start)) for piece in pieces]
    parts = list(zip(pieces, outputs, strict=True))

    def multiply(part: tuple[slice, Tensor]) -> None:
        torch.mm(given, rows[part[0]].mT, out=part[1])

    team.map(multiply, parts)
    times = min(batches, 20)
    begin = time.perf_counter()
    for _ in range(times):
        team.map(multiply, parts)
    return (time.perf_counter() - begin) * queries / (size * times)
