"""The plots of a report. Importing this needs matplotlib.

Each is left out where it would say nothing. A model class has the same colour in all plots of a graph.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kgexp.reporting.configurations import Comparison
from kgexp.reporting.keys import label
from kgexp.reporting.parallel import parallel
from kgexp.reporting.style import COLOURS, GREY, STYLE, cut, figure, save, spread_out
from kgexp.reporting.tables import reference
from kgexp.reporting.trials import Trial, numbers

#: Inches of the plot of curves, letters of a line beside it; lines of the plot of seeds at most.
_HEIGHT, _LETTERS, _LINES = 3.8, 50, 40

#: What a row of a validation is at, with the label of its axis; the first one that all rows have.
_AXES = ("seconds", "epoch", "step")


def draw(comparison: Comparison, out: Path, end: str = "") -> list[tuple[str, str]]:
    """Draws what there is to see of one graph.

    Args:
        comparison: the trials.
        out: the folder that the PNG files go to.
        end: of their names, before `.png`.

    Returns:
        A caption and a file name for each plot.
    """
    drawn: list[tuple[str, str, Figure | None]] = []
    with rc_context(STYLE):
        for i, metric in enumerate(_validated(comparison)):
            drawn.append((f"{metric} while training", f"curves{_next(i)}", curves(comparison, metric)))
        for i, objective in enumerate(comparison.objectives):
            drawn.append((f"{objective} by configuration", f"parallel{_next(i)}", parallel(comparison, objective)))
            drawn.append((f"{objective} over seeds", f"seeds{_next(i)}", seeds(comparison, objective)))
    made = []
    for caption, name, plot in drawn:
        if plot is not None:
            save(plot, out / f"{name}{end}.png")
            made.append((caption, f"{name}{end}.png"))
    return made


def curves(comparison: Comparison, metric: str) -> Figure | None:
    """A validation metric over the time of training: a line a trial, the best of each class thicker.

    The colours are those of the classes; with one class those of its best configurations. A cross ends a trial that was
    pruned. Where rows do not say at which second they were written, their epoch or step is used.
    """
    axis, lines = _lines(comparison, metric)
    if not lines:
        return None
    plot, axes = figure(6.4, _HEIGHT)
    scale, unit = _unit(max(x[-1] for _, x, _ in lines)) if axis == "seconds" else (1.0, "")
    sign = -1 if comparison.lower_is_better(metric) else 1
    groups = _groups(comparison)
    ends = []
    for name, colour, members in [*groups, ("", GREY, _others(comparison, groups))]:
        drawn = [(trial, [at / scale for at in x], y) for trial, x, y in lines if trial in members]
        for trial, x, y in drawn:
            axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.55, zorder=2 if name else 1)
            if trial.status == "pruned":
                axes.plot(x[-1], y[-1], "x", color=colour, markersize=4, zorder=3)
        if name and drawn:
            _, x, y = max(drawn, key=lambda line: max(sign * value for value in line[2]))
            few = "o" if len(x) <= 12 else ""
            axes.plot(x, y, f"{few}-", color=colour, linewidth=1.9, markersize=3.5, zorder=4, solid_capstyle="round")
            ends.append((name, colour, y[-1]))
    axes.set_title(metric if len(comparison.models) != 1 else f"{comparison.models[0]}: {metric}")
    pruned = "; x: pruned" if any(trial.status == "pruned" for trial, _, _ in lines) else ""
    axes.set_xlabel((f"training time ({unit})" if axis == "seconds" else axis) + pruned)
    axes.set_xlim(left=0)
    if axis != "seconds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    _name_ends(axes, ends, _HEIGHT * 0.77)
    return plot


def seeds(comparison: Comparison, metric: str) -> Figure | None:
    """A dot a trial, and a bar from mean - std to mean + std for each configuration; None where no seed has company."""
    ranked = comparison.ranked(metric)
    if not any(spread.n > 1 for _, spread in ranked):
        return None
    shown = ranked[:_LINES]
    plot, axes = figure(5.2, 1.1 + 0.27 * len(shown))
    colours = _by_class(comparison)
    for line, (configuration, spread) in enumerate(shown):
        colour = colours.get(configuration.model, COLOURS[0])
        values = [trial.metrics[metric] for trial in configuration.finished if metric in trial.metrics]
        if spread.std is not None:
            ends = (spread.mean - spread.std, spread.mean + spread.std)
            axes.plot(ends, (line, line), color=colour, linewidth=5, alpha=0.25, solid_capstyle="butt")
            axes.plot([spread.mean] * 2, (line - 0.28, line + 0.28), color=colour, linewidth=1.8)
        axes.plot(values, [line] * len(values), "o", color=colour, markersize=4, alpha=0.8, markeredgewidth=0)
    axes.set_yticks(range(len(shown)), [cut(label(c.model, c.values, digits=4) or c.label, 72) for c, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    few = "" if len(shown) == len(ranked) else f", the best {len(shown)} of {len(ranked)} configurations"
    axes.set_title(f"{metric}{few}")
    axes.set_xlabel("a dot a seed; mean ± sample std")
    return plot


def _validated(comparison: Comparison) -> list[str]:
    """The MRR by which checkpoints are chosen, of every protocol in the trials' validations, the usual one first."""
    names: Counter[str] = Counter()
    for trial in comparison.trials:
        for row in trial.validations:
            names.update(
                name
                for name in row
                if name.startswith("valid/")
                and name.endswith("/realistic/both/mrr")
                and name.count("/") == 4
                and not name.startswith("valid/filtered_with_test/")
            )
    return [name for name, _ in names.most_common()]


