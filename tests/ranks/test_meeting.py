"""Ranks that were started together find each other, whatever earlier ones have left."""

import json
import threading
import time
from contextlib import suppress

import pytest
import torch.distributed as dist

from kgexp.errors import RankError
from kgexp.ranks.meeting import meet


def start(store, rank, size, found, timeout=20.0):
    def come():
        with suppress(RankError):  # told of where it is waited for
            found[rank] = meet(store, rank, size, timeout)

    thread = threading.Thread(target=come, daemon=True)
    thread.start()
    return thread


def all_meet(store, size):
    found = {}
    threads = [start(store, rank, size, found) for rank in range(size)]
    for thread in threads:
        thread.join(20)
    assert len(found) == size
    return set(found.values())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_get_one_name_and_every_start_another(size):
    store = dist.HashStore()
    one, two = all_meet(store, size), all_meet(store, size)
    assert len(one) == len(two) == 1 and one != two


def test_a_rank_that_is_replaced_before_all_have_come_is_left_out():
    store, found = dist.HashStore(), {}
    store.set("kgexp/meet/3/hello/1", "of a process that has ended")
    store.set("kgexp/meet/3/round", json.dumps(["an old one", ["x", "of a process that has ended", "y"]]))
    threads = [start(store, rank, 3, found) for rank in (0, 2)]
    time.sleep(0.3)
    assert not found  # the dead one does not agree
    threads.append(start(store, 1, 3, found))
    for thread in threads:
        thread.join(20)
    assert len(found) == 3 and len(set(found.values())) == 1


def test_who_does_not_come_is_named():
    store, found = dist.HashStore(), {}
    start(store, 1, 4, found)
    with pytest.raises(RankError, match=r"rank 0 waited 1 s at the start for rank 2, 3: look into its log"):
        meet(store, 0, 4, 1.0)
    with pytest.raises(RankError, match="rank 1 waited 0 s at the start for rank 0"):
        meet(dist.HashStore(), 1, 2, 0.1)
