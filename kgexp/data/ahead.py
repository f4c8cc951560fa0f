"""Work on a stream of items by other threads, in the order of the items."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; another thread draws the next one while one is used."""
    with ThreadPoolExecutor(1) as thread:
        end = object()
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]


def in_order(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """`work` of each item: by so many threads at once, while the caller uses a result.

    At most `threads` results wait. Errors are raised in their turn: one of the items after the results before it.
    """
    with ThreadPoolExecutor(threads) as pool:
        coming: deque[Future[R]] = deque()
        for result in _submitted(pool, work, items):
            coming.append(result)
            if len(coming) > threads:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _submitted(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[Future[R]]:
    try:
        for item in items:
            yield pool.submit(work, item)
    except Exception as error:
        failed: Future[R] = Future()
        failed.set_exception(error)
        yield failed
