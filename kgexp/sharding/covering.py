"""Which partitions sit together, one swap after the other, until every pair that is needed has met: few loads.

A greedy search. On complete graphs it finds what BETA (Marius: Mohoney and others, OSDI 2021) writes down: all but one
place of the buffer stay as they are while the others pass through the last place. It asks only which pairs are needed,
so it serves graphs whose types leave many pairs empty too.
"""

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


def cover(needed: Bool, buffer: int) -> list[tuple[int, ...]]:
    """Resident sets, each ascending and at most `buffer` large, which together hold every pair that is needed.

    `needed` is bool[P, P]; a pair counts in either direction. A partition that is needed with itself alone is resident
    once. Each set differs from the one before by one swap, but for partitions that no other needs: they come together.
    """
    links = (needed | needed.T).astype(np.int64)
    np.fill_diagonal(links, 0)
    alone = np.flatnonzero(needed.diagonal() & (links.sum(axis=1) == 0)).tolist()
    resident: list[int] = []
    sets = []
    while links.any():
        full = len(resident) == buffer
        out, incoming = _swap(links, resident) if full else (len(resident), _join(links, resident))
        resident[out:] = [*resident[out + 1 :], incoming]
        links[incoming, resident] = links[resident, incoming] = 0
        if len(resident) == buffer:
            sets.append(tuple(sorted(resident)))
    if len(resident) < buffer:  # all that is linked is in memory at once; the rest may join it
        alone = resident + alone
    return sets + [tuple(sorted(alone[k : k + buffer])) for k in range(0, len(alone), buffer)]


def _join(links: Int64, resident: list[int]) -> int:
    """Who is loaded into a free place: whoever meets most that are there, then whoever has most to meet."""
    degree = links.sum(axis=1)
    worth = links[resident].sum(axis=0) * (len(links) + 1) + degree
    worth[resident] = -1
    return int(np.where(degree > 0, worth, -1).argmax())


def _swap(links: Int64, resident: list[int]) -> tuple[int, int]:
    """The place that is given up and the partition that comes: `resident` is in the order in which it was loaded.

    The pairs that meet for the first time decide. Among equals the partition with the least left to meet goes, the
    latest first, and the one with the least left comes: what is begun is finished. Without any new pair a partition
    that has something to meet comes, and its partner with the next swap: the search always ends.
    """
    size = len(links)
    degree = links.sum(axis=1)
    meet = links[resident]
    worth = (meet.sum(axis=0) - meet) * (2 * size + 1) - degree - degree[resident][:, None]
    worth[:, degree == 0] = np.iinfo(np.int64).min
    worth[:, resident] = np.iinfo(np.int64).min
    backwards = int(worth[::-1].argmax())
    return len(resident) - 1 - backwards // size, backwards % size
