"""Batches of queries with the triples that are known to answer them, and the entities that may."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgexp.data.known import KnownTriples
from kgexp.data.sides import Side
from kgexp.randomness import Int64

KNOWN = 1 << 22  # known triples that a batch holds; more only where one query alone has more


@dataclass(frozen=True)
class Batch:
    """b triples of one side, which ask u distinct queries, and the p pairs (query, entity) of known answers.

    Attributes:
        side: what the queries ask for.
        places: int64[b], positions of the triples in the list that was cut.
        triples: int64[b, 3], those of one query next to each other.
        asks: int64[b], the number of each triple's query, rising from 0.
        query: int64[p], the number of a query.
        entity: int64[p], ascending: a known answer of it.
        splits: uint8[p], the splits that hold the known triple, as `KnownTriples.lookup` gives them.
        own: uint8[b], the splits that hold each of the triples.
        ids: the entities that are candidates, known or not: those of the answers' type.
    """

    side: Side
    places: Int64
    triples: Int64
    asks: Int64
    query: Int64
    entity: Int64
    splits: npt.NDArray[np.uint8]
    own: npt.NDArray[np.uint8]
    ids: range

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def answers(self) -> Int64:
        """int64[b], the entity that each triple names."""
        return self.triples[:, self.side.column]

    @property
    def queries(self) -> Int64:
        """int64[u, 3], for each query a triple that asks it."""
        return self.triples[np.flatnonzero(np.diff(self.asks, prepend=-1))]

    def between(self, start: int, stop: int) -> slice:
        """The pairs whose entity id lies in start … stop-1."""
        first, last = np.searchsorted(self.entity, [start, stop])
        return slice(int(first), int(last))

    def candidates(self, mask: int) -> Int64:
        """int64[b], how many entities are candidates where those known in the splits of `mask` are not; the answer
        always is."""
        known = np.bincount(self.query[(self.splits & mask) != 0], minlength=int(self.asks[-1]) + 1)
        candidates: Int64 = len(self.ids) - known[self.asks] + ((self.own & mask) != 0)
        return candidates


def batches(known: KnownTriples, side: Side, triples: Int64, size: int, ids: range) -> Iterator[Batch]:
    """Cuts `triples` int64[N, 3], whose candidates are `ids`, in the order of their queries: into batches of at most
    `size`, and of fewer where more than `KNOWN` known triples come together: the queries of a hub would not fit the
    memory otherwise."""
    order = np.lexsort((triples[:, side.given], triples[:, 1]))
    triples = triples[order]
    asks = _number(side, triples)
    held = np.cumsum(known.count(side, triples[np.flatnonzero(np.diff(asks, prepend=-1))]))
    start = 0
    while start < len(triples):
        first = asks[start]
        before = held[first - 1] if first else 0
        last = max(first, np.searchsorted(held, before + KNOWN, side="right") - 1)
        stop = min(start + size, int(np.searchsorted(asks, last, side="right")))
        yield _batch(known, side, order[start:stop], triples[start:stop], asks[start:stop] - first, ids)
        start = stop


def _number(side: Side, triples: Int64) -> Int64:
    """int64[N]: the number of each triple's query, where those of one query are next to each other."""
    asked = triples[:, [side.given, 1]]
    new = np.zeros(len(triples), dtype=np.int64)
    new[1:] = (asked[1:] != asked[:-1]).any(axis=1)
    return np.cumsum(new)


def _batch(known: KnownTriples, side: Side, places: Int64, triples: Int64, asks: Int64, ids: range) -> Batch:
    first = np.flatnonzero(np.diff(asks, prepend=-1))
    query, entity, splits = known.lookup(side, triples[first])
    own = splits_of(query, entity, splits, asks, triples[:, side.column])
    by_entity = np.argsort(entity)
    return Batch(side, places, triples, asks, query[by_entity], entity[by_entity], splits[by_entity], own, ids)


def splits_of(
    query: Int64, entity: Int64, splits: npt.NDArray[np.uint8], asks: Int64, wanted: Int64
) -> npt.NDArray[np.uint8]:
    """uint8[…], the splits of the pairs (`asks`, `wanted`) int64[…] among the pairs (query, entity) int64[p] that
    have `splits` uint8[p]; 0 where they are not among them."""
    if not len(query):
        return np.zeros(np.broadcast_shapes(asks.shape, wanted.shape), dtype=np.uint8)
    width = max(int(entity.max()), int(wanted.max(initial=0))) + 1
    pairs = query * width + entity
    order = np.argsort(pairs)
    sought = asks * width + wanted
    at = order[np.minimum(np.searchsorted(pairs, sought, sorter=order), len(pairs) - 1)]
    return np.where(pairs[at] == sought, splits[at], np.uint8(0))
