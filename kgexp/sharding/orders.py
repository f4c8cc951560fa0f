"""The order of one pass over the buckets of a partitioned graph, and which partitions are in memory when.

Bucket (i, j) is the triples whose head lies in partition i and whose tail lies in partition j; training it needs
both in memory, where at most `buffer` have room. The orders differ in how often a partition comes into memory:

* `random`, `affinity`, `inside_out`, `outside_in` as in PyTorch-BigGraph (Lerer and others, MLSys 2019);
* `chained`: every pair of partitions shares one with the pair before, the fewest loads possible with two places;
* `covering`: few loads with any number of places.

A pass is a function of the settings, the seed and its number alone.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kgexp.randomness import Purpose, bits, key
from kgexp.sharding.covering import Bool, Int64, cover

Bucket = tuple[int, int]

ORDERS = ("random", "affinity", "inside_out", "outside_in", "chained", "covering")


@dataclass(frozen=True)
class Stay:
    """What is trained while the same partitions are in memory."""

    resident: tuple[int, ...]
    """Partitions, ascending."""
    buckets: tuple[Bucket, ...]
    """In the order of training."""


class Resident(Protocol):
    """Anything that has partitions or slices in memory."""

    @property
    def resident(self) -> tuple[int, ...]:
        """What is in memory."""


def stays(
    order: str, partitions: int, buffer: int, seed: int, number: int, *, needed: Bool | None = None, ahead: bool = False
) -> list[Stay]:
    """Pass `number` (from 0) in which each bucket of `needed`, bool[P, P] or all, is in exactly one stay.

    With `ahead` a stay takes all later buckets that its partitions allow as well; `covering` always does. Raises
    ValueError for an unknown order, and for a buffer that holds no two partitions where there are two or more.
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if not min(2, partitions) <= buffer <= partitions:
        bounds = f"{min(2, partitions)} … {partitions}"
        raise ValueError(f"a buffer for {partitions} partitions holds {bounds} of them, not {buffer}")
    if needed is None:
        needed = np.ones((partitions, partitions), dtype=bool)
    stream = key(seed, Purpose.PASS, number, 0)
    if order in SEQUENCES:
        return _follow(SEQUENCES[order](needed, stream), buffer, ahead)
    names = shuffled(partitions, stream)
    relabelled = needed[np.ix_(names, names)]
    if order == "chained":
        return _follow([(int(names[i]), int(names[j])) for i, j in _chained(relabelled)], buffer, ahead)
    return _first([tuple(sorted(names[list(s)].tolist())) for s in cover(relabelled, buffer)], needed)


def loads(passes: Iterable[Resident], before: Iterable[int] = ()) -> int:
    """How many partitions (or slices) come into memory over these stays, when `before` are there at the beginning."""
    count, held = 0, frozenset(before)
    for stay in passes:
        count += len(held.symmetric_difference(stay.resident) - held)
        held = frozenset(stay.resident)
    return count


