"""Trials that differ by their seeds alone, taken together: the lines of a report's tables."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kgexp.reporting import keys as naming
from kgexp.reporting.trials import Trial, lower_is_better

_TEST_METRICS = ("mrr", "hits@1", "hits@3", "hits@10", "mr")


@dataclass(frozen=True)
class Spread:
    """A number over seeds; `std` is that of a sample (n - 1), None for a single one."""

    mean: float
    std: float | None
    n: int
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Of those that are known; None where none is."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        std = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), std, len(known), min(known), max(known))


@dataclass(frozen=True, eq=False)
class Configuration:
    """What its trials share.

    Attributes:
        model: the name of the model's class.
        values: of the keys that vary between configurations.
        trials: all of them, whatever became of them.
    """

    model: str
    values: Mapping[str, Any]
    trials: tuple[Trial, ...]

    @property
    def label(self) -> str:
        """The configuration in a line."""
        return naming.label(self.model, self.values) or self.trials[0].arguments or self.trials[0].sweep

    @cached_property
    def finished(self) -> list[Trial]:
        """The trials whose numbers count: to their end, and each seed once, as a repetition is no further sample."""
        by_seed = {naming.shown(trial.seed): trial for trial in self.trials if trial.finished}
        return list(by_seed.values())

    def spread(self, metric: str) -> Spread | None:
        """A metric over seeds."""
        return Spread.of(trial.metrics.get(metric) for trial in self.finished)


@dataclass(frozen=True)
class Comparison:
    """Trials whose numbers may be compared: those on one graph.

    Attributes:
        graph: its name.
        trials: in their order.
        keys: that vary between them.
        configurations: in the order of their first trials.
    """

    graph: str
    trials: tuple[Trial, ...]
    keys: tuple[str, ...]
    configurations: tuple[Configuration, ...]

    @classmethod
    def of(cls, graph: str, trials: Sequence[Trial]) -> "Comparison":
        """Takes together what differs by the seed alone."""
        keys = naming.varying(trials)
        groups: dict[str, list[Trial]] = {}
        for trial in trials:
            groups.setdefault(naming.identity(trial, keys), []).append(trial)
        configurations = tuple(
            Configuration(group[0].model, naming.values_of(group[0], keys) if group[0].config else {}, tuple(group))
            for group in groups.values()
        )
        return cls(graph, tuple(trials), tuple(keys), configurations)

    @cached_property
    def described(self) -> bool:
        """Whether the configuration of every finished trial is known."""
        return all(c.model for c in self.configurations if c.finished)

    @property
    def models(self) -> list[str]:
        """The model classes, each once."""
        return list(dict.fromkeys(trial.model for trial in self.trials if trial.model))

    @property
    def objectives(self) -> list[str]:
        """What decides: the objectives of finished trials, the most frequent one first."""
        names = Counter(trial.objective_name for trial in self.trials if trial.finished and trial.objective is not None)
        return [name for name, _ in names.most_common()]

    def lower_is_better(self, metric: str) -> bool:
        """Whether small values are the good ones."""
        return lower_is_better(metric, self.trials)

    def ranked(self, metric: str) -> list[tuple[Configuration, Spread]]:
        """The configurations that have the metric, the best mean first."""
        having = [(c, spread) for c in self.configurations if (spread := c.spread(metric)) is not None]
        sign = 1 if self.lower_is_better(metric) else -1
        return sorted(having, key=lambda pair: sign * pair[1].mean)

    def best_first(self) -> list[Configuration]:
        """All configurations, by each objective in turn; those without one at the end."""
        ranked = [configuration for name in self.objectives for configuration, _ in self.ranked(name)]
        return list(dict.fromkeys([*ranked, *self.configurations]))

    def metrics(self) -> list[str]:
        """What people look at: objectives, what else the sweep was told, the test metrics of every protocol."""
        told = [name for trial in self.trials for name in trial.values if name in trial.metrics]
        return list(dict.fromkeys([*self.objectives, *told, *self.test_metrics()]))

    def test_metrics(self) -> list[str]:
        """The test metrics by their full names: both sides, realistic ties; a protocol after the other."""
        names = dict.fromkeys(name for trial in self.trials if trial.finished for name in trial.metrics)
        protocols = [
            name.removesuffix("mrr")
            for name in names
            if name.startswith("test/") and name.count("/") == 4 and name.endswith("/realistic/both/mrr")
        ]
        wanted = [protocol + metric for protocol in protocols for metric in _TEST_METRICS]
        return [name for name in wanted if name in names]


def comparisons(trials: Sequence[Trial]) -> list[Comparison]:
    """The trials by the graph that they ran on, told by its fingerprint.

    One that ended before it knew its graph belongs to the only one there is; of several, to none.
    """
    prints = list(dict.fromkeys(trial.result.get("fingerprint") for trial in trials))
    known = [fingerprint for fingerprint in prints if fingerprint is not None]
    if len(known) <= 1:
        return [Comparison.of(_graph(trials), trials)]
    parts = [[trial for trial in trials if trial.result.get("fingerprint") == fingerprint] for fingerprint in known]
    names = [_graph(part) for part in parts]
    clear = [
        name if names.count(name) == 1 else f"{name} ({str(fingerprint)[:8]})"
        for name, fingerprint in zip(names, known, strict=True)
    ]
    return [Comparison.of(name, part) for name, part in zip(clear, parts, strict=True)]


def repeated(parts: Sequence[Comparison]) -> int:
    """How many finished trials repeat the configuration and the seed of another one."""
    return sum(
        sum(trial.finished for trial in configuration.trials) - len(configuration.finished)
        for comparison in parts
        for configuration in comparison.configurations
    )


def _graph(trials: Sequence[Trial]) -> str:
    names = [trial.values_by_key.get("dataset.name") for trial in trials]
    return next((str(name) for name in names if name is not None), "graph")
