"""Where the seconds of a run go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stages:
    """Adds up wall seconds by stage (`load`, `train`, `evaluate`, `checkpoint`, …)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the body's time for `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
