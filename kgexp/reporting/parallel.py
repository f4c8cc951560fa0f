"""Parallel coordinates (Inselberg, 1985): a line a configuration through its values, coloured by what it reached."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator

from kgexp.reporting.configurations import Comparison
from kgexp.reporting.keys import ABSENT, short_titles, shown, value_of
from kgexp.reporting.style import CMAP, GREY, INK, cut, figure
from kgexp.reporting.trials import natural

#: Inches: of a character of a label, between axes at least, between labels of one axis at least, of an axis.
_LETTER, _GAP, _LINE, _HEIGHT = 0.068, 1.1, 0.15, 3.6

#: Characters of a label at most; axes with so many values have a label for each.
_LONGEST, _EACH = 26, 6


@dataclass(frozen=True)
class Axis:
    """One coordinate.

    Attributes:
        title: what it shows.
        place: of a value, in [0, 1].
        ticks: places and labels.
    """

    title: str
    place: Callable[[Any], float]
    ticks: list[tuple[float, str]]

    @property
    def width(self) -> float:
        """Inches that its labels take, at the left of it."""
        return _LETTER * max((len(label) for _, label in self.ticks), default=0)


def parallel(comparison: Comparison, metric: str) -> Figure | None:
    """The finished configurations by the keys that vary, coloured by the mean of `metric`; None without two of them, or
    without such keys.

    Numbers have a linear axis, or a logarithmic one where they span more than two decades; other values have their
    places in order. Configurations that never finished are grey.
    """
    ranked = [(c, spread) for c, spread in comparison.ranked(metric) if c.model]
    if len(ranked) < 2 or not comparison.keys:
        return None
    names = short_titles(comparison.keys)
    described = [c for c in comparison.configurations if c.model]
    rows = {c: [value_of(key, c.values.get(key, ABSENT)) for key in comparison.keys] for c in described}
    titles = [names[key] for key in comparison.keys]
    if len(comparison.models) > 1:
        rows = {c: [c.model, *values] for c, values in rows.items()}
        titles = ["model", *titles]
    coordinates = [
        axis_of(title, column) for title, column in zip(titles, zip(*rows.values(), strict=True), strict=True)
    ]
    means = {c: spread.mean for c, spread in ranked}
    last = axis_of(metric, list(means.values()), lambda mean: f"{mean:.4g}")
    where = _abscissae([*coordinates, last])
    tallest = max(len(axis.ticks) for axis in coordinates)
    plot, axes = figure(where[-1] + 1.0, min(7.0, max(_HEIGHT, _LINE * tallest)))
    colours = colormaps[CMAP].reversed() if comparison.lower_is_better(metric) else colormaps[CMAP]
    low, high = min(means.values()), max(means.values())
    for configuration, values in rows.items():
        if configuration not in means:
            y = [axis.place(value) for axis, value in zip(coordinates, values, strict=True)]
            axes.plot(where[:-1], y, color=GREY, linewidth=0.6, alpha=0.5, zorder=1)
    for order, (configuration, _) in enumerate(reversed(ranked)):  # the best on top
        mean = means[configuration]
        y = [axis.place(value) for axis, value in zip(coordinates, rows[configuration], strict=True)]
        colour = colours(0.5 if high == low else (mean - low) / (high - low))
        axes.plot(where, [*y, last.place(mean)], color=colour, linewidth=1.1, alpha=0.9, zorder=2 + order / len(ranked))
    for x, axis in zip(where, [*coordinates, last], strict=True):
        _draw_axis(axes, x, axis, at_right=axis is last)
    _draw_scale(axes, where[-1], colours, last.place(low), last.place(high))
    axes.set_xlim(-coordinates[0].width - 0.1, where[-1] + last.width + 0.2)
    axes.set_ylim(-0.03, 1.03)
    axes.axis("off")
    axes.set_title(metric, pad=30)
    return plot


def axis_of(title: str, values: Sequence[Any], show: Callable[[Any], str] = shown) -> Axis:
    """The axis for these values: of numbers where all are, but for those that are absent or null, which lie below."""
    known = [value for value in values if value not in (ABSENT, "null")]
    if known and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known):
        return _numeric(
            title, sorted(set(map(float, known))), [*dict.fromkeys(v for v in values if v not in known)], show
        )
    labels = sorted({shown(value) for value in values}, key=natural)
    step = 1 / max(1, len(labels) - 1)
    places = {label: 1 - i * step if len(labels) > 1 else 0.5 for i, label in enumerate(labels)}
    ticks = [(place, cut(label, _LONGEST)) for label, place in places.items()]
    return Axis(title, lambda value: places[shown(value)], ticks)


def _numeric(title: str, numbers: Sequence[float], others: Sequence[str], show: Callable[[Any], str]) -> Axis:
    low, high = numbers[0], numbers[-1]
    logarithmic = low > 0 and high / low > 100
    bottom = 0.12 if others else 0.0
    scale: Callable[[float], float] = math.log10 if logarithmic else float
    start, length = scale(low), scale(high) - scale(low)

    def place(value: Any) -> float:
        if value in others:
            return 0.0
        return bottom + (1 - bottom) * ((scale(float(value)) - start) / length if length else 0.5)

    if len(numbers) <= _EACH:
        marked = list(numbers)
    else:
        locator = LogLocator() if logarithmic else MaxNLocator(5)
        inner = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
        marked = inner if len(inner) > 1 else [low, high]
    ticks = [(place(number), show(number)) for number in marked]
    return Axis(title, place, [*((0.0, other) for other in others[:1]), *ticks])


def _abscissae(axes: Sequence[Axis]) -> list[float]:
    """Where the axes stand, in inches: labels are at their left, those of the last at its right."""
    where = [0.0]
    for before, axis in pairwise(axes):
        labels = 0.0 if axis is axes[-1] else axis.width
        heads = _LETTER * 1.15 * (len(before.title) + (0 if axis is axes[-1] else len(axis.title))) / 2
        where.append(where[-1] + max(_GAP, labels + 0.7, heads + 0.15))
    return where


def _draw_axis(axes: Axes, x: float, axis: Axis, at_right: bool) -> None:
    """A line, its labels on white so that they can be read over lines, its title above."""
    axes.plot((x, x), (0, 1), color=GREY, linewidth=0.9, zorder=4)
    halo = [withStroke(linewidth=2.5, foreground="white")]
    taken = -1.0
    for place, label in sorted(axis.ticks):
        if place - taken < 0.03 and taken >= 0:
            continue  # it would lie on the one below
        taken = place
        side = 0.06 if at_right else -0.05
        axes.text(
            x + (0.1 + side if at_right else side), place, label, ha="left" if at_right else "right", va="center",
            fontsize=7.5, color=INK, zorder=6, path_effects=halo,
        )  # fmt: skip
    if not at_right:
        axes.text(x, 1.05, axis.title, ha="center", va="bottom", fontsize=8.5, weight="bold", zorder=6)


def _draw_scale(axes: Axes, x: float, colours: Any, low: float, high: float) -> None:
    """The colours beside the last axis, from the smallest value to the largest."""
    strip = [[i / 63] for i in range(64)]
    if high > low:
        axes.imshow(
            strip, extent=(x + 0.03, x + 0.11, low, high), origin="lower", aspect="auto", cmap=colours, zorder=5
        )
