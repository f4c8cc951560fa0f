"""Evaluation as the configuration asks for it: which protocol, which filters, which number decides."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kgexp.data.graph import Graph
from kgexp.data.known import TEST, TRAIN, VALID
from kgexp.evaluation.metrics import check_rows, metrics, tie_warnings
from kgexp.evaluation.ranker import Ranker, nonfinite_rows
from kgexp.evaluation.report import RelationRow, relation_rows
from kgexp.evaluation.sampled import SampledRanker, sampled_name
from kgexp.models.base import Model
from kgexp.protocol import LOWER_IS_BETTER
from kgexp.sharding.table import Table
from kgexp.world import ALONE, World

ALL = TRAIN | VALID | TEST


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found.

    Attributes:
        split: its name.
        metrics: by full protocol name; empty where the split has no triples.
        relations: realistic metrics by relation, under the first filter; on rank 0 alone.
        warnings: sentences for people.
        seconds: wall time.
    """

    split: str
    metrics: dict[str, float]
    relations: list[RelationRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Evaluator:
    """Evaluates a model on the splits of a graph.

    Args:
        config: the `evaluation` group: `protocol` (`full` or `sampled`), `candidates` (of the sampled one),
            `queries`, `block`, `max_valid_triples`, `objective` (`tie/side/metric`).
        model: scores.
        entity: rows float[n, d].
        relation: rows of the relations.
        graph: its splits and known triples.
        say: called with each warning.
        progress: called with (queries done, queries in all).
        seed: of the sampled protocol's draw.
        world: the ranks that evaluate together.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        model: Model,
        entity: Table,
        relation: Table,
        graph: Graph,
        say: Callable[[str], None] = lambda line: None,
        progress: Callable[[int, int], None] | None = None,
        *,
        seed: int = 0,
        world: World = ALONE,
    ) -> None:
        self._config, self._graph, self._say, self._world = config, graph, say, world
        self._tables = (entity, relation)
        self._objective = str(config["objective"])
        parts = (model, entity, relation, graph)
        self._ranker: Ranker | SampledRanker
        if config["protocol"] == "full":
            self._name = "filtered"
            self._ranker = Ranker(*parts, queries=config["queries"], block=config["block"], progress=progress)
        else:
            k = config["candidates"]
            self._name = sampled_name(k)
            self._ranker = SampledRanker(*parts, candidates=k, seed=seed, queries=config["queries"], progress=progress)

    @property
    def objective_name(self) -> str:
        """The metric that early stopping, schedules and sweeps go by, such as
        `valid/filtered/realistic/both/mrr`."""
        return f"valid/{self._name}/{self._objective}"

    @property
    def objective_sign(self) -> int:
        """+1 where a higher objective is better, -1 where a lower one is."""
        return -1 if self._objective.rpartition("/")[2] in LOWER_IS_BETTER else 1

    def evaluate(self, split: str) -> Evaluation:
        """Ranks the triples of `split` (`valid`, `test`, or `train`); an empty split has no metrics.

        Raises:
            NonFiniteError: a row is not finite, or a score is NaN.
        """
        start = time.perf_counter()
        if not len(self._graph.split(split).triples):
            return Evaluation(split, {})
        # Before the ranking, because to rank rows that are not finite is slow, and in vain.
        check_rows(split, nonfinite_rows(*self._tables, self._config["block"]))
        limit = self._config["max_valid_triples"] if split == "valid" else None
        counts = self._ranker.rank(split, self._filters(split), limit)
        # The metrics of the relations' categories sort all of train, and the last bit of a mean may hang on the
        # processor: one rank decides.
        first = self._world.rank == 0
        values = self._world.broadcast(f"the metrics of {split}", metrics(counts, self._graph) if first else None)
        warnings = tie_warnings(values)
        if len(counts) < counts.total:
            warnings.append(f"metrics of {split} are of a sample of {len(counts)} of its {counts.total} triples")
        for line in warnings:
            self._say(line)
        rows = relation_rows(counts, self._graph, self._name) if first else []
        return Evaluation(split, values, rows, warnings, time.perf_counter() - start)

    def _filters(self, split: str) -> dict[str, int]:
        """Validation is decided without a look at test, as in a competition; the other figure is for
        comparison."""
        if split == "test" or self._config["protocol"] == "sampled":
            return {self._name: ALL}
        return {self._name: TRAIN | VALID, f"{self._name}_with_test": ALL}
