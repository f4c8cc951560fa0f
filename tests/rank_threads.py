"""Ranks as threads of this process, connected by real gloo groups: four of them in a fraction of a second."""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from kgexp.store_world import StoreWorld
from kgexp.world import Alone, World


def as_ranks(ranks: int, work: Callable[[World], Any], timeout: float = 120.0) -> list[Any]:
    """What `work` returns on every rank; the first error of a rank is raised."""
    if ranks == 1:
        return [work(Alone())]
    store = dist.HashStore()
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        with StoreWorld(store, number, ranks, number, ranks, timeout) as world:
            try:
                results[number] = work(world)
            except BaseException as error:
                errors.append(error)
                world.fail(str(error))

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(ranks)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    while not errors and any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        for thread in threads:
            thread.join(0.01)
    if errors:  # the others may wait for what does not come: they are daemons
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"a rank did not end in {timeout} s"
    return results