def lower_bound(partitions: int, buffer: int) -> int:
    """The loads below which no order meets all pairs: after `buffer` of them, each makes `buffer - 1` new pairs."""
    if buffer == partitions:
        return partitions
    left = (partitions * (partitions - 1) - buffer * (buffer - 1)) // 2
    return buffer + -(-left // (buffer - 1))


def shuffled(n: int, stream: int) -> Int64:
    """A random permutation of 0 … n-1: int64[n]."""
    return np.argsort(bits(stream, np.arange(n)), kind="stable")


def _random(needed: Bool, stream: int) -> list[Bucket]:
    buckets = _listed(needed)
    return [buckets[k] for k in shuffled(len(buckets), stream)]


def _affinity(needed: Bool, stream: int) -> list[Bucket]:
    """After each bucket its transpose; else any that shares a partition, from both lists joined; else any."""
    left = dict.fromkeys(_listed(needed))
    sharing: list[list[Bucket]] = [[] for _ in needed]
    for bucket in left:
        for partition in set(bucket):
            sharing[partition].append(bucket)
    draws = bits(stream, np.arange(len(left))).tolist()
    sequence: list[Bucket] = []
    for draw in draws:
        i, j = sequence[-1] if sequence else (0, 0)
        if (j, i) in left:
            bucket = (j, i)
        else:
            pool = (sharing[i] + sharing[j] if sequence else []) or list(left)
            bucket = pool[draw * len(pool) >> 64]
        sequence.append(bucket)
        del left[bucket]
        for partition in set(bucket):
            sharing[partition].remove(bucket)
    return sequence


def _outside_in(needed: Bool, stream: int) -> list[Bucket]:
    """Layer k, the buckets with min(i, j) = k, after layer k - 1; inside a layer at random, transposes adjacent."""
    sequence = []
    for layer in range(len(needed)):
        others = layer + shuffled(len(needed) - layer, key(stream, layer))
        backwards = bits(key(stream, layer, 1), others) & np.uint64(1) == 1
        for other, turned in zip(others.tolist(), backwards.tolist(), strict=True):
            sequence += _both(layer, other, needed, turned)
    return sequence


def _inside_out(needed: Bool, stream: int) -> list[Bucket]:
    return _outside_in(needed, stream)[::-1]


def _chained(needed: Bool) -> list[Bucket]:
    """All pairs with 0, then all others with 1 in the opposite direction, and so on; diagonals as early as they can."""
    size = len(needed)
    new = set(range(size))
    sequence = []
    for i in range(size):
        for j in range(i + 1, size) if i % 2 == 0 else range(size - 1, i, -1):
            pair = _both(i, j, needed, False)
            sequence += pair
            if pair:
                sequence += [(k, k) for k in (i, j) if k in new and needed[k, k]]
                new -= {i, j}
    return sequence + [(k, k) for k in sorted(new) if needed[k, k]]


SEQUENCES: dict[str, Callable[[Bool, int], list[Bucket]]] = {
    "random": _random,
    "affinity": _affinity,
    "inside_out": _inside_out,
    "outside_in": _outside_in,
}


def _listed(needed: Bool) -> list[Bucket]:
    return [(i, j) for i, j in np.argwhere(needed).tolist()]


def _both(i: int, j: int, needed: Bool, backwards: bool) -> list[Bucket]:
    """The bucket and its transpose, as far as they are needed and differ."""
    pair = [(i, j), (j, i)] if i != j else [(i, j)]
    return [bucket for bucket in (pair[::-1] if backwards else pair) if needed[bucket]]


def _follow(sequence: list[Bucket], buffer: int, ahead: bool) -> list[Stay]:
    """The stays of a sequence under Belady's rule: the partition with the farthest next use goes (then the least)."""
    place = {bucket: position for position, bucket in enumerate(sequence)}
    uses: dict[int, deque[int]] = {}
    for position, bucket in enumerate(sequence):
        for partition in bucket:
            uses.setdefault(partition, deque()).append(position)
    taken = [False] * len(sequence)

    def remoteness(partition: int) -> tuple[float, int]:
        queue = uses[partition]
        while queue and taken[queue[0]]:
            queue.popleft()
        return (queue[0] if queue else np.inf), -partition

    resident: set[int] = set()
    runs: list[tuple[tuple[int, ...], list[int]]] = []
    for position, bucket in enumerate(sequence):
        if taken[position]:
            continue
        missing = set(bucket) - resident
        while len(resident) + len(missing) > buffer:
            resident.remove(max(resident.difference(bucket), key=remoteness))
        resident |= missing
        if missing:
            runs.append((tuple(sorted(resident)), []))
        now = [position]
        if ahead:  # only pairs with a partition that has just come can be new
            met = {place.get(pair, position) for i in missing for j in resident for pair in ((i, j), (j, i))}
            now = sorted(p for p in met if not taken[p])
        runs[-1][1].extend(now)
        for p in now:
            taken[p] = True
    return [Stay(residents, tuple(sequence[p] for p in positions)) for residents, positions in runs]


def _first(sets: list[tuple[int, ...]], needed: Bool) -> list[Stay]:
    """Each bucket in the first of the resident sets that holds it; sets that are left without any are not visited."""
    left = needed.copy()
    out = []
    for resident in sets:
        block = np.ix_(resident, resident)
        buckets = [(resident[i], resident[j]) for i, j in np.argwhere(left[block]).tolist()]
        left[block] = False
        if buckets:
            out.append(Stay(resident, tuple(buckets)))
    return out
