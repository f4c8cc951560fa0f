"""Where the seconds of a run go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kgexp.world import ALONE, World


class Stages:
    """Adds up wall seconds by stage (`load`, `train`, `evaluate`, `checkpoint`, …).

    Args:
        world: is told of every stage, so that ranks know what one that they wait for is doing.
    """

    def __init__(self, world: World = ALONE) -> None:
        self._world = world
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, step: int | None = None) -> Iterator[None]:
        """Counts the body's time for `name`; `step` is that of the training, where it has begun."""
        start = time.perf_counter()
        self._world.beat(name, step)
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
