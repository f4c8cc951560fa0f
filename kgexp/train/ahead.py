"""The next step's work, prepared while this step computes."""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kgexp.train.step import Work


class Ahead:
    """Prepares steps one after the other, each while the one before is trained; a context, which ends the thread.

    Args:
        prepare: makes the work of a step. Where ranks exchange what they want in it, every rank must ask for the same
            steps in the same order.
        threaded: whether another thread does it; False prepares each step when it is asked for.
    """

    def __init__(self, prepare: Callable[[int], Work], threaded: bool) -> None:
        self._prepare, self._threaded = prepare, threaded
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Work | BaseException]] = queue.SimpleQueue()
        self._underway: int | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted.put(None)
        if self._thread is not None and error is None:
            self._thread.join()  # a step that nobody wants any more is prepared by all ranks alike

    def __call__(self, step: int, following: bool) -> Work:
        """The work of a step; `following` says whether the next one is to be prepared."""
        if not self._threaded:
            return self._prepare(step)
        if self._underway is None:
            self._ask(step)
        done, work = self._done.get()
        self._underway = None
        if isinstance(work, BaseException):
            raise work
        if done != step:
            raise RuntimeError(f"step {done} was prepared, not {step}: steps go on one by one")
        if following:
            self._ask(step + 1)
        return work

    def _ask(self, step: int) -> None:
        if self._thread is None:
            # A daemon: when training fails, the thread may wait for ranks that never come.
            self._thread = threading.Thread(target=self._serve, name="prepare", daemon=True)
            self._thread.start()
        self._underway = step
        self._wanted.put(step)

    def _serve(self) -> None:
        while (step := self._wanted.get()) is not None:
            try:
                self._done.put((step, self._prepare(step)))
            except BaseException as error:
                self._done.put((step, error))
