"""Tables of tools, for people."""

from collections.abc import Mapping, Sequence


def aligned(columns: Mapping[str, Sequence[str]], left: int = 0) -> str:
    """Lines of equally long columns below their names; the first `left` columns begin at one place, others end so."""
    widths = [max(map(len, [name, *cells])) for name, cells in columns.items()]
    lines = [list(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(n) if i < left else cell.rjust(n) for i, (cell, n) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
