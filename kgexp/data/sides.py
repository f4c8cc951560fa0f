"""The two queries that a triple gives."""

from enum import IntEnum


class Side(IntEnum):
    """The place of a triple that a query asks for: HEAD is `(?, r, t)`, TAIL is `(h, r, ?)`.

    The value is the column of the answer divided by two: see `column`.
    """

    HEAD = 0
    TAIL = 1

    @property
    def column(self) -> int:
        """The answer's column in a triple `(h, r, t)`."""
        return 2 * self.value

    @property
    def given(self) -> int:
        """The column of the entity that the query gives."""
        return 2 - 2 * self.value

    @property
    def other(self) -> "Side":
        """The side of the entity that the query gives."""
        return Side(1 - self.value)

    @property
    def label(self) -> str:
        """`head` or `tail`, as metric names have it."""
        return self.name.lower()
