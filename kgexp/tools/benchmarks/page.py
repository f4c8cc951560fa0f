"""What a benchmark found, for people: the machine, then a table with a row for each setting."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kgexp.reporting.keys import shown
from kgexp.reporting.page import markdown
from kgexp.reporting.tables import Column, Table

#: Where a figure is, such as `triples_per_second.median`, by its head, with what it is multiplied by.
Columns = Mapping[str, tuple[str, float]]

#: Figures that say nothing of a setting.
_ABOUT = ("load_average", "processor", "platform")


def page(found: Mapping[str, Any], columns: Columns) -> str:
    """The whole of it in Markdown.

    Args:
        found: suite, arguments, machine, versions and settings, as JSON has them.
        columns: those of the table; all numbers where there are none.
    """
    settings = found["settings"]
    lines = [f"# {found['suite']}", "", *(f"- {line}" for line in _about(found)), ""]
    lines += markdown(_table(settings, columns or _all(settings)))
    failures = {name: figures["error"] for name, figures in settings.items() if "error" in figures}
    if failures:
        lines += ["", *(f"- {name}: {sentence}" for name, sentence in failures.items())]
    return "\n".join([*lines, ""])


def _about(found: Mapping[str, Any]) -> Iterator[str]:
    """The machine, its rates, what ran on it, and how it was asked for."""
    machine, versions = found["machine"], found["versions"]
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['cpu_capability']}; device {machine['device']}; "
        f"{machine['platform']}"
    )
    for rates in machine["rates"]:
        products = "; ".join(
            f"{dtype} products {', '.join(f'{gflops:,.4g} GFLOP/s ({shape})' for shape, gflops in shapes.items())}"
            for dtype, shapes in rates["products_gflops"].items()
        )
        yield (
            f"{rates['device']}, {rates['threads']} thread{'s' if rates['threads'] > 1 else ''}: {products}; copy "
            f"{rates['copy_gb_per_second']:.3g} GB/s, triad {rates['triad_gb_per_second']:.3g}; random rows of "
            f"{rates['row_bytes']} bytes {rates['random_rows_gb_per_second']:.3g} GB/s; an operation "
            f"{rates['operation_us']:.2g} µs"
        )
    yield ", ".join(f"{name} {version}" for name, version in versions.items()) + f"; commit {found['git_commit']}"
    yield f"`python -m kgexp.tools.bench {shlex.join([found['suite'], *found['arguments']])}`"


def _table(settings: Mapping[str, Mapping[str, Any]], columns: Columns) -> Table:
    """A row a setting; columns that no setting has a number for are left out."""
    cells = {
        head: [_scaled(_at(figures, path), scale) for figures in settings.values()]
        for head, (path, scale) in columns.items()
    }
    cells = {head: column for head, column in cells.items() if any(value is not None for value in column)}
    numbers: Callable[[Any], str] = partial(_number, digits=4)
    heads = (Column("setting", number=False), *(Column(head, numbers) for head in cells))
    return Table("", heads, tuple(zip(settings, *cells.values(), strict=True)))


def _all(settings: Mapping[str, Mapping[str, Any]]) -> Columns:
    """A column for every number of a setting."""
    paths = {path: None for figures in settings.values() for path in _numbers(figures, "")}
    return {path: (path, 1.0) for path in paths}


def _numbers(figures: Mapping[str, Any], before: str) -> Iterator[str]:
    for name, value in figures.items():
        if name in _ABOUT:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}"


def _at(figures: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    at: Any = figures
    for key in path.split("."):
        at = at.get(key) if isinstance(at, Mapping) else None
    return at


def _scaled(value: Any, scale: float) -> float | None:
    return None if value is None else value * scale


def _number(value: float, digits: int) -> str:
    """With commas between thousands, to so many digits where there are fewer before the point."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else shown(float(value), digits)


def columns_of(*columns: tuple[str, str, float] | tuple[str, str]) -> Columns:
    """Columns by head, path and, if not 1, the number that figures are multiplied by."""
    return {head: (path, scale[0] if scale else 1.0) for head, path, *scale in columns}


#: Bytes and shares as people read them.
MB, PERCENT = 1e-6, 100.0

RATE: Sequence[tuple[str, str]] = (
    ("triples/s", "triples_per_second.median"),
    ("min", "triples_per_second.min"),
    ("max", "triples_per_second.max"),
)
