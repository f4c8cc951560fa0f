"""Units of a pass for trainers that train at the same time: one of them each, under locks on its slices.

There is no server. The ledger of the pass is one value of the store that the ranks share; who changes it replaces the
text that was read, if it is still there, and starts anew if not. A rank that can have nothing now leaves its name in
the ledger, and whoever changes that wakes it.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread
from typing import Any
from uuid import uuid4

from torch._C._distributed_c10d import Store

from kgexp.errors import RankError
from kgexp.sharding.ledger import Grant, Ledger, Unit
from kgexp.store_link import give_up_after

_LEDGER = "ledger"
#: Seconds between two looks for holders that have fallen silent, at most; they cost no request.
_LOOK = 1.0
#: A store wants to know how long a key may take; what ends the waiting is that somebody sets it.
_EVER = timedelta(days=365)


class Locks:
    """What one rank knows of the units of a pass; a job has one on each rank.

    Rows of a slice must be stored before their unit is completed, and loaded after the next one is granted.

    Args:
        store: the ranks' common one, of any kind, with a prefix that nothing else uses.
        rank: of this process.
        silence: seconds without a sign of life of a rank, see `World.silence`.
        lease: seconds of silence after which a rank that waits takes away the unit of another; can be infinite.
        timeout: seconds of silence of a rank that has a unit after which waiting for it is given up. Matters only if
            it is shorter than `lease`.
        whereabouts: what the ranks are doing, for errors; see `World.whereabouts`.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        silence: Callable[[int], float],
        lease: float,
        timeout: float,
        whereabouts: Callable[[], str],
    ) -> None:
        self._store, self._rank = store, rank
        self._silence, self._lease, self._timeout, self._whereabouts = silence, lease, timeout, whereabouts
        self._ear = store.clone()  # type: ignore[attr-defined]  # waits on a connection of its own; not in torch's stubs
        give_up_after(self._ear, timeout)
        self._wake = f"wake/{rank}"
        self._number = -1
        self._units: Sequence[Unit] = ()
        self._near: tuple[int, ...] = ()
        self._name, self._changes = f"{rank}-{uuid4().hex}", 0

    def new_pass(
        self, number: int, units: Sequence[Unit], tree: bool, places: Mapping[int, Any], done: Collection[int] = ()
    ) -> None:
        """Begins pass `number`; one rank does, while the others wait to `join`. Nobody may still train for another.

        Args:
            units: in the order in which they are preferred, all else equal.
            tree: see `Ledger`; for a pass before which the slices have nothing in common.
            places: of slices, where their newest rows are.
            done: numbers of units that need no training.
        """
        self.join(number, units)
        ready = [unit.number in done for unit in units]
        with self._reaching():
            while True:
                before = self._text()
                leases = Ledger.load(before).leases if before else 0
                if self._replace(before, Ledger(number, tree, ready, dict(places), leases)):
                    return

    def join(self, number: int, units: Sequence[Unit]) -> None:
        """Takes part in a pass that has begun, with the units that it began with."""
        self._number, self._units = number, units

    def advance(self, held: Grant | None, places: Mapping[int, Any] | None = None) -> tuple[bool, Grant | None]:
        """Completes what this rank has and takes the next unit, in one step; waits while there is none to be had.

        Args:
            held: the grant whose unit is done; None where this rank has none.
            places: where the newest rows of its slices are now, as JSON values; they stay where they were by default.

        Returns:
            False where the lease of `held` was taken away: its unit is another's to do, and `places` were not taken
            down. True otherwise. And the next grant, or None once all units of the pass are done.

        Raises:
            RankError: the store is gone, or the pass in it is another; or a rank that has a unit fell silent, see
                `timeout`.
            ValueError: this rank has a unit other than `held`; or `places` has slices that `held` has not.
        """
        if places and not (held and places.keys() <= set(held.unit.slices)):
            raise ValueError(f"places has slices {sorted(places)}: only those of the unit that is held can have moved")
        with self._reaching():
            counted, grant, ledger = self._turn(held, places or {})
            while grant is None and not ledger.over:
                self._wait([rank for rank in ledger.held if rank != self._rank])
                _, grant, ledger = self._turn(None, {})
        return counted, grant

    def places(self, number: int) -> dict[int, Any]:
        """Where the newest rows of all slices are that anybody has stored, in pass `number`. Raises like `advance`."""
        with self._reaching():
            return self._read(number)[1].places

    def stop(self) -> None:
        """Hands out no more units of the pass, which is over once nobody has one. Raises like `advance`."""
        with self._reaching():
            while True:
                before, ledger = self._read(self._number)
                ledger.stop()
                if ledger == Ledger.load(before) or self._replace(before, ledger):
                    return

    def holds(self, grant: Grant) -> bool:
        """Whether a unit is still this rank's. Raises like `advance`."""
        with self._reaching():
            held = self._read(self._number)[1].held
        return held.get(self._rank, (0, None))[1] == grant.lease

    def done(self, number: int) -> list[int]:
        """The numbers of the units of pass `number` that are done, ascending. Raises like `advance`."""
        with self._reaching():
            done = self._read(number)[1].done
        return sorted(unit.number for unit, mark in zip(self._units, done, strict=True) if mark)

    def _turn(self, held: Grant | None, places: Mapping[int, Any]) -> tuple[bool, Grant | None, Ledger]:
        """One change of the ledger. A rank that gets nothing, while others still train, is among the waiting then."""
        while True:
            before, ledger = self._read(self._number)
            counted = held is None or ledger.complete(self._rank, held.lease, places)
            if self._rank in ledger.held:
                raise ValueError(f"rank {self._rank} has a unit: it must be completed before it takes another")
            ledger.withdraw([rank for rank in ledger.held if self._silence(rank) > self._lease])
            # What it did not keep its lease on is not at hand any more either.
            near = self._near if counted else ()
            grant = ledger.hand_out(self._units, self._rank, near)
            if grant is None and not ledger.over and self._rank not in ledger.waiting:
                ledger.waiting.append(self._rank)
            if ledger == Ledger.load(before) or self._replace(before, ledger):
                self._near = grant.unit.slices if grant else near
                return counted, grant, ledger

    def _wait(self, holders: Sequence[int]) -> None:
        """Until another rank wakes this one, or it is time to look: for a holder that fell silent, or after a while,
        as whoever should have waked this one may have ended just before."""
        patience = min(self._lease, self._timeout) / 4
        until = time.monotonic() + patience
        # The thread does what cannot be interrupted, and not without torch complaining when time runs out.
        listener = Thread(target=self._listen, name="wait for a unit", daemon=True)
        listener.start()
        try:
            while listener.is_alive() and time.monotonic() < until and not self._given_up(holders):
                listener.join(min(_LOOK, patience))
        finally:
            if listener.is_alive():
                self._store.set(self._wake, "")
            listener.join()
            self._store.delete_key(self._wake)

    def _listen(self) -> None:
        with suppress(RuntimeError):  # the next request says so
            self._ear.wait([self._wake], _EVER)

    def _given_up(self, holders: Sequence[int]) -> bool:
        """Whether one of them will lose its lease. Raises RankError if one must not, and is silent for too long."""
        silence = {rank: self._silence(rank) for rank in holders}
        if any(seconds > self._lease for seconds in silence.values()):
            return True
        for rank, seconds in silence.items():
            if seconds > self._timeout:
                raise RankError(
                    f"rank {self._rank} waited in vain for rank {rank}'s unit: {self._whereabouts()}. Look into the "
                    "log of what ran there; continue the run with resume=auto."
                )
        return False

    def _text(self) -> str:
        """The ledger as it is; empty where there is none."""
        return self._store.get(_LEDGER).decode() if self._store.check([_LEDGER]) else ""

    def _read(self, number: int) -> tuple[str, Ledger]:
        """The ledger of a pass, as text too."""
        text = self._text()
        if not text:
            raise RankError(f"rank {self._rank} found no pass where it wanted pass {number}: {self._whereabouts()}.")
        ledger = Ledger.load(text)
        if ledger.number != number:
            raise RankError(
                f"rank {self._rank} wanted pass {number} where pass {ledger.number} is: {self._whereabouts()}."
            )
        return text, ledger

    def _replace(self, before: str, ledger: Ledger) -> bool:
        """Whether it could be put where the text `before` was; if so, those that waited for it are woken."""
        self._changes += 1
        text = ledger.dump(f"{self._name}-{self._changes}")
        if self._store.compare_set(_LEDGER, before, text).decode() != text:
            return False
        for rank in ledger.woken:
            if rank != self._rank:
                self._store.set(f"wake/{rank}", "")
        return True

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Says who is where if the store is gone."""
        try:
            yield
        except RuntimeError as error:
            text = " ".join(str(error).split())[:200]
            raise RankError(
                f"rank {self._rank} lost the ranks' common store ({text}): {self._whereabouts()}. Its keeper ended, or "
                "the machine of it cannot be reached; continue the run with resume=auto."
            ) from error
