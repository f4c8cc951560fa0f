"""Threads that share a piece of work: each does parts of it by itself, with operations of one thread.

An operation that several threads split waits for the slowest of them, thousands of times a second, and what it leaves
has left the cache before the next operation comes. Here a thread takes a part through all of its operations. Which
thread does which part is chance; what a part yields must not depend on it.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class Team:
    """The calling thread and as many others as make `threads`.

    Where `threads` is 1 the caller does all of it. The other threads are started when they are first needed, and end
    with the team or the process; a team is used by one thread at a time.

    Args:
        threads: how many, at least 1.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._calls: list[queue.SimpleQueue[_Call | None]] = []

    def __del__(self) -> None:
        for calls in self._calls:
            calls.put(None)

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """`work` of every part, in the order of the parts.

        Autograd is on or off in all threads as in the calling one. If `work` raises, the error of the first such part
        is raised here once no part is under way; parts that nobody has begun are left out.
        """
        helpers = min(self.threads, len(parts)) - 1
        if helpers < 1:
            return [work(part) for part in parts]
        call = _Call(work, parts, torch.is_grad_enabled())
        with _operations_of_one_thread():
            self._wake(call, helpers)
            try:
                call.run()
            except BaseException:  # an interrupt: nobody is to begin another part
                call.failed = True
                raise
            finally:
                for _ in range(helpers):
                    call.left.get()
        for outcome in call.outcomes:
            if isinstance(outcome, _Failure):
                raise outcome.error
        return call.outcomes

    def _wake(self, call: "_Call", helpers: int) -> None:
        while len(self._calls) < helpers:
            calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(calls,), name=f"team {len(self._calls) + 1}", daemon=True).start()
            self._calls.append(calls)
        for calls in self._calls[:helpers]:
            calls.put(call)


@dataclass(frozen=True)
class _Failure:
    error: BaseException


@dataclass
class _Call:
    """One `map` under way: every thread takes the next part until there are none."""

    work: Callable[[Any], Any]
    parts: Sequence[Any]
    grad: bool
    outcomes: list[Any] = field(init=False)
    left: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.outcomes = [None] * len(self.parts)
        self._next, self.failed = itertools.count(), False  # `next` of a count is atomic

    def run(self) -> None:
        while not self.failed and (part := next(self._next)) < len(self.parts):
            try:
                self.outcomes[part] = self.work(self.parts[part])
            except BaseException as error:
                self.outcomes[part], self.failed = _Failure(error), True


def _serve(calls: "queue.SimpleQueue[_Call | None]") -> None:
    torch.set_num_threads(1)
    while (call := calls.get()) is not None:
        with torch.set_grad_enabled(call.grad):
            call.run()
        call.left.put(None)
        del call  # its tensors are not to wait for the next one


@contextmanager
def _operations_of_one_thread() -> Iterator[None]:
    """For the calling thread; a thread that starts meanwhile begins with the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


#: The calling thread alone.
ONE = Team()


def cut(length: int, at_most: int) -> list[slice]:
    """The places 0 … `length` - 1 in as few contiguous parts as have `at_most` each, of nearly equal size."""
    parts = -(-length // max(1, at_most))
    bounds = [length * part // parts for part in range(parts + 1)] if parts else []
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
