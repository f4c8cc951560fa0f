"""The tables of a report, as data: whoever shows them decides how."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kgexp.protocol import LOWER_IS_BETTER
from kgexp.reporting import keys as naming
from kgexp.reporting.configurations import Comparison, Configuration, Spread
from kgexp.reporting.trials import STATUSES, Trial, numbers


@dataclass(frozen=True)
class Column:
    """A column: how its values are shown, numbers at the right."""

    name: str
    show: Callable[[Any], str] = naming.shown
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of plain values, numbers in full precision; None is an empty cell."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def texts(self) -> list[list[str]]:
        """The rows as people read them."""
        return [
            ["" if value is None else column.show(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def counts(trials: Sequence[Trial]) -> str:
    """`12 trials: 10 finished, 1 pruned, 1 failed`."""
    number = Counter(trial.status for trial in trials)
    order = [*STATUSES, *(status for status in number if status not in STATUSES)]
    parts = ", ".join(f"{number[status]} {status}" for status in order if number[status])
    return f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'}: {parts}"


def by_metric(comparison: Comparison, metric: str) -> Table:
    """A line for each configuration, the best mean first: mean, sample standard deviation, seeds, extremes."""
    show = decimals(metric)
    numeric = [Column("mean", show), Column("± std", lambda std: f"± {show(std)}"), Column("n"), Column("min", show)]
    rows = tuple(
        (*_names(comparison, c), spread.mean, spread.std, spread.n, spread.low, spread.high)
        for c, spread in comparison.ranked(metric)
    )
    return Table(metric, (*_head(comparison), *numeric, Column("max", show)), rows)


def best_by_model(comparison: Comparison, objective: str) -> Table:
    """A column for each model class: its configuration of the best mean objective, and what that reached.

    The objective alone chooses; the test metrics are only reported.
    """
    best: dict[str, Configuration] = {}
    for configuration, _ in comparison.ranked(objective):
        best.setdefault(configuration.model, configuration)
    chosen = list(best.values())
    rows: list[tuple[Any, ...]] = [
        (naming.title(key), *(naming.shown(naming.value_of(key, c.values.get(key, naming.ABSENT))) for c in chosen))
        for key in comparison.keys
    ]
    rows.append(("seeds", *(str(spread.n if (spread := c.spread(objective)) else 0) for c in chosen)))
    for metric in dict.fromkeys([objective, *comparison.test_metrics()]):
        spreads = [c.spread(metric) for c in chosen]
        if any(spreads):
            rows.append((metric, *(spread and plus_minus(spread, metric) for spread in spreads)))
    columns = (Column("", number=False), *(Column(model or "?", naming.shown) for model in best))
    return Table("best of each model class", columns, tuple(rows))


def cost(comparison: Comparison) -> Table:
    """What a trial of each configuration takes, a mean over its finished ones; memory is the largest."""
    columns = (
        *_head(comparison),
        Column("n"),
        Column("training s", _one_decimal),
        Column("evaluation s", _one_decimal),
        Column("triples/s", lambda rate: f"{rate:,.0f}"),
        Column("peak RSS MB", lambda size: f"{size / 1e6:,.0f}"),
        Column("epochs to the best", _one_decimal),
    )
    rows = []
    for configuration in comparison.best_first():
        if done := configuration.finished:
            figures = (
                _mean(trial.seconds.get("train") for trial in done),
                _mean(_evaluating(trial) for trial in done),
                _mean(numbers(trial.result).get("triples_per_second") for trial in done),
                max((size for trial in done if (size := numbers(trial.result).get("peak_rss"))), default=None),
                _mean(trial.epochs_to_best for trial in done),
            )
            rows.append((*_names(comparison, configuration), len(done), *figures))
    return Table("cost of a trial", columns, tuple(rows))


def failures(trials: Sequence[Trial]) -> Table:
    """The trials that failed, or were stopped and may go on: what sets each apart, and why it ended."""
    keys = naming.varying(trials)
    rows = tuple(
        (reference(trial, trials), naming.difference(trial, keys), trial.status, trial.first_line)
        for trial in trials
        if trial.status in ("failed", "stopped")
    )
    columns = (Column("trial"), Column("what differs", number=False), Column("status", number=False))
    return Table("trials without a result", (*columns, Column("error", number=False)), rows)


def pruned(trials: Sequence[Trial]) -> str:
    """`3 pruned: 2 at epoch 4, 1 at epoch 8`; empty where none was."""
    ends = [_last_epoch(trial) for trial in trials if trial.status == "pruned"]
    if not ends:
        return ""
    number = Counter(ends)
    known = sorted(end for end in number if end is not None)
    parts = [f"{number[end]} at epoch {end:g}" for end in known]
    if None in number:
        parts.append(f"{number[None]} at an unknown epoch")
    return f"{len(ends)} pruned: {', '.join(parts)}"


def hours(trials: Sequence[Trial]) -> float:
    """What all trials have taken together, in hours; those that still run have not said yet."""
    return sum(sum(trial.seconds.values()) for trial in trials) / 3600


def reference(trial: Trial, trials: Sequence[Trial]) -> str:
    """A trial's number, after its sweep's name where there are several."""
    several = len({other.sweep for other in trials}) > 1
    return f"{trial.sweep} {trial.number}" if several else str(trial.number)


def decimals(metric: str) -> Callable[[float], str]:
    """How values of a metric are written: mean ranks with one digit, other metrics with four."""
    word = metric.rpartition("/")[2]
    if word in LOWER_IS_BETTER:
        return _one_decimal
    return lambda value: f"{value:.4f}" if abs(value) < 100 else f"{value:.6g}"


def plus_minus(spread: Spread, metric: str) -> str:
    """`0.2700 ± 0.0012`; a single seed has no ±."""
    show = decimals(metric)
    return show(spread.mean) if spread.std is None else f"{show(spread.mean)} ± {show(spread.std)}"


def _head(comparison: Comparison) -> list[Column]:
    """Columns that say which configuration a line is of."""
    if not comparison.described:
        return [Column("configuration", number=False)]
    return [Column("model", number=False), *(Column(naming.title(key)) for key in comparison.keys)]


def _names(comparison: Comparison, configuration: Configuration) -> list[Any]:
    if not comparison.described:
        return [configuration.label]
    values = [configuration.values.get(key, naming.ABSENT) for key in comparison.keys]
    return [configuration.model, *map(naming.value_of, comparison.keys, values)]


def _last_epoch(trial: Trial) -> float | None:
    """The epoch at which a trial ended."""
    epoch = numbers(trial.result).get("epoch")
    return epoch if epoch is not None or not trial.validations else trial.epoch_of(trial.validations[-1])


def _evaluating(trial: Trial) -> float | None:
    """Seconds of validations and the test."""
    spent = [trial.seconds[stage] for stage in ("evaluate", "test") if stage in trial.seconds]
    return sum(spent) if spent else None


def _mean(values: Iterable[float | None]) -> float | None:
    spread = Spread.of(values)
    return None if spread is None else spread.mean


def _one_decimal(value: float) -> str:
    return f"{value:,.1f}"
