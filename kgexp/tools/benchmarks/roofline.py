"""A plot of settings under the two limits of the machine. Importing this needs matplotlib.

The roofline of Williams, Waterman and Patterson (2009): work that does few operations on each byte is bounded by how
fast the memory gives bytes, other work by how fast the processor multiplies.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.ticker import LogLocator, NullFormatter

from kgexp.reporting.style import COLOURS, GREY, STYLE, cut, figure, save
from kgexp.tools.benchmarks.machine import peak


def draw(settings: Mapping[str, Mapping[str, Any]], rates: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Writes a PNG.

    Args:
        settings: those with `gflops` and `flops_per_byte` are points, by their names.
        rates: of the machine, for each number of threads: a roof each.
        out: the file.
    """
    points = {name: (f["flops_per_byte"], f["gflops"]) for name, f in settings.items() if f.get("gflops")}
    roofs = [(peak(found) or 1.0, found["triad_gb_per_second"], found["threads"]) for found in rates]
    reach = [*(top / slope for top, slope, _ in roofs), *(x for x, _ in points.values())]
    left, right = min(reach) / 3, max(reach) * 3
    with rc_context(STYLE):
        drawn, axes = figure(6.4, 4.0)
        for (top, slope, threads), line in zip(roofs, cycle(("-", "--", ":", "-.")), strict=False):
            name = f"{threads} thread{'s' if threads > 1 else ''}: products {top:.4g} GFLOP/s, memory {slope:.3g} GB/s"
            axes.plot([left, top / slope, right], [left * slope, top, top], line, color=GREY, label=name)
        for i, (name, (x, y)) in enumerate(points.items()):
            axes.plot(x, y, "o", color=COLOURS[i % len(COLOURS)], markersize=5, label=f"{i + 1}  {cut(name, 60)}")
            axes.annotate(str(i + 1), (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_title("rate by intensity")
        axes.set_xlabel("floating-point operations a byte of rows moved")
        axes.set_ylabel("GFLOP/s")
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), frameon=False, fontsize=8)
        save(drawn, out)
