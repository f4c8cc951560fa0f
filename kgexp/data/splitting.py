"""Cutting one set of triples into train, valid and test, so that every name keeps a triple in train."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgexp import randomness
from kgexp.data.encoding import Triples
from kgexp.data.grouping import Int64, grouped, order_of
from kgexp.errors import ConfigError
from kgexp.randomness import Purpose

Bools = npt.NDArray[np.bool_]
UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shares:
    """How much of the distinct triples goes to valid and to test, and the seed that draws them.

    Raises:
        ConfigError: a share is negative, or nothing would be left for train.
    """

    valid: float
    test: float
    seed: int

    def __post_init__(self) -> None:
        if not (self.valid >= 0 and self.test >= 0 and self.valid + self.test < 1):
            raise ConfigError(
                f"dataset.valid={self.valid} and dataset.test={self.test} have to be shares of at least 0 "
                "that leave something for train: choose values such as 0.05."
            )


def assign(triples: Triples, shares: Shares) -> tuple[UInt8, list[str]]:
    """Gives every triple its split: copies of a triple share it, and every name keeps a triple in train.

    A cover of the names is kept for train first. Of the other triples each relation gives its share, in the
    order of a hash. A relation that has too few left gives what it has. All triples are in memory, several times;
    folders with ready splits are not.

    Args:
        triples: int32[N, 3], copies allowed.
        shares: the shares and the seed.

    Returns:
        uint8[N], 0 for train, 1 for valid and 2 for test; and sentences about shares that could not be met.
    """
    order, begins = grouped(*triples.T)
    distinct = triples[order[begins]]
    hashed = randomness.bits(randomness.key(shares.seed, Purpose.SPLIT), np.arange(len(distinct)))
    by_hash = order_of(hashed)
    free = by_hash[~_cover(distinct, by_hash)[by_hash]]

    wanted = _quotas(distinct[:, 1], shares)
    chosen, drawn = _draw(distinct[free, 1], wanted)
    split = np.zeros(len(distinct), np.uint8)
    split[free] = chosen
    notes = [
        f"{name} got {got} of the {want} distinct triples that dataset.{name} asks for: "
        "the others are kept in train, as its only triples of an entity or a relation"
        for name, got, want in zip(("valid", "test"), drawn, wanted.sum(axis=1), strict=True)
        if got < want
    ]
    rows = np.empty(len(triples), np.uint8)
    rows[order] = np.repeat(split, np.diff(begins, append=len(order)))
    return rows, notes


def _cover(triples: Triples, by_hash: Int64) -> Bools:
    """bool[D]: a small set of the distinct triples that holds every name.

    First the triples that hold an entity of no other triple; then, for relations, heads and tails that are
    still bare, the first triple in the order of the hash.
    """
    total = len(triples)
    place = np.empty(total, np.int64)
    place[by_hash] = np.arange(total)
    ends = triples[:, 0::2]
    degree = np.bincount(np.concatenate([ends[:, 0], ends[ends[:, 0] != ends[:, 1], 1]]))
    covers: Bools = (degree[ends] == 1).any(axis=1)
    for column in (1, 0, 2):
        names = triples[:, column]
        held = triples[covers, 1] if column == 1 else ends[covers]
        bare = np.ones(max(names.max(), held.max(initial=0)) + 1, bool)
        bare[held.ravel()] = False
        first = np.full(len(bare), total)
        np.minimum.at(first, names, place)
        covers[by_hash[first[bare & (first < total)]]] = True
    return covers


def _quotas(relations: npt.NDArray[np.int32], shares: Shares) -> Int64:
    """int64[2, m]: the triples that each relation owes valid and test; rounding is carried on to the next."""
    totals = np.cumsum(np.bincount(relations))
    owed = [np.floor(totals * share + 0.5) for share in (shares.valid, shares.test)]
    return np.diff(np.stack(owed), axis=1, prepend=0).astype(np.int64)


def _draw(relations: npt.NDArray[np.int32], wanted: Int64) -> tuple[UInt8, Int64]:
    """Draws each relation's quotas from its first free triples.

    Args:
        relations: int32[F], the relations of the free triples in the order of the hash.
        wanted: int64[2, m], the quotas.

    Returns:
        uint8[F], the split of each free triple, and int64[2], how many valid and test got.
    """
    available = np.bincount(relations, minlength=wanted.shape[1])
    total = wanted.sum(axis=0)
    short = available < total
    valid = np.where(short, available * wanted[0] // np.maximum(total, 1), wanted[0])
    both = np.minimum(available, total)
    order = np.argsort(relations, kind="stable")
    starts = np.cumsum(available) - available
    turn = np.empty(len(relations), np.int64)
    turn[order] = np.arange(len(relations)) - starts[relations[order]]
    split = np.where(turn < valid[relations], 1, np.where(turn < both[relations], 2, 0)).astype(np.uint8)
    return split, np.bincount(split, minlength=3)[1:3]
