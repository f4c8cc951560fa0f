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
    # Neither way to begin is always the better one: with those that meet at once, or with those that have most to meet.
    begins = dict.fromkeys(_begin(links, buffer, weight) for weight in (len(links), 0))
    resident, swaps = min(((list(begin), _swaps(links, begin)) for begin in begins), key=lambda found: len(found[1]))
    sets = [tuple(sorted(resident))] if len(resident) == buffer else []
    for out, incoming in swaps:
        resident[out:] = [*resident[out + 1 :], incoming]
        sets.append(tuple(sorted(resident)))
    alone = np.flatnonzero(needed.diagonal() & ~links.any(axis=1)).tolist()
    if not sets:  # all that is linked is in memory at once: the others may join it
        alone = resident + alone
    return sets + [tuple(sorted(alone[k : k + buffer])) for k in range(0, len(alone), buffer)]


def _begin(links: Int64, buffer: int, weight: int) -> tuple[int, ...]:
    """Who is in memory first: in turn, who has most to meet, plus `weight` for each that is there to be met."""
    degree = links.sum(axis=1)
    resident: list[int] = []
    for _ in range(min(buffer, int(np.count_nonzero(degree)))):
        worth = np.where(degree > 0, links[resident].sum(axis=0) * weight + degree, -1)
        worth[resident] = -1
        resident.append(int(worth.argmax()))
    return tuple(resident)


def _swaps(links: Int64, begin: tuple[int, ...]) -> list[tuple[int, int]]:
    """The swaps (place that is given up, partition that comes) until all have met; who comes goes to the end."""
    resident, left = list(begin), links.copy()
    left[np.ix_(resident, resident)] = 0
    degree = left.sum(axis=1)
    swaps = []
    while degree.any():
        out, incoming = _swap(left, degree, resident)
        swaps.append((out, incoming))
        resident[out:] = [*resident[out + 1 :], incoming]
        met = left[incoming, resident]
        degree[resident] -= met
        degree[incoming] -= met.sum()
        left[incoming, resident] = left[resident, incoming] = 0
    return swaps


def _swap(links: Int64, degree: Int64, resident: list[int]) -> tuple[int, int]:
    """The place that is given up and the partition that comes.

    The pairs that meet for the first time decide. Among equals the partition with the least left to meet goes, the
    latest first, and the one with the least left comes: what is begun is finished. Without any new pair a partition
    that has something to meet comes, and its partner with the next swap: the search always ends.
    """
    size = len(links)
    meet = links[resident]
    worth = (meet.sum(axis=0) - meet) * (2 * size + 1) - degree - degree[resident][:, None]
    worth[:, degree == 0] = np.iinfo(np.int64).min
    worth[:, resident] = np.iinfo(np.int64).min
    backwards = int(worth[::-1].argmax())
    return len(resident) - 1 - backwards // size, backwards % size
