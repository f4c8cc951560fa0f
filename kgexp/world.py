"""What the ranks of a job tell each other apart from tensors: who they are, where they are, small values."""

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

    def whereabouts(self) -> str:
        """What each rank was last heard doing, and when, or which one has failed: a sentence for errors."""


class Alone(World):
    """A job of one process."""

    rank, size, local_rank, local_size = 0, 1, 0, 1
    one_machine, store = True, None

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

    def whereabouts(self) -> str:
        """See `World.whereabouts`."""
        return "there is one rank"


#: The world of a process that nobody shares its job with.
ALONE = Alone()
