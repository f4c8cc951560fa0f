"""How the plots of a report look: few lines, names beside what they name, colours that all people can tell apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Okabe and Ito (2008), the yellow left out, which is too light for lines; then more of Tol's "muted" colours.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
    *("#332288", "#882255", "#999933", "#44AA99"),
)
GREY = "#9A9A9A"
INK = "#333333"
CMAP = "viridis"

STYLE: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.8,
}


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one plot, of this size in inches; belongs into `rc_context(STYLE)`."""
    drawn = Figure(figsize=(width, height))
    return drawn, drawn.add_subplot()


def save(drawn: Figure, path: Path) -> None:
    """Writes a PNG that is cut to what is drawn."""
    with rc_context(STYLE):
        drawn.savefig(path, bbox_inches="tight", pad_inches=0.1)


def cut(text: str, length: int) -> str:
    """A text of at most so many characters, its middle left out."""
    if len(text) <= length:
        return text
    left = (length - 1) * 2 // 3
    return f"{text[:left]}…{text[len(text) - (length - 1 - left) :]}"


def spread_out(places: Sequence[float], gap: float, top: float) -> list[float]:
    """Places as near to the given ones as labels can be that need a gap between them, none above `top`; in their order.

    Neighbours that are too near become a block around their mean; blocks that touch are joined.
    """
    blocks: list[tuple[float, list[int]]] = []  # middle, members from low to high
    for i in sorted(range(len(places)), key=lambda i: places[i]):
        middle, members = places[i], [i]
        while blocks and middle - blocks[-1][0] < gap * (len(members) + len(blocks[-1][1])) / 2:
            before, others = blocks.pop()
            middle = (before * len(others) + middle * len(members)) / (len(others) + len(members))
            members = others + members
        blocks.append((middle, members))
    result = [0.0] * len(places)
    for middle, members in reversed(blocks):
        for position, i in reversed(list(enumerate(members))):
            result[i] = min(top, middle + (position - (len(members) - 1) / 2) * gap)
            top = result[i] - gap
    return result
