"""Batches of queries with the triples that are known to answer them, and the entities that may."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgexp.data.known import KnownTriples
from kgexp.data.sides import Side
from kgexp.randomness import Int64

KNOWN = 1 << 22  # known triples that a batch holds; more only where a few queries alone have more
PIECE = 32  # triples that are looked up at once


@dataclass(frozen=True)
class Batch:
    """b queries of one side, and p pairs (query, entity) of known answers other than the query's own.

    Attributes:
        side: what the queries ask for.
        start: position of the first triple in the list that was cut.
        triples: int64[b, 3].
        query: int64[p], positions in the batch.
        entity: int64[p], ascending.
        splits: uint8[p], the splits that hold the known triple, as `KnownTriples.lookup` gives them.
        own: uint8[b], the splits that hold the query's own triple.
        ids: the entities that are candidates, known or not: those of the answers' type.
    """

    side: Side
    start: int
    triples: Int64
    query: Int64
    entity: Int64
    splits: npt.NDArray[np.uint8]
    own: npt.NDArray[np.uint8]
    ids: range

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def answers(self) -> Int64:
        """int64[b], the entity that each query's own triple names."""
        return self.triples[:, self.side.column]

    def between(self, start: int, stop: int) -> slice:
        """The pairs whose entity id lies in start … stop-1."""
        first, last = np.searchsorted(self.entity, [start, stop])
        return slice(int(first), int(last))

    def known(self, mask: int) -> Int64:
        """int64[b], how many pairs each query has in the splits of `mask`."""
        return np.bincount(self.query[(self.splits & mask) != 0], minlength=len(self)).astype(np.int64)


def batches(known: KnownTriples, side: Side, triples: Int64, size: int, ids: range) -> Iterator[Batch]:
    """Cuts `triples` int64[N, 3], whose candidates are `ids`, into batches of at most `size`, and of fewer where more
    than `KNOWN` known triples come together: the queries of a hub would not fit the memory otherwise."""
    pieces: list[tuple[Int64, Int64, npt.NDArray[np.uint8]]] = []
    start = held = 0
    step = min(PIECE, size)
    for at in range(0, len(triples), step):
        query, entity, splits = known.lookup(side, triples[at : at + step])
        stop = min(at + step, len(triples))
        if pieces and (stop - start > size or held + len(query) > KNOWN):
            yield _batch(side, start, triples[start:at], pieces, ids)
            start, held, pieces = at, 0, []
        pieces.append((query + (at - start), entity, splits))
        held += len(query)
    if pieces:
        yield _batch(side, start, triples[start:], pieces, ids)


def _batch(
    side: Side, start: int, triples: Int64, pieces: list[tuple[Int64, Int64, npt.NDArray[np.uint8]]], ids: range
) -> Batch:
    query, entity, splits = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    mine = entity == triples[query, side.column]
    own = np.zeros(len(triples), dtype=np.uint8)
    own[query[mine]] = splits[mine]
    others = np.flatnonzero(~mine)
    others = others[np.argsort(entity[others])]
    return Batch(side, start, triples, query[others], entity[others], splits[others], own, ids)
