"""Compares the trials of a sweep, or of several: a page, a table for other programs, plots.

    python -m kgexp.tools.report outputs/sweeps/DATE/TIME
    python -m kgexp.tools.report SWEEP SWEEP --out FOLDER --no-plots

Trials that differ by their seeds alone are one line: mean, sample standard deviation, number of seeds. It may be called
while the sweep runs, and again. Any folder with run folders directly below it will do. `report.md` and `trials.csv` go
to `SWEEP/report`; where there are several sweeps, to a folder of their own below `outputs/reports`.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kgexp.reporting import page, tables
from kgexp.reporting.configurations import Comparison, comparisons
from kgexp.reporting.files import write_csv
from kgexp.reporting.keys import short_titles
from kgexp.reporting.tables import Table
from kgexp.reporting.trials import Sweep, Trial, read
from kgexp.tools.failing import failed

#: Lines of a table on the console; the page has all of them.
_LINES = 20


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        sweeps = _read(options.folders)
        out = options.out or _default(sweeps)
        report(sweeps, out, arguments, plots=not options.no_plots)
    except Exception as error:
        return failed(error, OSError)
    print(f"report: {out / 'report.md'}")
    return 0


def _read(folders: Sequence[Path]) -> list[Sweep]:
    """The sweeps, each once; those that share a name go by their folders."""
    sweeps = [read(folder) for folder in dict.fromkeys(folders)]
    names = [sweep.name for sweep in sweeps]
    return [read(sweep.folder, str(sweep.folder)) if names.count(sweep.name) > 1 else sweep for sweep in sweeps]


def report(sweeps: Sequence[Sweep], out: Path, command: Sequence[str], plots: bool = True) -> None:
    """Writes the report of `sweeps` to the folder `out`, which is made, and prints the main tables.

    Raises:
        OSError: the folder cannot be written to.
    """
    trials = [trial for sweep in sweeps for trial in sweep.trials]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "trials.csv", trials)
    parts = comparisons(trials)
    drawn, missing = _plots(parts, out) if plots else ({}, "")
    text = page.page(sweeps, parts, command, drawn, missing)
    (out / "report.md").write_text(text, encoding="utf-8")
    _show(trials, parts, missing)


def _plots(parts: Sequence[Comparison], out: Path) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """The captions and file names of the plots by graph; or why there are none."""
    try:
        draw = importlib.import_module("kgexp.reporting.plots").draw
    except ImportError:
        return {}, "There are no plots, as matplotlib is not installed: pip install 'matplotlib>=3.8' adds them."
    ends = [f"-{re.sub(r'[^A-Za-z0-9_.-]+', '_', part.graph)}" if len(parts) > 1 else "" for part in parts]
    return {part.graph: draw(part, out, end) for part, end in zip(parts, ends, strict=True)}, ""


def _show(trials: Sequence[Trial], parts: Sequence[Comparison], missing: str) -> None:
    """Prints what most people want to know; the page has the rest."""
    console = Console(highlight=False, markup=False)
    console.print(f"{tables.counts(trials)}.")
    for note in page.notes(trials, parts):
        console.print(note)
    for comparison in parts:
        for objective in comparison.objectives:
            where = f"{comparison.graph}: " if len(parts) > 1 else ""
            console.print(_rich(tables.by_metric(comparison, objective), console.width, where))
            console.print(_rich(tables.best_by_model(comparison, objective), console.width, where))
    if (failures := tables.failures(trials)).rows:
        console.print(_rich(failures, console.width))
    if missing:
        console.print(missing)


def _rich(table: Table, width: int, where: str = "") -> RichTable:
    """A table for a console of this width; keys by their last words, which need less of it."""
    names = short_titles([column.name for column in table.columns])
    shown = RichTable(title=Text(f"{where}{table.title}"), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    rows = table.texts()
    longest = [max((len(row[i]) for row in rows), default=0) for i in range(len(table.columns))]
    # The names at the left, of metrics or models, stay whole if the other cells have room then, on two lines each.
    halves = sum(max(len(names[c.name]), (n + 1) // 2) + 2 for c, n in zip(table.columns, longest, strict=True))
    fits = halves + longest[0] // 2 <= width
    for i, column in enumerate(table.columns):
        side: Literal["left", "right"] = "right" if column.number else "left"
        shown.add_column(Text(names[column.name]), justify=side, overflow="fold", no_wrap=fits and i == 0)
    for row in rows[:_LINES]:
        shown.add_row(*map(Text, row))
    if len(rows) > _LINES:
        shown.caption = f"and {len(rows) - _LINES} more, in report.md"
    return shown


def _default(sweeps: Sequence[Sweep]) -> Path:
    """Where a report goes that nobody has given a folder."""
    if len(sweeps) == 1:
        return sweeps[0].folder / "report"
    return Path("outputs/reports", f"{datetime.now():%Y-%m-%d_%H-%M-%S}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m kgexp.tools.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="SWEEP", help="a folder with run folders below it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes; made where it is missing")
    parser.add_argument("--no-plots", action="store_true", help="tables only; matplotlib is not imported")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
