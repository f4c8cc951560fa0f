"""HOGWILD (Niu et al., NIPS 2011): threads that train steps at once, on the same rows and without waiting.

Two steps that touch one row at a time may lose part of an update, which is rare where rows are many; no two runs are
the same. The threads share the process's memory, so nothing is copied and no shared-memory file can be too small.
PyTorch lets go of the interpreter in all that takes long.
"""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

#: Steps that wait for a thread, for each of them.
_WAITING = 2

#: The triples of a trained step and its loss, or what it met.
_Outcome = tuple[int, Tensor] | BaseException


class Hogwild:
    """Trains steps in the order of their numbers, several at once; a context, which ends the threads.

    Args:
        train: trains a step, from the number of it to its triples and its loss.
        workers: threads.
        threads: of each worker's operations.
    """

    def __init__(self, train: Callable[[int], tuple[int, Tensor]], workers: int, threads: int) -> None:
        self._train, self._threads, self.window = train, threads, _WAITING * workers
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._trained: queue.SimpleQueue[tuple[int, _Outcome]] = queue.SimpleQueue()
        self._outcomes: dict[int, _Outcome] = {}
        self._asked = -1  # one past the last step that was asked for
        self._workers = [threading.Thread(target=self._work, name=f"worker {i}", daemon=True) for i in range(workers)]

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._workers:
            self._wanted.put(None)
        for worker in self._workers:
            worker.join()

    @property
    def asked(self) -> int:
        """One past the last step that is trained or under way."""
        return self._asked

    def __call__(self, step: int, limit: int) -> tuple[int, Tensor]:
        """Triples and loss of a step, once it is trained; meanwhile steps before `limit` are under way."""
        for ahead in range(max(self._asked, step), max(limit, step + 1)):
            self._wanted.put(ahead)
            self._asked = ahead + 1
        while step not in self._outcomes:
            done, outcome = self._trained.get()
            self._outcomes[done] = outcome
        outcome = self._outcomes.pop(step)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _work(self) -> None:
        torch.set_num_threads(self._threads)  # which holds for the operations of this thread alone
        while (step := self._wanted.get()) is not None:
            try:
                self._trained.put((step, self._train(step)))
            except BaseException as error:
                self._trained.put((step, error))
