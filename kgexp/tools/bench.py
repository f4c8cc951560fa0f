"""Speed on this machine, for the configuration that a run would have, beside what the machine can do.

    python -m kgexp.tools.bench train experiment=fb15k237_complex_negatives dataset.path=PATH/FB15k-237
    python -m kgexp.tools.bench train model=complex,transe model.dim=100,200 scoring=negatives --plot roofline.png
    python -m kgexp.tools.bench train sharding=rowwise sharding.ranks=2 train.threads=1
    python -m kgexp.tools.bench scaling sharding.ranks=2 train.threads=1
    python -m kgexp.tools.bench trainers --ranks 1,2,4 scoring=negatives train.threads=1
    python -m kgexp.tools.bench exchange --rows 1000,10000 --widths 100,400 sharding.ranks=2 train.threads=1
    python -m kgexp.tools.bench swap sharding.partitions=16 scoring=negatives
    python -m kgexp.tools.bench evaluate model.dim=200
    python -m kgexp.tools.bench load dataset=files dataset.path=PATH

Values separated by commas make a grid; every setting has a process of its own. Prints the machine, the versions and a
table in Markdown; `--json FILE` writes all figures, `--markdown FILE` the table. Figures of time are medians of several
windows, for machines are noisy. Steps are those of a run, from its batches to its row optimizer, with as many ranks as
the configuration has: triples are those of all ranks, seconds those of rank 0. What each suite measures stands in
`kgexp.tools.benchmarks`.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgexp.errors import ConfigError
from kgexp.tools.benchmarks import exchange, load, machine, swap, trainers
from kgexp.tools.benchmarks.grid import Settings, over_grid
from kgexp.tools.benchmarks.page import MB, PERCENT, RATE, Columns, columns_of, page
from kgexp.tools.composing import composed, composed_rowwise
from kgexp.tools.failing import failed
from kgexp.tools.measuring import about, apart

_HERE = "kgexp.tools.benchmarks"

#: What `environment.describe` says of all settings alike.
_ABOUT = ("machine", "versions", "git_commit", "cpu_capability")


@dataclass(frozen=True)
class Suite:
    """What can be measured.

    Attributes:
        run: from arguments to the figures of each setting.
        columns: of the table; where there are none, all numbers are shown.
        plotted: whether settings can be put under the limits of the machine.
    """

    run: Callable[[Sequence[str]], Settings]
    columns: Columns
    plotted: bool = False


def _load(given: Sequence[str]) -> Settings:
    import torch  # later than the processes that read, which do without it

    figures = load.load(given)
    return {"as given": about(1, torch.device("cpu")) | figures}


_SUITES: Mapping[str, Suite] = {
    "train": Suite(
        over_grid(f"{_HERE}.train.train", compose=composed),
        columns_of(
            *RATE,
            ("examples/s", "examples_per_second"),
            ("M candidates/s", "candidates_per_second", 1e-6),
            ("prepare ms", "ms_by_stage.prepare"),
            ("gather ms", "ms_by_stage.gather"),
            ("loss ms", "ms_by_stage.loss"),
            ("update ms", "ms_by_stage.update"),
            ("MFLOP a step", "flops_a_step", 1e-6),
            ("GFLOP/s", "gflops"),
            ("% of machine", "share_of_machine", PERCENT),
            ("% of products", "share_of_products", PERCENT),
            ("MB a step", "bytes_a_step.total", MB),
            ("peak RSS MB", "peak_rss", MB),
        ),
        plotted=True,
    ),
    "scaling": Suite(
        over_grid(f"{_HERE}.scaling.scaling", compose=composed_rowwise),
        columns_of(
            ("ranks", "ranks"),
            ("triples/s of one", "alone.triples_per_second.median"),
            ("triples/s of all", "together.triples_per_second.median"),
            ("speedup", "speedup"),
            ("CPU speedup", "cpu_speedup"),
        ),
    ),
    "trainers": Suite(
        trainers.compare,
        columns_of(
            *RATE,
            ("speedup", "speedup"),
            ("s a pass", "seconds"),
            ("% busy", "busy", PERCENT),
            ("% waited", "waited", PERCENT),
            ("% sharing", "sharing", PERCENT),
            ("MB received", "received_mb"),
        ),
    ),
    "exchange": Suite(
        exchange.compare,
        columns_of(
            ("plan ms", "plan_ms"),
            ("gather ms", "gather.ms"),
            ("gather MB/s", "gather.mb_per_second"),
            ("plain MB/s", "gather.plain_mb_per_second"),
            ("update ms", "update.ms"),
            ("update MB/s", "update.mb_per_second"),
            ("plain MB/s back", "update.plain_mb_per_second"),
            ("latency ms", "latency_ms"),
            ("MB a step", "bytes_a_step", MB),
        ),
    ),
    "swap": Suite(
        over_grid(f"{_HERE}.swap.moving", f"{_HERE}.swap.waiting", compose=swap.compose),
        columns_of(
            ("fetch MB/s", "fetch_mb_per_second"),
            ("file read", "plain.read_mb_per_second"),
            ("cached fetch MB/s", "fetch_cached_mb_per_second"),
            ("cached read", "plain.read_cached_mb_per_second"),
            ("store MB/s", "store_mb_per_second"),
            ("file write", "plain.write_mb_per_second"),
            ("write and fsync", "plain.write_sync_mb_per_second"),
            ("MB read a pass", "read_mb_a_pass"),
            ("MB written", "written_mb_a_pass"),
            ("s a pass", "seconds"),
            ("% waited", "waited", PERCENT),
        ),
    ),
    "load": Suite(
        _load,
        columns_of(
            ("M triples", "triples", 1e-6),
            ("text to ids, M triples/s", "triples_per_second.read.median", 1e-6),
            ("min", "triples_per_second.read.min", 1e-6),
            ("max", "triples_per_second.read.max", 1e-6),
            ("index", "triples_per_second.index.median", 1e-6),
            ("all", "triples_per_second.all.median", 1e-6),
            ("bucket", "triples_per_second.bucket.median", 1e-6),
            ("index MB", "index_bytes", MB),
            ("peak RSS MB", "peak_rss", MB),
        ),
    ),
    "evaluate": Suite(
        over_grid(f"{_HERE}.evaluate.evaluate", compose=composed),
        columns_of(
            ("s for test", "test_seconds.median"),
            ("min", "test_seconds.min"),
            ("max", "test_seconds.max"),
            ("queries/s", "queries_per_second"),
            ("M candidates/s", "candidates_per_second", 1e-6),
            ("times as fast as plain", "faster_than_plain"),
            ("% of products", "share_of_products", PERCENT),
            ("peak RSS MB", "peak_rss", MB),
        ),
    ),
}


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    options, given = _parser().parse_known_args(arguments)
    suite = _SUITES[options.suite]
    try:
        draw = _drawer(options.suite) if options.plot else None
        found = {"suite": options.suite, "arguments": given, **_beside_machine(suite.run(given))}
        _write(found, page(found, suite.columns), options)
        if draw:
            draw(found["settings"], found["machine"]["rates"], options.plot)
    except Exception as error:
        return failed(error, OSError)
    return 1 if any("error" in figures for figures in found["settings"].values()) else 0


def _beside_machine(settings: Settings) -> dict[str, Any]:
    """The settings, with what is the same for all of them apart, and the rates of the machine."""
    about: dict[str, Any] = {}
    measured = [figures for figures in settings.values() if "error" not in figures]
    for figures in measured:
        about |= {name: figures.pop(name) for name in _ABOUT if name in figures}
        figures["device"] = "cpu" if about["machine"]["device"] == "cpu" else "cuda"
    kinds = dict.fromkeys((figures["threads"], figures["device"]) for figures in measured)
    rates = {kind: apart(machine.rates, *kind) for kind in kinds}
    for figures in measured:
        if "gflops" in figures:
            best = machine.peak(rates[figures["threads"], figures["device"]], figures["dtype"])
            figures["share_of_machine"] = figures["gflops"] / best if best else None
    of_machine = about.pop("machine") | machine.hardware() | {"cpu_capability": about.pop("cpu_capability")}
    return {"machine": of_machine | {"rates": list(rates.values())}, **about, "settings": settings}


def _drawer(suite: str) -> Callable[..., None]:
    """What plots the settings; found before they are measured, which takes long.

    Raises:
        ConfigError: the suite has nothing to plot, or matplotlib is missing.
    """
    if not _SUITES[suite].plotted:
        raise ConfigError(f"{suite} has no operations and bytes to plot: leave --plot out.")
    try:
        draw: Callable[..., None] = importlib.import_module(f"{_HERE}.roofline").draw
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'matplotlib>=3.8' adds it.") from error
    return draw


def _write(found: Mapping[str, Any], text: str, options: argparse.Namespace) -> None:
    """Prints the page, or all figures where `--json -` asks for them, and writes the files that were asked for."""
    figures = json.dumps(found, indent=1)
    print(figures if options.json == "-" else text)
    if options.json not in (None, "-"):
        Path(options.json).write_text(figures + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m kgexp.tools.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s SUITE [KEY=VALUE …] [--json FILE] [--markdown FILE] [--plot FILE.png]",
        allow_abbrev=False,
    )
    parser.add_argument("suite", choices=list(_SUITES), metavar="SUITE", help=", ".join(_SUITES))
    parser.add_argument("--json", metavar="FILE", help="all figures; - prints them instead of the table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the table, in a file too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="settings under the limits of the machine: a PNG")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
