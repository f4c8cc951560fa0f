"""Numbers for names, met block by block: a hash table over packed bytes, of some 50 bytes a short name."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgexp.errors import DataError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
UInt64 = npt.NDArray[np.uint64]

_FREE = -1
_CHUNK = 1 << 20
_SHORT = 4
_COLUMN = 1 << 40
"""More names than a column holds."""


class Numbering:
    """Gives distinct names the numbers 0, 1, … as they come, and remembers where each came first.

    Names are kept as words of 8 bytes, the last one filled up with zeros; so a name has no NUL, which reading
    refuses. The table has the number of a name, or `_FREE`, in the first slot from its hash on that is its own.

    Args:
        what: what the names name, in the plural.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._slots = np.full(1 << 12, _FREE, np.int32)
        self._words = _Growing(np.uint64)
        self._ends = _Growing(np.int64)
        self._first = _Growing(np.int64)
        self._met: dict[int, int] = {}

    def __len__(self) -> int:
        """The names so far."""
        return len(self._ends)

    def number(self, names: pa.LargeStringArray, column: int) -> Int32:
        """The numbers of some names.

        Args:
            names: large_string[k], all different and none empty, in the order in which the column has them.
            column: a number of the column that holds them: columns count as read in the order of their numbers.

        Raises:
            DataError: there are more names than int32 ids.
        """
        words, ends = _packed(names)
        self._make_room(len(names))
        numbers, new, slots = self._find(words, ends)
        numbers[new] = np.arange(len(self), len(self) + len(new), dtype=np.int32)
        self._slots[slots] = numbers[new]
        self._add(words, ends, new)
        met = self._met.get(column, 0)
        self._met[column] = met + len(names)
        place = np.arange(column * _COLUMN + met, column * _COLUMN + met + len(names))
        self._first.array[numbers] = np.minimum(self._first.array[numbers], place)
        return numbers

    def by_first_appearance(self) -> tuple[Int64, Int32]:
        """The order in which the columns, read one after the other, first have each name.

        Returns:
            int64[n], the numbers in that order; and its inverse int32[n], the place of each number.
        """
        order = np.argsort(self._first.array)
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        return order, places

    def names(self, numbers: Int64) -> pa.LargeStringArray:
        """The names of some numbers; afterwards no more can be numbered.

        Args:
            numbers: int64[k].

        Returns:
            large_string[k].
        """
        self._slots = self._slots[:0]
        ends, words = self._ends.array, self._words.array
        offsets = np.zeros(len(numbers) + 1, np.int64)
        texts = []
        for start in range(0, len(numbers), _CHUNK):
            some = numbers[start : start + _CHUNK]
            begins, sizes = _spans(ends, some)
            letters = words[_spread(begins, sizes)].view(np.uint8).reshape(-1, 8)
            used = letters != 0
            offsets[start + 1 : start + 1 + len(some)] = np.add.reduceat(
                used.sum(axis=1, dtype=np.int64), np.cumsum(sizes) - sizes
            )
            texts.append(letters[used])
        np.cumsum(offsets, out=offsets)
        text = np.concatenate(texts) if texts else np.empty(0, np.uint8)
        return pa.LargeStringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))

    def _find(self, words: UInt64, ends: Int64) -> tuple[Int32, Int64, Int64]:
        """Looks names up, and claims a free slot for those that are new.

        Returns:
            int32[k] the numbers, with gaps for new names; int64[x] which are new; int64[x] the slots of these.
        """
        numbers = np.empty(len(ends), np.int32)
        new = np.zeros(len(ends), bool)
        rest = np.arange(len(ends))
        slots = self._home(words, ends)
        while len(rest):
            held = self._slots[slots[rest]]
            done = self._claim(slots, rest, held)
            new[rest[done]] = True
            numbered = np.flatnonzero(held >= 0)
            same = numbered[self._equal(held[numbered], words, ends, rest[numbered])]
            numbers[rest[same]] = held[same]
            done[same] = True
            rest = rest[~done]
            slots[rest] = (slots[rest] + 1) & (len(self._slots) - 1)
        found = np.flatnonzero(new)
        return numbers, found, slots[found]

    def _claim(self, slots: Int64, rows: Int64, held: Int32) -> Bools:
        """Puts rows into the free ones of their slots; says which rows got theirs, as several may want the same."""
        free = rows[held == _FREE]
        marks = (-2 - free).astype(np.int32)  # neither free nor a number
        self._slots[slots[free]] = marks
        got: Bools = held == _FREE
        got[got] = self._slots[slots[free]] == marks
        return got

    def _equal(self, numbers: Int32, words: UInt64, ends: Int64, rows: Int64) -> Bools:
        """Whether the names of the numbers int32[x] are those of the rows int64[x]."""
        begins, sizes = _spans(ends, rows)
        known, known_sizes = _spans(self._ends.array, numbers)
        equal: Bools = sizes == known_sizes
        rest = np.flatnonzero(equal)
        for i in range(_SHORT):  # most names are short, and most of those that differ do so early
            same = self._words.array.take(known[rest] + i) == words.take(begins[rest] + i)
            equal[rest[~same]] = False
            rest = rest[same & (sizes[rest] > i + 1)]
        if len(rest):
            lengths = sizes[rest] - _SHORT
            theirs = self._words.array[_spread(known[rest] + _SHORT, lengths)]
            ours = words[_spread(begins[rest] + _SHORT, lengths)]
            equal[rest] = np.logical_and.reduceat(theirs == ours, np.cumsum(lengths) - lengths)
        return equal

    def _add(self, words: UInt64, ends: Int64, new: Int64) -> None:
        begins, sizes = _spans(ends, new)
        self._ends.append(len(self._words) + np.cumsum(sizes))
        self._words.append(words[_spread(begins, sizes)])
        self._first.append(np.full(len(new), np.iinfo(np.int64).max))

    def _make_room(self, more: int) -> None:
        """Keeps the table at most half full."""
        if len(self) + more > np.iinfo(np.int32).max:
            raise DataError(f"The files hold more {self._what} than the 2^31 - 1 that int32 ids can tell apart.")
        if 2 * (len(self) + more) <= len(self._slots):
            return
        self._slots = np.full(1 << (2 * (len(self) + more) - 1).bit_length(), _FREE, np.int32)
        for start in range(0, len(self), _CHUNK):
            ends = self._ends.array[start : start + _CHUNK]
            begin = self._ends.array[start - 1] if start else 0
            slots = self._home(self._words.array[begin : ends[-1]], ends - begin)
            rest = np.arange(len(ends))
            while len(rest):
                rest = rest[~self._claim(slots, rest, self._slots[slots[rest]])]
                slots[rest] = (slots[rest] + 1) & (len(self._slots) - 1)
            self._slots[slots] = np.arange(start, start + len(ends), dtype=np.int32)

    def _home(self, words: UInt64, ends: Int64) -> Int64:
        """The first slot to look at for each name, int64[k]."""
        sizes = np.diff(ends, prepend=0)
        begins = ends - sizes
        places = np.arange(len(words)) - np.repeat(begins, sizes)
        mixed = _mix(words + places.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        hashes = _mix(np.add.reduceat(mixed, begins)) if len(ends) else mixed
        return (hashes & np.uint64(len(self._slots) - 1)).view(np.int64)


class _Growing:
    """A one-dimensional array that grows at its end."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room: npt.NDArray[Any] = np.empty(1 << 10, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def array(self) -> npt.NDArray[Any]:
        return self._room[: self._size]

    def append(self, values: npt.NDArray[Any]) -> None:
        size = self._size + len(values)
        if size > len(self._room):
            room = np.empty(max(size, len(self._room) * 3 // 2), self._room.dtype)
            room[: self._size] = self.array
            self._room = room
        self._room[self._size : size] = values
        self._size = size


def _packed(names: pa.LargeStringArray) -> tuple[UInt64, Int64]:
    """Names as words uint64[w], and where each name's words end: int64[k]."""
    _, offsets, text = names.buffers()
    starts = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    lengths = np.diff(starts)
    ends = np.cumsum((lengths + 7) >> 3)
    words = np.zeros(ends[-1] if len(ends) else 0, np.uint64)
    letters = np.frombuffer(text, np.uint8)[starts[0] : starts[-1]]
    begins = 8 * np.concatenate([[0], ends[:-1]])[: len(ends)]
    words.view(np.uint8)[_spread(begins, lengths)] = letters
    return words, ends


def _spans(ends: Int64, rows: npt.NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Where the words of the names of some rows begin, and how many they are."""
    begins: Int64 = ends.take(rows - 1, mode="wrap")
    begins[rows == 0] = 0
    return begins, ends.take(rows) - begins


def _spread(begins: Int64, sizes: Int64) -> Int64:
    """The positions `begins[i]`, `begins[i] + 1`, … of each range, one range after the other."""
    ends = np.cumsum(sizes)
    places: Int64 = np.repeat(begins - (ends - sizes), sizes)
    places += np.arange(len(places))
    return places


def _mix(values: UInt64) -> UInt64:
    """Spreads every bit over the low ones."""
    mixed = values * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(29)
    return mixed
