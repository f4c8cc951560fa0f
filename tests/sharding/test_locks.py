"""Trainers that share the units of a pass: threads here, each with its own `Locks` on a common store."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from kgexp.errors import RankError
from kgexp.sharding.ledger import Unit
from kgexp.sharding.locks import Locks

pytestmark = pytest.mark.timeout(30)

PAIRS = [Unit(number, pair) for number, pair in enumerate(combinations(range(12), 2))]


class Ranks:
    """`Locks` of each rank; `silent` says how long each one has been, as all see it."""

    def __init__(self, shared, lease=60.0, timeout=300.0):
        self.silent = [0.0] * len(shared)
        self.locks = [
            Locks(PrefixStore("locks", store), rank, self.silent.__getitem__, lease, timeout, lambda: "all are asleep")
            for rank, store in enumerate(shared)
        ]

    def begin(self, number, units, tree=False, places=None, done=()):
        self.locks[0].new_pass(number, units, tree, places or {}, done)
        for locks in self.locks[1:]:
            locks.join(number, units)


class Graph:
    """What trainers do to slices, which finds out by itself when two hold one at once."""

    def __init__(self, slices):
        self.held = [threading.Lock() for _ in range(slices)]
        self.started, self.finished, self.leases, self.touched = [], [], [], set()
        self.places = {}  # as the trainers left them

    def train(self, locks, rank, tree=False):
        """A whole pass; the place of a slice is the rank that had it last and the lease that it had it under."""
        held, places = None, {}
        while True:
            counted, held = locks.advance(held, places)
            assert counted
            if held is None:
                return len(self.finished)
            slices = held.unit.slices
            assert all(self.held[number].acquire(blocking=False) for number in slices)
            assert held.places == {number: self.places[number] for number in slices if number in self.places}
            assert not tree or not self.started or self.touched & set(slices)
            self.touched.update(slices)
            self.started.append(held.unit.number)
            self.leases.append(held.lease)
            time.sleep(0.0005 * (1 + held.unit.number % 3))
            places = {number: [rank, held.lease] for number in slices}
            self.places.update(places)
            self.finished.append(held.unit.number)
            for number in slices:
                self.held[number].release()


def stores(kind, folder, size):
    if kind == "hash":
        return [HashStore()] * size
    if kind == "file":
        return [FileStore(str(folder / "store"), -1) for _ in range(size)]
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return [keeper] + [TCPStore("127.0.0.1", keeper.port) for _ in range(size - 1)]


def train(ranks, graph, tree=False):
    """One pass by all ranks; how many units were finished when each saw its end."""

    def work(rank):
        try:
            return graph.train(ranks.locks[rank], rank, tree)
        except BaseException:
            ranks.silent[rank] = math.inf  # the others do not wait for it
            raise

    with ThreadPoolExecutor(len(ranks.locks)) as pool:
        return list(pool.map(work, range(len(ranks.locks))))


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_every_unit_is_trained_once_and_no_slice_by_two_at_once(tmp_path, kind):
    ranks, graph = Ranks(stores(kind, tmp_path, 3)), Graph(12)
    for turn in range(2):
        ranks.begin(turn, PAIRS, tree=turn == 0, places=graph.places)
        assert train(ranks, graph, tree=turn == 0) == [66 * (turn + 1)] * 3
    assert sorted(graph.started) == sorted([*range(66)] * 2)
    assert len(set(graph.leases)) == len(graph.leases)
    assert ranks.locks[2].places(1) == graph.places and len(graph.places) == 12


def test_many_ranks_share_one_pass():
    store = HashStore()
    ranks, graph = Ranks([store] * 8), Graph(12)
    ranks.begin(0, PAIRS, tree=True)
    assert train(ranks, graph, tree=True) == [66] * 8
    assert sorted(graph.started) == list(range(66))
    assert store.num_keys() <= 1 + 8  # the ledger, and what wakes each rank


def test_places_follow_the_rows():
    ranks = Ranks([HashStore()])
    units = [Unit(0, (0, 1)), Unit(1, (1, 2))]
    ranks.begin(0, units, places={1: "file"})
    (locks,) = ranks.locks
    _, grant = locks.advance(None)
    assert (grant.unit.number, grant.places) == (0, {1: "file"})
    _, grant = locks.advance(grant, {0: "mine", 1: {"rank": 0}})
    assert (grant.unit.number, grant.places) == (1, {1: {"rank": 0}})
    assert locks.advance(grant, {2: None}) == (True, None)
    assert locks.places(0) == {0: "mine", 1: {"rank": 0}, 2: None}


def test_units_that_are_done_already_are_not_handed_out():
    ranks = Ranks([HashStore()])
    ranks.begin(0, PAIRS[:4], done=[0, 1, 3])
    _, grant = ranks.locks[0].advance(None)
    assert grant.unit.number == 2 and ranks.locks[0].advance(grant) == (True, None)
    ranks.begin(1, PAIRS[:4], done=range(4))
    assert ranks.locks[0].advance(None) == (True, None)


@pytest.mark.parametrize(
    ("units", "next_of_both"),
    [
        ([(0, 1)], [None, None]),  # the end is there when all units are done, not when all are handed out
        ([(0, 1), (0, 2), (1, 3)], [1, 2]),
    ],
)
def test_a_completion_wakes_who_waits_for_it(units, next_of_both):
    ranks = Ranks([HashStore()] * 2)
    ranks.begin(0, [Unit(number, slices) for number, slices in enumerate(units)])
    _, grant = ranks.locks[0].advance(None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ranks.locks[1].advance, None)
        time.sleep(0.2)
        assert not waiting.done()
        began = time.monotonic()
        answers = [ranks.locks[0].advance(grant), waiting.result(timeout=10)]
        assert time.monotonic() - began < 0.5
    assert [grant and grant.unit.number for _, grant in answers] == next_of_both


def test_a_rank_that_is_seen_to_have_ended_is_replaced_within_seconds():
    ranks = Ranks([HashStore()] * 2)
    ranks.begin(0, PAIRS[:1])
    ranks.locks[0].advance(None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ranks.locks[1].advance, None)
        time.sleep(0.1)
        ranks.silent[0] = math.inf
        assert waiting.result(timeout=5)[1].unit == PAIRS[0]


def test_the_unit_of_a_silent_rank_is_done_by_another_and_its_own_completion_counts_for_nothing():
    ranks = Ranks([HashStore()] * 2, lease=0.4)
    ranks.begin(0, [Unit(0, (0, 1)), Unit(1, (1, 2))], places={0: "old", 1: "old"})
    late, diligent = ranks.locks
    _, lost = late.advance(None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(diligent.advance, None)
        time.sleep(0.3)
        assert not waiting.done()  # both have slice 1
        ranks.silent[0] = 0.5
        _, grant = waiting.result(timeout=5)
    assert grant.unit == lost.unit and grant.lease != lost.lease and grant.places == {0: "old", 1: "old"}
    ranks.silent[0] = 0.0
    assert diligent.advance(grant, {0: "new", 1: "new"})[1].unit.number == 1
    assert diligent.places(0) == {0: "new", 1: "new"}
    with ThreadPoolExecutor(1) as pool:
        waking = pool.submit(late.advance, lost, {0: "stale", 1: "stale"})
        time.sleep(0.2)
        assert not waking.done()
        ranks.silent[1] = 0.5  # now the other one
        counted, grant = waking.result(timeout=5)
    assert not counted and grant.unit.number == 1 and grant.places == {1: "new"}
    assert late.advance(grant, {2: "here"}) == (True, None)
    assert late.places(0) == {0: "new", 1: "new", 2: "here"}


def test_a_rank_that_ends_before_it_wakes_the_others_does_not_hold_them_up():
    class Mute:
        """A store whose user ends after it has changed the ledger."""

        def __init__(self, store):
            self.store = store

        def set(self, key, value):
            pass

        def __getattr__(self, name):
            return getattr(self.store, name)

    shared = PrefixStore("locks", HashStore())
    mute, other = [
        Locks(store, rank, lambda rank: 0.0, 1.0, 60.0, str) for rank, store in enumerate([Mute(shared), shared])
    ]
    mute.new_pass(0, PAIRS[:1], False, {})
    other.join(0, PAIRS[:1])
    _, grant = mute.advance(None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.advance, None)
        time.sleep(0.1)
        assert mute.advance(grant) == (True, None)
        assert waiting.result(timeout=5) == (True, None)


def test_a_rank_that_nobody_may_replace_is_waited_for_only_so_long():
    ranks = Ranks([HashStore()] * 2, lease=math.inf, timeout=0.2)
    ranks.begin(0, PAIRS[:1])
    ranks.locks[0].advance(None)
    ranks.silent[0] = 0.3
    with pytest.raises(RankError, match=r"^rank 1 waited in vain for rank 0's unit: all are asleep\. Look.*=auto\.$"):
        ranks.locks[1].advance(None)


def test_a_pass_that_is_not_there_is_an_error():
    ranks = Ranks([HashStore()] * 2)
    ranks.locks[1].join(0, PAIRS)
    with pytest.raises(RankError, match=r"rank 1 found no pass where it wanted pass 0: all are asleep\."):
        ranks.locks[1].advance(None)
    ranks.begin(1, PAIRS)
    with pytest.raises(RankError, match="rank 1 wanted pass 0 where pass 1 is"):
        ranks.locks[1].places(0)


def test_a_store_that_ends_while_somebody_waits_is_an_error():
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = Ranks([TCPStore("127.0.0.1", keeper.port) for _ in range(2)])
    ranks.begin(0, PAIRS[:1])
    ranks.locks[0].advance(None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ranks.locks[1].advance, None)
        time.sleep(0.2)
        del keeper
        with pytest.raises(RankError, match=r"rank 1 lost the ranks' common store \(.*\): all are asleep\."):
            waiting.result(timeout=10)


def test_a_rank_has_one_unit_at_a_time_and_speaks_for_its_slices_alone():
    ranks = Ranks([HashStore()])
    ranks.begin(0, PAIRS)
    (locks,) = ranks.locks
    _, grant = locks.advance(None)
    with pytest.raises(ValueError, match="must be completed before it takes another"):
        locks.advance(None)
    with pytest.raises(ValueError, match=r"places has slices \[11\]"):
        locks.advance(grant, {11: "there"})
