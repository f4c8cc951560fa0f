"""Trainers take each other's slices over the wire, or are told of the file that has them."""

from contextlib import closing

import pytest
import torch
from rank_threads import as_ranks

from kgexp.sharding.handover import HandoverBacking, Place, Withdrawn
from kgexp.sharding.rowfiles import Layout
from kgexp.sharding.slices import Slices
from kgexp.sharding.trainers import ServedTrainers
from kgexp.storage.blobs import LocalBlobs

SLICES = Slices((0, 700, 1401))
LAYOUT = Layout("entity", {"weight": (torch.float64, (9,)), "sum": (torch.float64, ())})
pytestmark = pytest.mark.timeout(60)


def drawn(ids, into):
    into["weight"].copy_(torch.linspace(-1, 1, 9 * len(ids), dtype=torch.float64).view(-1, 9) + ids.start)
    into["sum"].fill_(0.1)


def two(work, wire=None, folder=None, common=True):
    """What `work(world, trainers, backing)` gives on two ranks."""

    def rank(world):
        with closing(ServedTrainers(world, 30.0, wire)) as trainers:
            trainers.common = common
            backing = HandoverBacking(LAYOUT, SLICES, drawn, folder and LocalBlobs(folder), trainers)
            trainers.serve(backing)
            world.barrier("served")
            result = work(world, trainers, backing)
            world.barrier("the end")
            return result

    return as_ranks(2, rank)


def expected(k=1):
    rows = LAYOUT.empty(SLICES.size(k))
    drawn(SLICES.ids(k), rows)
    return rows


@pytest.mark.parametrize("wire", [None, torch.bfloat16])
def test_rows_arrive_as_they_are_or_rounded_at_a_quarter_of_the_size(wire):
    def work(world, trainers, backing):
        if world.rank == 0:
            backing.store(1, expected())
            backing.open_to_others(7, [1])
            return None
        rows = LAYOUT.empty(SLICES.size(1))
        backing.expect({1: Place(0, 7)})
        assert backing.fetch(1, rows), "it is nowhere else now"
        assert backing.held == [1] and backing.received == 701 * 10 * 8
        return rows

    sent, rows = [], None

    def counting(world, trainers, backing):
        result = work(world, trainers, backing)
        world.barrier("taken")
        sent.append((world.rank, trainers.sent_bytes, backing.held))
        return result

    _, rows = two(counting, wire)
    for name, exact in expected().items():
        rounded = exact if wire is None else exact.to(wire).to(torch.float64)
        assert torch.equal(rows[name], rounded)
    (_, bytes, held), _ = sorted(sent)
    size = 701 * 10 * (8 if wire is None else 2)
    assert size < bytes < size + 1000 and held == []


@pytest.mark.parametrize("common", [True, False])
def test_a_file_that_both_reach_is_not_sent(common, tmp_path):
    def work(world, trainers, backing):
        if world.rank == 0:
            backing.store(1, expected())
            backing.open_to_others(7, [1])
        world.barrier("stored")
        rows = LAYOUT.empty(SLICES.size(1))
        if world.rank == 1:
            backing.expect({1: Place(0, 7)})
            assert backing.fetch(1, rows) is not common
            assert backing.received == (0 if common else 701 * 10 * 8)
        world.barrier("taken")
        return rows, len(list(tmp_path.glob("rows/*"))), backing.held

    _, (rows, files, held) = two(work, folder=tmp_path, common=common)
    assert all(torch.equal(rows[name], exact) for name, exact in expected().items())
    assert files == (1 if common else 0) and held == [1]


def test_what_is_only_copied_is_kept():
    def work(world, trainers, backing):
        if world.rank == 0:
            backing.store(0, expected(0))
        world.barrier("stored")
        if world.rank == 1:
            for _ in range(2):
                rows = LAYOUT.empty(SLICES.size(0))
                trainers.take(0, Place(0), rows, keep=True)
                assert torch.equal(rows["weight"], expected(0)["weight"])
        world.barrier("copied")
        return backing.held

    assert two(work) == [[0], []]


def test_whoever_waits_is_let_go_at_a_stop():
    def work(world, trainers, backing):
        if world.rank == 1:
            backing.expect({1: Place(0, 9)})  # of a unit that is never complete
            with trainers.halted(), pytest.raises(Withdrawn):
                backing.fetch(1, LAYOUT.empty(SLICES.size(1)))
        return backing.held

    assert two(work) == [[], []]
