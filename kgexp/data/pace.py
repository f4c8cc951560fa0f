"""A line now and then about work that takes long."""

import time
from collections.abc import Callable

_SECONDS = 10.0


class Pace:
    """Says how far work has come: nothing about the first ten seconds, then a line every ten seconds.

    Args:
        say: is told the lines.
        what: what is done to triples, such as `Read`.
        total: the triples in all, if they are known.
    """

    def __init__(self, say: Callable[[str], None], what: str, total: int | None = None) -> None:
        self._say, self._what = say, what
        self._of = "" if total is None else f" of {total:,}"
        self._began = self._said = time.monotonic()
        self._done = 0.0

    def advance(self, triples: float) -> None:
        """Counts triples that are done, parts of them where each takes several steps."""
        self._done += triples
        now = time.monotonic()
        if now - self._said >= _SECONDS:
            self._said = now
            rate = self._done / (now - self._began)
            self._say(f"{self._what} {self._done:,.0f}{self._of} triples, {rate:,.0f} a second")
