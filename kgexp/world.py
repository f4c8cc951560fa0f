"""What the ranks of a job tell each other apart from tensors: who they are, where they are, small values."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class World(Protocol):
    """The ranks of a job, as one of them sees it. Every rank calls the same methods in the same order.

    Attributes:
        rank: this process's number, from 0.
        size: ranks in all.
        local_rank, local_size: the same among the ranks of this machine.
        one_machine: whether there is no other machine.
        store: torch's key-value store of the job, for process groups; None where there is but one rank.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    one_machine: bool
    store: Any

    def beat(self, stage: str, step: int | None = None) -> None:
        """Leaves word that this rank is at `stage` (`load`, `train`, `checkpoint`, …), at a step of the training."""

    def barrier(self, name: str) -> None:
        """Returns once every rank has come here; `name` says where that is, in the error of those who wait in vain.

        Raises:
            RankError: a rank did not come; names it, with what it was last heard doing.
        """

    def broadcast(self, name: str, value: Any = None) -> Any:
        """The value that rank 0 gave, on every rank; JSON values. Raises like `barrier`."""

    def gather(self, name: str, value: Any) -> list[Any]:
        """The values that the ranks gave, in their order, on every rank; JSON values. Raises like `barrier`."""

    def fail(self, sentence: str) -> None:
        """Leaves word that this rank failed, and why: those who wait for it raise at once."""

    def failure(self) -> str | None:
        """What the rank that failed first has left word of; None where none has. Any thread may ask."""

    def count(self, amount: int) -> None:
        """Adds to what this rank has done, in whatever is counted; costs nothing, as it is told with the heartbeat."""

    def counted(self) -> int:
        """What all ranks have done as far as was heard."""

    def whereabouts(self) -> str:
        """What each rank was last heard doing, and when, or which one has failed: a sentence for errors."""

    def roll_call(self, name: str, patience: float) -> list[int]:
        """The ranks that are not here, on every rank that is: those that do not come and are silent for longer than
        `patience` seconds; `name` is of no earlier call. Rank 0 has to be here.

        Raises:
            GivenUpError: the others took this rank for one that is not here.
            RankError: rank 0 did not come, or a rank failed.
        """

    def without(self, ranks: Sequence[int]) -> AbstractContextManager["World"]:
        """The ranks that are left once some are gone, numbered anew; for all of them to call after a `roll_call`."""

    def silence(self, rank: int) -> float:
        """Seconds without a sign of life of a rank, by the heart of the one who asks; infinite once its process is seen
        to have ended. A rank that was never heard is silent since this one began. Any thread may ask, in any order."""


class Alone(World):
    """A job of one process."""

    rank, size, local_rank, local_size = 0, 1, 0, 1
    one_machine, store = True, None
    _counted = 0

    def beat(self, stage: str, step: int | None = None) -> None:
        """Nobody listens."""

    def barrier(self, name: str) -> None:
        """Nobody to wait for."""

    def broadcast(self, name: str, value: Any = None) -> Any:
        """See `World.broadcast`."""
        return value

    def gather(self, name: str, value: Any) -> list[Any]:
        """See `World.gather`."""
        return [value]

    def fail(self, sentence: str) -> None:
        """Nobody waits."""

    def failure(self) -> str | None:
        """See `World.failure`."""
        return None

    def count(self, amount: int) -> None:
        """See `World.count`."""
        self._counted += amount

    def counted(self) -> int:
        """See `World.counted`."""
        return self._counted

    def whereabouts(self) -> str:
        """See `World.whereabouts`."""
        return "there is one rank"

    def roll_call(self, name: str, patience: float) -> list[int]:
        """See `World.roll_call`."""
        return []

    def without(self, ranks: Sequence[int]) -> AbstractContextManager[World]:
        """See `World.without`."""
        return nullcontext(self)

    def silence(self, rank: int) -> float:
        """See `World.silence`."""
        return 0.0


#: The world of a process that nobody shares its job with.
ALONE = Alone()