def _lines(comparison: Comparison, metric: str) -> tuple[str, list[tuple[Trial, list[float], list[float]]]]:
    """What curves run over, and for each trial with two points or more its abscissae and values."""
    points = [
        (trial, [({"seconds": _seconds(row), "epoch": trial.epoch_of(row), "step": float(row["step"])}, value)
                 for row in trial.validations if (value := numbers(row).get(metric)) is not None])
        for trial in comparison.trials
    ]  # fmt: skip
    points = [(trial, line) for trial, line in points if len(line) > 1]
    axis = next((name for name in _AXES if all(at[name] is not None for _, line in points for at, _ in line)), "step")
    return axis, [(trial, [float(at[axis] or 0) for at, _ in line], [y for _, y in line]) for trial, line in points]


def _seconds(row: Mapping[str, Any]) -> float | None:
    return numbers(row).get("train/seconds")


def _groups(comparison: Comparison) -> list[tuple[str, str, list[Trial]]]:
    """Name, colour and trials of what has a colour of its own: the classes, or a single one's best configurations."""
    colours = _by_class(comparison)
    if len(colours) != 1:
        classes = colours.items()
        return [(name, colour, [t for t in comparison.trials if t.model == name]) for name, colour in classes]
    best = comparison.best_first()[: len(COLOURS)]
    names = [label("", c.values, digits=3) or c.model for c in best]
    if any(len(wrap(name, _LETTERS)) > 2 for name in names):  # too long beside a plot: say where to find it
        numbers = [[reference(trial, comparison.trials) for trial in c.trials] for c in best]
        names = [f"{'trial' if len(those) == 1 else 'trials'} {', '.join(those)}" for those in numbers]
    return [(name, colour, list(c.trials)) for name, colour, c in zip(names, COLOURS, best, strict=False)]


def _others(comparison: Comparison, groups: Sequence[tuple[str, str, list[Trial]]]) -> list[Trial]:
    """The trials that are in no group."""
    return [trial for trial in comparison.trials if not any(trial in members for _, _, members in groups)]


def _by_class(comparison: Comparison) -> dict[str, str]:
    """A colour for each model class; those beyond the palette are grey."""
    return dict(zip(comparison.models, COLOURS, strict=False))


def _name_ends(axes: Axes, ends: Sequence[tuple[str, str, float]], height: float) -> None:
    """Writes names beside the right edge, each as near to the end of its line as the others let it; `height` is that of
    the axes in inches."""
    low, high = axes.get_ylim()
    names = ["\n".join(wrap(name, _LETTERS, max_lines=2, placeholder=" …")) for name, _, _ in ends]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    places = spread_out([(y - low) / (high - low) for _, _, y in ends], (0.04 + 0.125 * lines) / height, top=1.0)
    for name, (_, colour, _), place in zip(names, ends, places, strict=True):
        axes.text(1.015, place, name, transform=axes.transAxes, color=colour, va="center", fontsize=8, linespacing=1.05)


def _unit(seconds: float) -> tuple[float, str]:
    """The seconds of a unit in which times up to `seconds` read well, and its name."""
    if seconds < 300:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")


def _next(i: int) -> str:
    return f"-{i + 1}" if i else ""
