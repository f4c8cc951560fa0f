"""The filter index: which entities are known to complete a query, and in which splits the triples are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kgexp.data.grouping import grouped
from kgexp.data.sides import Side

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

TRAIN, VALID, TEST = 1, 2, 4
"""The bit of each split in a mask."""

_QUERIES = 1 << 20
"""Queries that are counted at a time."""

_BITS, _ALL = 3, np.uint8(7)


@dataclass(frozen=True)
class Answers:
    """Distinct triples sorted by query, in compressed sparse rows.

    Attributes:
        keys: int64[q], the distinct queries in rising order; see `KnownTriples._keys`.
        offsets: uint32[q + 1], where each query's answers begin (int64 from 2^32 triples on).
        entities: int32[D], the answers, rising within a query.
        splits: uint8[D], the mask of the splits that hold the triple.
    """

    keys: Int64
    offsets: npt.NDArray[np.integer]
    entities: npt.NDArray[np.int32]
    splits: UInt8

    @classmethod
    def of(cls, side: Side, triples: npt.NDArray[np.int32], bits: UInt8, num_relations: int) -> "Answers":
        """Indexes triples int32[N, 3], copies allowed, each with the bit of its split uint8[N], for one side."""
        # The least given entity is taken off, so that the keys of few entities are small.
        least = np.int64(triples[:, side.given].min(initial=np.iinfo(np.int32).max)) * num_relations
        keys, entities, masks = _distinct(_keys(side, triples, num_relations) - least, triples[:, side.column], bits)
        first = np.flatnonzero(_begins(keys))
        return cls(keys[first] + least, np.append(first, len(keys)).astype(offsets_type(len(keys))), entities, masks)


@dataclass(frozen=True)
class RelationCounts:
    """Of every relation, int64[m]: its distinct triples, and the distinct entities at either side of them."""

    facts: Int64
    heads: Int64
    tails: Int64


class KnownTriples:
    """All triples of the graph by query, for both sides.

    It takes 10 bytes a distinct triple and 12 a distinct query (16 from 2^32 triples on).
    """

    def __init__(self, num_relations: int, answers: Mapping[Side, Answers]) -> None:
        self._num_relations = num_relations
        self._answers = answers

    @classmethod
    def build(cls, splits: Sequence[npt.NDArray[np.int32]], num_relations: int) -> "KnownTriples":
        """Indexes the splits' triples, int32[N, 3] each, in memory; split i gets bit `1 << i`."""
        triples = np.concatenate(splits)
        bits = np.repeat(np.array([1 << i for i in range(len(splits))], np.uint8), [len(split) for split in splits])
        return cls(num_relations, {side: Answers.of(side, triples, bits, num_relations) for side in Side})

    def lookup(self, side: Side, triples: npt.NDArray[np.integer]) -> tuple[Int64, Int64, UInt8]:
        """What is known to complete the queries of `side` that the triples int[b, 3] give.

        Returns:
            int64[p] the query, by its position in `triples`, rising; int64[p] an entity that completes it,
            rising within a query, the triple's own answer included if the graph holds it; and uint8[p] the
            mask of the splits that hold the completed triple: `TRAIN`, `VALID` and `TEST`.
        """
        index = self._answers[side]
        start, length = self._spans(side, triples)
        ends = np.cumsum(length)
        pairs = np.arange(length.sum()) + np.repeat(start - (ends - length), length)
        return (
            np.repeat(np.arange(len(triples)), length),
            index.entities[pairs].astype(np.int64),
            np.asarray(index.splits[pairs]),
        )

    def count(self, side: Side, triples: npt.NDArray[np.integer]) -> Int64:
        """How many entities `lookup` would give for each of the triples int[b, 3]: int64[b]."""
        return self._spans(side, triples)[1]

    def _spans(self, side: Side, triples: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
        """Where the answers to each query begin and how many they are, int64[b] each."""
        index = self._answers[side]
        start, length = np.zeros((2, len(triples)), np.int64)
        keys = _keys(side, triples, self._num_relations)
        place = np.searchsorted(index.keys, keys)
        found = np.flatnonzero(index.keys[np.minimum(place, len(index.keys) - 1)] == keys)
        start[found] = index.offsets[place[found]]
        length[found] = index.offsets[place[found] + 1].astype(np.int64) - start[found]
        return start, length

    @property
    def splits(self) -> UInt8:
        """uint8[D], the mask of the splits that hold each distinct triple, in an order of its own."""
        return self._answers[Side.TAIL].splits

    def relation_counts(self, mask: int) -> RelationCounts:
        """What every relation has in the splits of a mask; some queries at a time, whatever the graph's size."""
        m = self._num_relations
        facts = np.zeros(m, np.int64)
        given = {side: np.zeros(m, np.int64) for side in Side}
        for side, index in self._answers.items():
            for start in range(0, len(index.keys), _QUERIES):
                relation = index.keys[start : start + _QUERIES] % m
                offsets = index.offsets[start : start + _QUERIES + 1].astype(np.int64)
                held = (index.splits[offsets[0] : offsets[-1]] & mask) > 0
                answers = np.add.reduceat(held, offsets[:-1] - offsets[0], dtype=np.int64)
                given[side] += np.bincount(relation[answers > 0], minlength=m)
                if side is Side.TAIL:
                    facts += np.bincount(relation, answers, minlength=m).astype(np.int64)
        return RelationCounts(facts, given[Side.TAIL], given[Side.HEAD])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The index as named arrays, of which `from_arrays` makes it again."""
        return {
            array_name(side, field): array
            for side, index in self._answers.items()
            for field, array in vars(index).items()
        }

    @classmethod
    def from_arrays(cls, num_relations: int, arrays: Mapping[str, npt.NDArray[Any]]) -> "KnownTriples":
        """The index of the arrays that `arrays` gave, mapped or in memory."""
        fields = Answers.__dataclass_fields__
        return cls(
            num_relations,
            {side: Answers(**{field: arrays[array_name(side, field)] for field in fields}) for side in Side},
        )


def _distinct(keys: Int64, answers: Int32, bits: UInt8) -> tuple[Int64, Int32, UInt8]:
    """The distinct rows of two columns of N numbers each, sorted, and the mask of all bits uint8[N] of each."""
    width = int(answers.max(initial=0)).bit_length() + _BITS
    if int(keys.max(initial=0)).bit_length() + width > 63:
        order, begins = grouped(keys, answers)
        rows = order[begins]
        return keys[rows], answers[rows], np.bitwise_or.reduceat(bits[order], begins)
    # Rows packed into integers sort several times as fast as an order of rows.
    packed = keys << width
    packed |= answers.astype(np.int64) << _BITS
    packed |= bits
    packed.sort()
    masks = packed.astype(np.uint8) & _ALL
    begins = np.flatnonzero(_begins(packed >> _BITS))
    if len(begins) < len(packed):
        packed, masks = packed[begins], np.bitwise_or.reduceat(masks, begins)
    return packed >> width, (packed >> _BITS & (1 << width - _BITS) - 1).astype(np.int32), masks


def _begins(values: Int64) -> npt.NDArray[np.bool_]:
    """Which of sorted values are the first of their kind: bool[N]."""
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def array_name(side: Side, field: str) -> str:
    """What `KnownTriples.arrays` calls a field of the answers of a side."""
    return f"known_{side.label}_{field}"


def offsets_type(total: int) -> type[np.integer]:
    """The type of `Answers.offsets` for so many triples."""
    return np.uint32 if total < 2**32 else np.int64


def _keys(side: Side, triples: npt.NDArray[np.integer], num_relations: int) -> Int64:
    """Queries as integers, given entity times m plus relation: int[b, 3] to int64[b]."""
    return triples[:, side.given].astype(np.int64) * num_relations + triples[:, 1]
