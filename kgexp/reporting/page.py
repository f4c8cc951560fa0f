"""`report.md`: the tables and plots of one or several sweeps on a page."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from kgexp.reporting import tables
from kgexp.reporting.configurations import Comparison, repeated
from kgexp.reporting.tables import Table
from kgexp.reporting.trials import Sweep, Trial

#: A plot's file name by what it shows, for each graph.
Plots = Mapping[str, Sequence[tuple[str, str]]]


def page(
    sweeps: Sequence[Sweep], parts: Sequence[Comparison], command: Sequence[str], plots: Plots, missing: str = ""
) -> str:
    """The text of `report.md`.

    Args:
        sweeps: what it is about.
        parts: their trials by graph.
        command: the arguments that make it again.
        plots: captions and file names, by the graph's name.
        missing: why there are no plots, in a sentence.
    """
    trials = [trial for sweep in sweeps for trial in sweep.trials]
    lines = [*_head(sweeps, trials, command)]
    for note in notes(trials, parts):
        lines += ["", escaped(note)]
    if missing:
        lines += ["", missing]
    for comparison in parts:
        if len(parts) > 1:
            lines += ["", f"# {escaped(comparison.graph)}", "", f"{tables.counts(comparison.trials)}."]
        lines += _comparison(comparison, plots.get(comparison.graph, ()))
    if (table := tables.failures(trials)).rows:
        lines += ["", "# Trials without a result", "", *markdown(table)]
    return "\n".join(lines) + "\n"


def _head(sweeps: Sequence[Sweep], trials: Sequence[Trial], command: Sequence[str]) -> Iterator[str]:
    yield f"# {'Sweep' if len(sweeps) == 1 else 'Sweeps'} {escaped(', '.join(sweep.name for sweep in sweeps))}"
    yield ""
    yield f"{tables.counts(trials)}. Written {datetime.now().astimezone():%Y-%m-%d %H:%M %z}; again:"
    yield ""
    yield f"    python -m kgexp.tools.report {shlex.join(command)}"
    yield ""
    for sweep in sweeps:
        yield f"* `{sweep.folder}`: {tables.counts(sweep.trials)}"
    yield ""
    yield "Every trial, with all of its numbers: [trials.csv](trials.csv)."


def notes(trials: Sequence[Trial], parts: Sequence[Comparison]) -> Iterator[str]:
    """Sentences about what a reader of the numbers should know."""
    if taken := tables.hours(trials):
        yield f"All trials together have taken {taken:.2f} hours."
    if said := tables.pruned(trials):
        yield f"{said}."
    if again := repeated(parts):
        yield (
            f"{again} finished {'trial repeats' if again == 1 else 'trials repeat'} the configuration and the seed of "
            "another one: each seed counts once, by its last trial."
        )
    commits = {trial.result.get("git_commit") for trial in trials if trial.result.get("git_commit")}
    if len(commits) > 1:
        names = ", ".join(sorted(str(commit)[:10] for commit in commits))
        yield f"The trials were run by {len(commits)} commits of the code: {names}."


def _comparison(comparison: Comparison, plots: Sequence[tuple[str, str]]) -> Iterator[str]:
    """What was reached on one graph."""
    if not any(trial.finished for trial in comparison.trials):
        yield from ("", "No trial has finished yet.")
    for objective in comparison.objectives:
        table = tables.best_by_model(comparison, objective)
        yield from ("", "## Best of each model class", "")
        yield f"Chosen by `{objective}` alone; the test metrics are of what was chosen, and chose nothing."
        yield from ("", *markdown(table, code=True))
    for caption, name in plots:
        yield from ("", f"![{escaped(caption)}]({name})")
    metrics = comparison.metrics()
    if metrics:
        yield from ("", "## Every configuration", "")
        yield "A line is a configuration: the mean over its finished seeds, and the standard deviation of that sample."
    for metric in metrics:
        better = "smaller is better" if comparison.lower_is_better(metric) else "larger is better"
        yield from ("", f"### `{metric}`", "", f"Best first: {better}.", "")
        yield from markdown(tables.by_metric(comparison, metric))
    table = tables.cost(comparison)
    if table.rows:
        yield from ("", "## Cost of a trial", "")
        yield (
            "Means over finished seeds; evaluation is validations and test. Memory is the most that the process of a "
            "trial has held, in earlier trials too where one process ran several."
        )
        yield from ("", *markdown(table))


def markdown(table: Table, code: bool = False) -> list[str]:
    """A table's lines in Markdown; `code` sets the first column as code."""
    heads = [escaped(column.name) for column in table.columns]
    rules = ["---:" if column.number else "---" for column in table.columns]
    rows = [[escaped(cell) for cell in row] for row in table.texts()]
    if code:
        rows = [[f"`{first}`" if "/" in first or "." in first else first, *others] for first, *others in rows]
    return [f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows)]


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    for sign in "\\|<*`":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
