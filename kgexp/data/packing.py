"""Names as integers that NumPy compares: a key of 16 bytes each, and words for what a key does not hold.

The key of a name of at most 16 bytes is these bytes, filled up with zeros: it says all. The key of a longer name is a
hash whose two highest bits are set. No short name has such a key: its highest byte is zero or ends a UTF-8 character.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

WORD = 8
"""Bytes of a word."""

_HASHED = np.uint64(3 << 62)
_USED = np.array([(1 << 8 * letters) - 1 for letters in range(WORD + 1)], np.uint64)
"""The bits of a word whose first 0 … 8 bytes are letters."""


@dataclass(frozen=True)
class Names:
    """Packed names, k in all. A name has no NUL.

    Attributes:
        low: uint64[k], the first half of each key, zero for an empty name.
        high: uint64[k], the other half; None if it is zero for all.
        hashes: uint64[k], equal for equal names, and spread over all bits.
        words: uint64[w], the bytes of each longer name followed by at least one NUL, one name after the other.
        begins: int64[k], where the words of each name begin.
        sizes: int64[k], how many they are: none of a short one.
    """

    low: UInt64
    high: UInt64 | None
    hashes: UInt64
    words: UInt64
    begins: Int64
    sizes: Int64

    @classmethod
    def of(cls, names: pa.LargeStringArray) -> "Names":
        """Packs large_string[k]."""
        _, offsets, data = names.buffers()
        bounds = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
        starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
        text = np.zeros(int(bounds[-1] - bounds[0]) + 2 * WORD, np.uint8)
        if data is not None:
            text[: -2 * WORD] = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
        at = np.ndarray(len(text) - WORD + 1, np.uint64, text.data, 0, (1,))  # the 8 bytes from every byte on
        low: UInt64 = at[starts] & _USED.take(lengths, mode="clip")
        longest = lengths.max(initial=0)
        if longest <= WORD:
            nothing = np.zeros(len(names), np.int64)
            return cls(low, None, hashed(low, None), np.empty(0, np.uint64), nothing, nothing)
        high: UInt64 = at[starts + WORD] & _USED.take(lengths - WORD, mode="clip")
        sizes = (lengths // WORD + 1) * (lengths > 2 * WORD)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        words = np.empty(0, np.uint64)
        if len(long := np.flatnonzero(sizes)):
            words = at[_places(starts, begins, sizes)]
            words[ends[long] - 1] &= _USED.take(lengths[long] % WORD)
            low[long] = _hash(words, begins[long], sizes[long])
            high[long] = low[long] | _HASHED
        return cls(low, high, hashed(low, high), words, begins, sizes)

    def __len__(self) -> int:
        return len(self.low)


def spread(begins: Int64, sizes: Int64) -> Int64:
    """The positions `begins[i]`, `begins[i] + 1`, … of each range, one range after the other."""
    ends = np.cumsum(sizes)
    places: Int64 = np.repeat(begins - (ends - sizes), sizes)
    places += np.arange(len(places))
    return places


def hashed(low: UInt64, high: UInt64 | None) -> UInt64:
    """The hashes of keys."""
    return mix(low if high is None else low ^ mix(high))


def mix(values: UInt64) -> UInt64:
    """Spreads every bit over the low ones."""
    mixed = values * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(29)
    return mixed


def _places(starts: Int64, begins: Int64, sizes: Int64) -> Int64:
    """At which byte of the text each word lies: the words of a name, which come from `begins` on, lie at `starts`."""
    places: Int64 = np.repeat(starts - WORD * begins, sizes)
    places += np.arange(0, WORD * len(places), WORD)
    return places


def _hash(words: UInt64, begins: Int64, sizes: Int64) -> UInt64:
    """Sums of mixed words, each by its place in the name."""
    places = np.arange(len(words)) - np.repeat(begins, sizes)
    mixed = mix(words + places.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    sums: UInt64 = np.add.reduceat(mixed, begins)
    return sums
