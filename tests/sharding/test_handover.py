"""Slices go from trainer to trainer in the versions that the plan says."""

import threading

import pytest
import torch

from kgexp.sharding.handover import HandoverBacking, Place
from kgexp.sharding.rowfiles import Layout
from kgexp.sharding.slices import Slices
from kgexp.storage.blobs import LocalBlobs

SLICES = Slices((0, 3, 7))
LAYOUT = Layout("entity", {"weight": (torch.float64, (2,))})
pytestmark = pytest.mark.timeout(30)


class Others:
    """The other trainers, whose answer is a function of the test."""

    rank, ranks, common = 0, 2, False

    def take(self, k, place, into, keep=False):
        return self.answer(k, place, into)


def rows(k, value):
    return {"weight": torch.full((SLICES.size(k), 2), value, dtype=torch.float64)}


def drawn(ids, into):
    into["weight"].fill_(-1.0)


def backing(blobs=None):
    return HandoverBacking(LAYOUT, SLICES, drawn, blobs, Others())


@pytest.mark.parametrize("files", [True, False])
def test_rows_can_still_be_taken_while_their_next_version_is_waited_for(files, tmp_path):
    """The other one trains the slice in between."""
    mine = backing(LocalBlobs(tmp_path) if files else None)
    mine.store(1, rows(1, 1.0))
    mine.open_to_others(5, [1])

    def answer(k, place, into):
        assert (k, place.token) == (1, 6)
        offered = mine.offer(1, 5, 1.0)
        assert torch.equal(offered["weight"], rows(1, 1.0)["weight"])
        mine.give_up(1, 5)
        into["weight"].fill_(2.0)
        return 64, None

    mine.trainers.answer = answer
    mine.expect({1: Place(1, 6)})
    into = rows(1, 0.0)
    assert mine.fetch(1, into) and torch.equal(into["weight"], rows(1, 2.0)["weight"])
    assert mine.held == [1] and mine.received == 64
    if files:
        assert not list(tmp_path.glob("rows/*")), "what was given up is deleted"


def test_a_slice_is_offered_once_its_unit_is_complete():
    mine = backing()
    mine.store(0, rows(0, 1.0))
    assert mine.offer(0, 3, 0.01) is None
    mine.open_to_others(2, [0])
    assert mine.offer(0, 3, 0.01) is None, "another unit trained it"
    timer = threading.Timer(0.05, mine.open_to_others, [3, [0]])
    timer.start()
    assert torch.equal(mine.offer(0, 3, 20.0)["weight"], rows(0, 1.0)["weight"])
    assert torch.equal(mine.offer(1, 0, 0.0)["weight"], rows(1, -1.0)["weight"]), "as it was drawn"


def test_what_somebody_else_asks_too_late_is_not_given_up():
    mine = backing()
    mine.store(0, rows(0, 1.0))
    mine.open_to_others(4, [0])
    mine.give_up(0, 3)
    assert mine.held == [0] and mine.offer(0, 4, 0.0) is not None
