"""Who does what in one pass over a partitioned graph: the rules by which trainers get units of it, as plain data.

As the lock server of PyTorch-BigGraph (Lerer and others, MLSys 2019, section 4.2), with two differences: a unit is done
when its trainer says so, not when it is handed out, and a unit can be taken away from a trainer.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Unit:
    """What one trainer trains at a time, such as a bucket.

    Attributes:
        number: names the unit within its pass.
        slices: of the entity table; nobody else may hold one of them meanwhile.
    """

    number: int
    slices: tuple[int, ...]


@dataclass(frozen=True)
class Grant:
    """A unit in the hands of a trainer.

    Attributes:
        lease: a number that no other grant of the job has.
        places: where the newest rows of the unit's slices are, as JSON values; without those that nobody has stored.
    """

    unit: Unit
    lease: int
    places: Mapping[int, Any]


@dataclass
class Ledger:
    """The state of a pass. Units go by their position among the pass's units, which whoever asks must know.

    Attributes:
        number: of the pass.
        tree: whether a unit waits until one of its slices has been handed out, so that all slices grow from one
            and their embeddings share a space.
        done: of each unit.
        places: of slices, where their newest rows are.
        leases: how many have been given in the job.
        held: of each rank that has a unit, its position and the lease.
        stopping: whether no more units are handed out.
        waiting: ranks that want to know of the next change.
        woken: those that waited when this copy was changed; not written.
    """

    number: int
    tree: bool
    done: list[bool]
    places: dict[int, Any]
    leases: int = 0
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    stopping: bool = False
    waiting: list[int] = field(default_factory=list)
    woken: list[int] = field(default_factory=list, compare=False)

    @classmethod
    def load(cls, text: str) -> Self:
        """What `dump` wrote."""
        said = json.loads(text)
        return cls(
            number=said["number"],
            tree=said["tree"],
            done=[mark == "x" for mark in said["done"]],
            places={int(number): place for number, place in said["places"].items()},
            leases=said["leases"],
            held={rank: (position, lease) for rank, position, lease in said["held"]},
            stopping=said["stopping"],
            waiting=said["waiting"],
        )

    def dump(self, writer: str) -> str:
        """JSON. No two writers' texts are the same, so that whoever reads one knows whose it is."""
        said = {
            "writer": writer,
            "number": self.number,
            "tree": self.tree,
            "done": "".join("x" if done else "." for done in self.done),
            "places": self.places,
            "leases": self.leases,
            "held": [[rank, *unit] for rank, unit in self.held.items()],
            "stopping": self.stopping,
            "waiting": self.waiting,
        }
        return json.dumps(said, separators=(",", ":"))

    @property
    def over(self) -> bool:
        """Whether all units are done, or all that will be."""
        return all(self.done) or (self.stopping and not self.held)

    def stop(self) -> None:
        """Hands out no more units."""
        if not self.stopping:
            self.stopping = True
            self._changed()

    def complete(self, rank: int, lease: int, places: Mapping[int, Any]) -> bool:
        """The unit is done and `places` hold, unless the lease was taken away; returns which."""
        position, current = self.held.get(rank, (0, None))
        if lease != current:
            return False
        del self.held[rank]
        self.done[position] = True
        self.places.update(places)
        self._changed()
        return True

    def withdraw(self, ranks: Iterable[int]) -> None:
        """Takes away what these ranks have: as if they had never got it."""
        for rank in ranks:
            del self.held[rank]
            self._changed()

    def hand_out(self, units: Sequence[Unit], rank: int, near: Collection[int]) -> Grant | None:
        """The next unit for a rank that has none and has the slices `near` at hand; None where it can have none now."""
        position = None if self.stopping else self._choice(units, near)
        if position is None:
            return None
        self.leases += 1
        self.held[rank] = (position, self.leases)
        self._changed()
        unit = units[position]
        return Grant(
            unit, self.leases, {number: self.places[number] for number in unit.slices if number in self.places}
        )

    def _choice(self, units: Sequence[Unit], near: Collection[int]) -> int | None:
        """Most slices that are at hand; then those with most units left, so that the last units can be trained at the
        same time; then the first."""
        taken = {position for position, _ in self.held.values()}
        started = {position for position, done in enumerate(self.done) if done} | taken
        left = [position for position in range(len(units)) if position not in started]
        locked = _slices(units, taken)
        free = [p for p in self._within_tree(units, started, left) if locked.isdisjoint(units[p].slices)]
        units_left = Counter(number for p in left for number in units[p].slices)
        here = set(near)

        def worth(position: int) -> tuple[int, int]:
            slices = units[position].slices
            return len(here.intersection(slices)), sum(units_left[number] for number in slices)

        return max(free, key=worth, default=None)  # the first of those that are worth the same

    def _within_tree(self, units: Sequence[Unit], started: Collection[int], left: list[int]) -> list[int]:
        """The units that the tree can grow by; all where there is no such rule, or no such unit."""
        if not self.tree:
            return left
        grown = _slices(units, started)
        return [position for position in left if not grown.isdisjoint(units[position].slices)] or left

    def _changed(self) -> None:
        self.woken += self.waiting
        self.waiting = []


def _slices(units: Sequence[Unit], positions: Iterable[int]) -> set[int]:
    return {number for position in positions for number in units[position].slices}
