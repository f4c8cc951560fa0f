"""Numbers for names, met block by block: a hash table over packed bytes, of some 50 bytes a short name."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgexp.data.packing import WORD, Int64, Names, UInt64, hashed, spread
from kgexp.errors import DataError

Int32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_FREE = 0
_CHUNK = 1 << 20
_SHORT = 4
_COLUMN = 1 << 40
"""More rows than a column holds."""


class Numbering:
    """Gives distinct names the numbers 0, 1, … as they come, and remembers where each came first.

    Inside, numbers count from 1. The table has the number of a name, or `_FREE`, in the first slot from its hash on
    that is its own. No name has the number 0, and its key is that of none.

    Args:
        what: what the names name, in the plural.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._slots = np.full(1 << 12, _FREE, np.int32)
        self._low, self._high, self._words = (_Growing(np.uint64) for _ in range(3))
        self._first, self._ends = _Growing(np.int64), _Growing(np.int64)
        for of_names in (self._low, self._high, self._first, self._ends):
            of_names.append(np.zeros(1, np.int64))
        self._wide = False  # some key has a high half
        self._met: dict[int, int] = {}

    def __len__(self) -> int:
        """The names so far."""
        return len(self._low) - 1

    def number(self, names: Names, column: int) -> Int32:
        """The numbers int32[k] of some names.

        Args:
            names: k names, none empty, in the order in which the column has them.
            column: a number of the column that holds them: columns count as read in the order of their numbers.

        Raises:
            DataError: there are more names than int32 ids.
        """
        self._make_room(len(names))
        numbers = np.empty(len(names), np.int32)
        slots = (names.hashes & np.uint64(len(self._slots) - 1)).view(np.int64)
        place = column * _COLUMN + self._met.get(column, 0)
        new = self._find(names, numbers, slots)
        while len(new):
            first = new[self._claim(slots[new])]
            self._add(names, first, slots[first], place + first)
            new = self._find(names, numbers, slots, new)  # those just added, their copies, and who lost a slot
        if column < max(self._met, default=column):
            self._came_earlier(numbers, place)
        self._met[column] = self._met.get(column, 0) + len(names)
        numbers -= 1
        return numbers

    def by_first_appearance(self) -> tuple[Int64, Int32]:
        """The order in which the columns, read one after the other, first have each name.

        Returns:
            int64[n], the numbers in that order; and its inverse int32[n], the place of each number.
        """
        order = np.argsort(self._first.array[1:], kind="stable")  # which uses that long runs are in order
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
        offsets = np.zeros(len(numbers) + 1, np.int64)
        texts = []
        for start in range(0, len(numbers), _CHUNK):
            words, begins = self._unpacked(numbers[start : start + _CHUNK] + 1)
            letters = words.view(np.uint8).reshape(-1, WORD)
            used = letters != 0
            offsets[start + 1 : start + len(begins) + 1] = np.add.reduceat(used.sum(axis=1, dtype=np.int64), begins)
            texts.append(letters[used])
        np.cumsum(offsets, out=offsets)
        text = np.concatenate(texts) if texts else np.empty(0, np.uint8)
        return pa.LargeStringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))

    def _find(self, names: Names, numbers: Int32, slots: Int64, rows: Int64 | slice = slice(None)) -> Int64:
        """Looks some rows up from their slots on: sets `numbers` of those that are there, and moves `slots` on.

        Returns:
            int64[x], the rows that are not there, rising; their slots are free.
        """
        new = []
        while True:
            held = self._slots.take(slots[rows])
            numbers[rows] = held
            other = np.flatnonzero(~self._equal(held, names, rows))
            rows = other if isinstance(rows, slice) else rows[other]
            if not len(rows):
                break
            free = held[other] == _FREE
            new.append(rows[free])
            rows = rows[~free]
            slots[rows] = (slots[rows] + 1) & (len(self._slots) - 1)
        return np.sort(np.concatenate(new)) if new else np.empty(0, np.int64)

    def _claim(self, slots: Int64) -> Bools:
        """Gives free slots int64[x] to those who want them; says who got theirs: of several the first."""
        marks = np.arange(len(slots), dtype=np.int32)
        self._slots[slots[::-1]] = marks[::-1]
        got: Bools = self._slots.take(slots) == marks
        return got

    def _equal(self, numbers: Int32, names: Names, rows: Int64 | slice) -> Bools:
        """Whether the names of the numbers int32[x] are those of the rows."""
        equal: Bools = self._low.array.take(numbers) == names.low[rows]
        if names.high is not None or self._wide:
            equal &= self._high.array.take(numbers) == (0 if names.high is None else names.high[rows])
        if len(names.words):
            sizes = names.sizes[rows]
            long = np.flatnonzero(equal & (sizes > 0))
            equal[long] = self._equal_words(numbers[long], names, names.begins[rows][long], sizes[long])
        return equal

    def _equal_words(self, numbers: Int32, names: Names, begins: Int64, sizes: Int64) -> Bools:
        """Whether the words of the numbers int32[x] are the `sizes` words from `begins` on."""
        known = self._ends.array.take(numbers - 1)
        equal = np.ones(len(numbers), bool)
        rest = np.arange(len(numbers))
        for i in range(_SHORT):  # most names are short
            same = self._words.array.take(known[rest] + i) == names.words.take(begins[rest] + i)
            equal[rest[~same]] = False
            rest = rest[same & (sizes[rest] > i + 1)]
        if len(rest):
            lengths = sizes[rest] - _SHORT
            # The known name may be shorter, so that others follow: its last word has a NUL, which tells.
            theirs = self._words.array.take(spread(known[rest] + _SHORT, lengths), mode="clip")
            ours = names.words.take(spread(begins[rest] + _SHORT, lengths))
            equal[rest] = np.logical_and.reduceat(theirs == ours, np.cumsum(lengths) - lengths)
        return equal

    def _add(self, names: Names, rows: Int64, slots: Int64, places: Int64) -> None:
        """Numbers new names, which are all different."""
        self._slots[slots] = np.arange(len(self) + 1, len(self) + 1 + len(rows), dtype=np.int32)
        sizes = names.sizes[rows]
        self._low.append(names.low[rows])
        self._high.append(np.zeros(len(rows), np.uint64) if names.high is None else names.high[rows])
        self._wide |= names.high is not None
        self._first.append(places)
        self._ends.append(len(self._words) + np.cumsum(sizes))
        self._words.append(names.words[spread(names.begins[rows], sizes)])

    def _came_earlier(self, numbers: Int32, place: int) -> None:
        """Notes the places of rows, from `place` on, whose names have been met in later columns only."""
        later = np.flatnonzero(self._first.array.take(numbers) >= place + len(numbers))[::-1]
        self._first.array[numbers[later]] = place + later  # of copies the first, which is written last

    def _make_room(self, more: int) -> None:
        """Keeps the table at most half full."""
        if len(self) + more >= np.iinfo(np.int32).max:
            raise DataError(f"The files hold more {self._what} than the 2^31 - 1 that int32 ids can tell apart.")
        if 2 * (len(self) + more) <= len(self._slots):
            return
        self._slots = np.full(1 << (2 * (len(self) + more) - 1).bit_length(), _FREE, np.int32)
        for start in range(1, len(self) + 1, _CHUNK):
            some = slice(start, start + _CHUNK)
            hashes = hashed(self._low.array[some], self._high.array[some])
            slots = (hashes & np.uint64(len(self._slots) - 1)).view(np.int64)
            rest = np.arange(len(slots))
            while len(rest):
                free = rest[self._slots.take(slots[rest]) == _FREE]
                free = free[self._claim(slots[free])]
                self._slots[slots[free]] = (start + free).astype(np.int32)
                rest = rest[self._slots.take(slots[rest]) != start + rest]
                slots[rest] = (slots[rest] + 1) & (len(self._slots) - 1)

    def _unpacked(self, numbers: Int64) -> tuple[UInt64, Int64]:
        """The words of the names of some numbers, and where each name's begin."""
        known = self._ends.array.take(numbers - 1)
        sizes = self._ends.array.take(numbers) - known
        counts = np.where(sizes, sizes, 1 + self._wide)
        begins = np.cumsum(counts) - counts
        words = np.empty(counts.sum(), np.uint64)
        short, long = np.flatnonzero(sizes == 0), np.flatnonzero(sizes)
        words[begins[short]] = self._low.array.take(numbers[short])
        if self._wide:
            words[begins[short] + 1] = self._high.array.take(numbers[short])
        words[spread(begins[long], sizes[long])] = self._words.array[spread(known[long], sizes[long])]
        return words, begins


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
