"""Evaluation as the configuration asks for it: which protocol, which filters, which number decides."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from kgexp.data.graph import Graph
from kgexp.data.known import TEST, TRAIN, VALID
from kgexp.errors import ConfigError
from kgexp.evaluation.metrics import LOWER_IS_BETTER, OBJECTIVES, check_rows, metrics, tie_warnings
from kgexp.evaluation.ranker import Ranker, nonfinite_rows
from kgexp.evaluation.report import RelationRow, relation_rows
from kgexp.evaluation.sampled import SampledRanker, sampled_name
from kgexp.models.base import Model
from kgexp.sharding.table import Table

ALL = TRAIN | VALID | TEST


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found.

    Attributes:
        split: its name.
        metrics: by full protocol name; empty where the split has no triples.
        relations: realistic metrics by relation, under the first filter.
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
    ) -> None:
        self._config, self._graph, self._say = config, graph, say
        self._tables = (entity, relation)
        self._objective = _checked_objective(config["objective"])
        protocol = config["protocol"]
        if protocol == "full":
            self._name = "filtered"
            self._ranker = Ranker(
                model,
                entity,
                relation,
                graph,
                queries=config["queries"],
                block=config["block"],
                progress=progress,
            )
        elif protocol == "sampled":
            self._name = sampled_name(config["candidates"])
            self._ranker = SampledRanker(
                model,
                entity,
                relation,
                graph,
                candidates=config["candidates"],
                seed=seed,
                queries=config["queries"],
                progress=progress,
            )
        else:
            raise ConfigError(f"evaluation.protocol is {protocol!r}, but must be full or sampled")

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
        values = metrics(counts, self._graph)
        warnings = tie_warnings(values)
        if len(counts) < counts.total:
            warnings.append(f"metrics of {split} are of a sample of {len(counts)} of its {counts.total} triples")
        for line in warnings:
            self._say(line)
        rows = relation_rows(counts, self._graph, self._name)
        return Evaluation(split, values, rows, warnings, time.perf_counter() - start)

    def _filters(self, split: str) -> dict[str, int]:
        """Validation is decided without a look at test, as in a competition; the other figure is for
        comparison."""
        if split == "test" or self._config["protocol"] == "sampled":
            return {self._name: ALL}
        return {self._name: TRAIN | VALID, f"{self._name}_with_test": ALL}


def _checked_objective(objective: str) -> str:
    """`tie/side/metric` as it is, if every ranking has it."""
    if objective not in OBJECTIVES:
        close = get_close_matches(objective, OBJECTIVES, n=1) or ["realistic/both/mrr"]
        raise ConfigError(f"evaluation.objective is {objective!r}, which is no metric: try {close[0]}")
    return objective
