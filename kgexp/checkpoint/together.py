"""Work that succeeds on every rank or fails on every rank, so that none waits for one that has given up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from kgexp.errors import CheckpointError, KgexpError, RankError
from kgexp.world import World

T = TypeVar("T")


@contextmanager
def together(world: World, name: str) -> Iterator[None]:
    """Ends once the body has ended on every rank; `name` says where that is. The body does not call the world.

    Raises:
        CheckpointError, RankError: the body failed on another rank, which is named with its error; where the body
            failed itself, its own error goes on.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    failures = world.gather(name, None if problem is None else [isinstance(problem, CheckpointError), _say(problem)])
    if problem is not None:
        raise problem
    for rank, failure in enumerate(failures):
        if failure is not None:
            of_checkpoint, sentence = failure
            raise (CheckpointError if of_checkpoint else RankError)(f"rank {rank}: {sentence}")


def by_first(world: World, name: str, work: Callable[[], T]) -> T:
    """What `work` gives on rank 0, a JSON value, on every rank. Raises like `together`."""
    with together(world, name):
        value = work() if world.rank == 0 else None
    return cast(T, world.broadcast(name, value))


def _say(error: Exception) -> str:
    return str(error) if isinstance(error, KgexpError) else f"{type(error).__name__}: {error}"
