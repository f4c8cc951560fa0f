"""How the ranks of a launched job find those that were started together with them.

A launcher that starts ranks again may keep the store, with all that earlier ones have left in it, and its agents each
count their own restarts: neither the store nor a count tells which ranks belong together. So each says who it is, by a
number drawn anew, and rank 0 names a round of those that are there, again whenever one is replaced, until all agree.
"""

import json
import time
import uuid
from typing import Any

from kgexp.errors import RankError

#: Seconds between two looks.
_LOOK = 0.02


def meet(store: Any, rank: int, size: int, timeout: float) -> str:
    """A name for this start of the ranks, the same on all of them and on no earlier one.

    Args:
        store: torch's, of the launcher; what earlier ranks left in it may still be there.
        rank, size: this process's number, and how many there are.
        timeout: seconds for all of them to come.

    Raises:
        RankError: a rank did not come; names it.
    """
    own, prefix, deadline = uuid.uuid4().hex, f"kgexp/meet/{size}", time.monotonic() + timeout
    store.set(f"{prefix}/hello/{rank}", own)
    find = _Leader(store, prefix, size) if rank == 0 else _Follower(store, prefix, rank, own)
    while (name := find.look()) is None:
        if time.monotonic() > deadline:
            raise RankError(
                f"rank {rank} waited {timeout:.0f} s at the start for {find.missing()}: look into its log, and whether "
                "the launcher has started all ranks."
            )
        time.sleep(_LOOK)
    return name


class _Leader:
    """Rank 0: names the round."""

    def __init__(self, store: Any, prefix: str, size: int) -> None:
        self._store, self._prefix, self._size = store, prefix, size
        self._there: list[str] = []
        self._name = ""

    def look(self) -> str | None:
        """The name of the round once every rank has agreed to it."""
        hellos = [f"{self._prefix}/hello/{rank}" for rank in range(self._size)]
        if not self._store.check(hellos):
            return None
        there = [self._store.get(key).decode() for key in hellos]
        if there != self._there:  # at first, or one was started anew meanwhile
            self._there, self._name = there, uuid.uuid4().hex
            self._store.set(f"{self._prefix}/round", json.dumps([self._name, there]))
        if self._lacking("agreed/" + self._name):
            return None
        self._store.set(f"{self._prefix}/go/{self._name}", "")
        return self._name

    def missing(self) -> str:
        """Who has not come, or not agreed."""
        lacking = self._lacking("hello") or self._lacking("agreed/" + self._name)
        return f"rank {', '.join(map(str, lacking))}"

    def _lacking(self, what: str) -> list[int]:
        return [rank for rank in range(1, self._size) if not self._store.check([f"{self._prefix}/{what}/{rank}"])]


class _Follower:
    """Another rank: agrees to the round that has it."""

    def __init__(self, store: Any, prefix: str, rank: int, own: str) -> None:
        self._store, self._prefix, self._rank, self._own = store, prefix, rank, own

    def look(self) -> str | None:
        """The name of the round once rank 0 says that it holds."""
        if not self._store.check([f"{self._prefix}/round"]):
            return None
        name, there = json.loads(self._store.get(f"{self._prefix}/round"))
        if there[self._rank] != self._own:
            return None
        self._store.set(f"{self._prefix}/agreed/{name}/{self._rank}", "")
        return str(name) if self._store.check([f"{self._prefix}/go/{name}"]) else None

    def missing(self) -> str:
        """Who has not come."""
        return "rank 0, or one that it waits for"
