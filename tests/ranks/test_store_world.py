"""The world over a store: ranks are threads here, each with its own `StoreWorld`."""

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, Store, TCPStore

from kgexp.errors import RankError
from kgexp.store_world import StoreWorld

pytestmark = pytest.mark.timeout(30)


def together(worlds: list[StoreWorld], work: Callable[[StoreWorld], Any]) -> list[Any]:
    """What each rank's `work` returned, or the error that it raised."""

    def attempt(world: StoreWorld) -> Any:
        try:
            return work(world)
        except RankError as error:
            return str(error)

    with ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(attempt, worlds))


def stores(kind: str, folder: Path, size: int) -> list[Store]:
    if kind == "hash":
        return [HashStore()] * size
    if kind == "file":
        return [FileStore(str(folder / "store"), -1) for _ in range(size)]
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return [PrefixStore("job", store) for store in [keeper] + [TCPStore("127.0.0.1", keeper.port)] * (size - 1)]


@pytest.fixture
def worlds() -> Iterator[Callable[..., list[StoreWorld]]]:
    """Makes the worlds of the ranks of a job; their hearts beat until the test ends."""
    with ExitStack() as stack:

        def make(shared: list[Store], timeout: float = 60.0, living: int | None = None) -> list[StoreWorld]:
            size = len(shared)
            made = [StoreWorld(store, rank, size, rank, size, timeout, timeout) for rank, store in enumerate(shared)]
            for world in made[:living]:
                stack.enter_context(world)
            return made

        yield make


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_ranks_tell_each_other_values_again_and_again(worlds, tmp_path, kind):
    shared = stores(kind, tmp_path, 3)

    def talk(world: StoreWorld) -> list[Any]:
        said = []
        for turn in range(5):
            said.append(world.gather("turn", {"rank": world.rank, "turn": turn}))
            said.append(world.broadcast("word", [turn, None] if world.rank == 0 else "nobody hears this"))
            world.barrier("turn")
        return said

    one = []
    for turn in range(5):
        one += [[{"rank": rank, "turn": turn} for rank in range(3)], [turn, None]]
    assert together(worlds(shared), talk) == [one] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing names a machine's process ids")
@pytest.mark.parametrize("there", [True, False])
def test_a_rank_whose_process_has_ended_is_given_up_at_once_where_that_can_be_seen(worlds, there):
    store = HashStore()
    (first,) = worlds([store, store], living=1)[:1]
    child = subprocess.Popen(["true"])
    child.wait()
    pids = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    word = {"beats": 1, "stage": "train", "step": 7, "since": 0, "pid": child.pid, "host": "here"}
    store.set("heart/1", json.dumps(word | {"pids": pids if there else "another machine's"}))
    if there:
        with pytest.raises(
            RankError, match=r"at 'trained' for rank 1 in vain: .*step 7.*, its process has ended\. Look"
        ):
            first.barrier("trained")
        assert first.silence(1) == math.inf
    else:
        said = threading.Timer(0.3, lambda: store.set("1/1", json.dumps(["trained", None])))
        said.start()
        first.barrier("trained")
        said.join()


def test_what_was_read_by_all_is_deleted(worlds):
    store = HashStore()
    made = worlds([store] * 2)
    together(made, lambda world: [world.gather("value", turn) for turn in range(50)])
    assert store.num_keys() <= 6  # two heartbeats and the last calls


def test_nobody_leaves_a_barrier_before_all_have_come(worlds):
    made, here = worlds([HashStore()] * 3), []

    def come(world: StoreWorld) -> list[int]:
        time.sleep(0.1 * world.rank)
        here.append(world.rank)
        world.barrier("here")
        return sorted(here)

    assert together(made, come) == [[0, 1, 2]] * 3


def test_a_slow_rank_that_lives_is_waited_for(worlds):
    made = worlds([HashStore()] * 2, timeout=0.3)
    assert together(made, lambda world: (world.rank and time.sleep(1.2)) or world.gather("slow", 1)) == [[1, 1]] * 2


def test_a_rank_that_was_never_heard_is_named(worlds):
    made = worlds([HashStore()] * 3, timeout=0.4, living=2)
    for said in together(made[:2], lambda world: world.barrier("start")):
        assert "waited at 'start' for rank 2 in vain: rank 2: never heard in " in said


def test_a_rank_that_fell_silent_is_named_with_what_it_was_doing(worlds):
    made = worlds([HashStore()] * 3, timeout=0.5)
    made[1].beat("train", 57)
    time.sleep(0.3)
    made[1].__exit__(None, None, None)
    began = time.monotonic()
    said = together([made[0], made[2]], lambda world: world.barrier("save"))
    assert time.monotonic() - began < 3
    for text in said:
        assert "for rank 1 in vain: rank 1 (process " in text and "): train, step 57, heard " in text
    assert "rank 2 (process" in made[0].whereabouts() and ": start, heard 0 s ago" in made[0].whereabouts()


def test_silence_grows_from_the_last_heartbeat():
    store = HashStore()
    first, second, never = (StoreWorld(store, rank, 3, rank, 3, beat=0.05) for rank in range(3))
    with first:
        with second:
            time.sleep(0.6)
            assert first.silence(1) < 0.4 < first.silence(2)
        time.sleep(0.6)
        assert 0.3 < first.silence(1) < first.silence(2)
        assert first.silence(0) == 0.0 and never.silence(0) == 0.0


def test_word_of_a_failure_ends_the_waiting_at_once(worlds):
    made = worlds([HashStore()] * 3)

    def work(world: StoreWorld) -> Any:
        if world.rank == 2:
            time.sleep(0.1)
            return world.fail("the disk is full.")
        return world.gather("news", 0)

    began = time.monotonic()
    assert together(made, work) == ["rank 2 failed: the disk is full."] * 2 + [None]
    assert time.monotonic() - began < 2
    made[0].fail("another reason.")
    assert made[1].whereabouts().startswith("rank 2 failed: the disk is full.; rank 0 (process ")


def test_ranks_at_different_places_find_out(worlds):
    made = worlds([HashStore()] * 2)
    said = together(made, lambda world: world.barrier(["left", "right"][world.rank]))
    assert said[0] == "rank 1 has come to 'right' where rank 0 is at 'left'."
    assert said[1] == "rank 0 has come to 'left' where rank 1 is at 'right'."


def test_a_store_whose_keeper_is_gone_is_an_error(worlds):
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = worlds([HashStore(), TCPStore("127.0.0.1", keeper.port)], timeout=5.0)
    del keeper
    assert "lost the ranks' common store" in together(made[1:], lambda world: world.barrier("end"))[0]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such time limit")
def test_connections_to_a_store_end_when_its_machine_is_out_of_reach_for_the_time_limit():
    """A cut network takes machines to show; here it is what the kernel was told."""
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("127.0.0.1", keeper.port)
    with StoreWorld(PrefixStore("run", store), 0, 1, 0, 1, timeout=7.0):
        limits = []
        for entry in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as connection:
                if str(keeper.port) in str(connection.getpeername()):
                    limits.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert sorted(limits) == [0, 7000, 7000], "the keeper's own; the world's two, one of them the heart's"
