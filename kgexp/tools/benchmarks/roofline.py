"""A plot of settings under the two limits of the machine. Importing this needs matplotlib.

The roofline of Williams, Waterman and Patterson (2009): work that does few operations on each byte is bounded by how
fast the memory gives bytes, other work by how fast the processor multiplies.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from kgexp.reporting.style import COLOURS, GREY, STYLE, cut, figure, save
from kgexp.tools.benchmarks.machine import peak


def draw(settings: Mapping[str, Mapping[str, Any]], rates: Mapping[str, Any], out: Path) -> None:
    """Writes a PNG.

    Args:
        settings: those with `gflops` and `flops_per_byte` are points, by their names.
        rates: of the machine.
        out: the file.
    """
    points = {name: (f["flops_per_byte"], f["gflops"]) for name, f in settings.items() if f.get("gflops")}
    top, slope = peak(dict(rates)) or 1.0, rates["triad_gb_per_second"]
    ridge = top / slope
    left, right = min([ridge, *(x for x, _ in points.values())]) / 4, max([ridge, *(x for x, _ in points.values())]) * 4
    with rc_context(STYLE):
        drawn, axes = figure(6.4, 4.0)
        axes.plot([left, ridge, right], [left * slope, top, top], color=GREY, linewidth=1.5)
        axes.text(right, top * 1.06, f"products {top:.4g} GFLOP/s", ha="right", va="bottom", color=GREY)
        axes.text(left, left * slope * 1.3, f"memory {slope:.3g} GB/s", ha="left", va="bottom", color=GREY)
        for i, (name, (x, y)) in enumerate(points.items()):
            axes.plot(x, y, "o", color=COLOURS[i % len(COLOURS)], markersize=5, label=f"{i + 1}  {cut(name, 60)}")
            axes.annotate(str(i + 1), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(f"rate by intensity, {rates['threads']} threads")
        axes.set_xlabel("floating-point operations a byte of rows moved")
        axes.set_ylabel("GFLOP/s")
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), frameon=False, fontsize=8)
        save(drawn, out)
