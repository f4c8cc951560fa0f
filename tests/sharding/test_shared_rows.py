"""What trainers change of rows that all of them have adds up, and no change is lost or counted twice."""

import threading

import pytest
import torch
from rank_threads import as_ranks

from kgexp.sharding.exchange import GroupExchange
from kgexp.sharding.groups import gloo_group
from kgexp.sharding.shared_rows import Asynchronous, Keeper, SharedRows, Synchronous
from kgexp.world import ALONE

CPU = torch.device("cpu")
NO_CODES = torch.zeros(3)
pytestmark = pytest.mark.timeout(60)


def copies(dtype=torch.float64, signed=("weight",)):
    """Of two tables, a trainer's tensors and what sees them as one vector."""
    tables = [
        {"weight": torch.tensor([[1.0, -2.0], [0.5, 4.0]], dtype=dtype), "sum": torch.tensor([1.0, 0.25], dtype=dtype)},
        {"weight": torch.tensor([[8.0]], dtype=dtype)},
    ]
    return tables, SharedRows(tables, [signed, ("weight",)], torch.float64 if dtype == torch.float64 else torch.float32)


def connected(world):
    group = gloo_group(world.store, "shared", world.rank, world.size, 30.0, True)
    return GroupExchange(group, CPU, world)


def test_changes_of_three_trainers_add_up():
    def work(world):
        tables, rows = copies()
        shared, codes = Synchronous(rows, connected(world)), []
        shared.begin()
        if world.rank < 2:  # the third one changes nothing
            tables[0]["weight"][0] += torch.tensor([0.5, 0.25]) * (1 + world.rank)
            tables[0]["sum"] += torch.tensor([2.0, 0.0])
        if world.rank == 1:
            tables[1]["weight"] -= 10.0
        codes.append(shared.exchange(torch.tensor([1.0, 0.0, float(world.rank)])).tolist())
        tables[0]["weight"][1, 1] *= 1 + world.rank  # 4, 8 and 12, from what is equal again
        codes.append(shared.exchange(NO_CODES).tolist())
        shared.finish()
        return tables, codes

    for tables, codes in as_ranks(3, work):
        assert tables[0]["weight"].tolist() == [[1.0 + 0.5 + 1.0, -2.0 + 0.25 + 0.5], [0.5, 4.0 + 0.0 + 4.0 + 8.0]]
        assert tables[0]["sum"].tolist() == [1.0 + 2.0 + 2.0, 0.25]
        assert tables[1]["weight"].tolist() == [[-2.0]]
        assert codes == [[3.0, 0.0, 3.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("signed", [("weight",), ("weight", "sum")])
def test_what_cannot_be_negative_does_not_become_so(signed):
    def work(world):
        tables, rows = copies(signed=signed)
        shared = Synchronous(rows, connected(world))
        shared.begin()
        tables[0]["sum"][1] /= 4  # each takes three quarters away
        tables[0]["weight"][1, 0] -= 0.5
        shared.exchange(NO_CODES)
        after = tables[0]["sum"][1].item()
        tables[0]["sum"][1] += 1.0
        shared.exchange(NO_CODES)
        return after, tables[0]["sum"][1].item(), tables[0]["weight"][1, 0].item()

    floor = 0.25 - 2 * 0.1875 if "sum" in signed else 0.0
    assert as_ranks(2, work) == [(floor, floor + 2.0, -0.5)] * 2


def test_copies_in_bfloat16_have_the_same_bits_after_each_point():
    def work(world):
        tables, rows = copies(torch.bfloat16)
        shared, seen = Synchronous(rows, connected(world)), []
        shared.begin()
        for point in range(5):
            generator = torch.Generator().manual_seed(10 * point + world.rank)
            for tensor in (tensor for table in tables for tensor in table.values()):
                tensor += 0.1 * torch.rand(tensor.shape, generator=generator)
            shared.exchange(NO_CODES)
            seen.append(torch.cat([tensor.flatten() for table in tables for tensor in table.values()]).clone())
        return torch.stack(seen)

    first, *others = as_ranks(3, work)
    assert all(torch.equal(first, other) for other in others) and len(first.unique()) > 15


class Gate:
    """A keeper whose answers come when they are let through."""

    def __init__(self):
        self.pushes, self.asked, self.open = [], threading.Event(), threading.Event()

    def keep(self, value):
        self.keeper = Keeper(value)

    def push(self, change):
        self.pushes.append(change.clone())
        answer = self.keeper.add(change)
        self.asked.set()
        assert self.open.wait(20)
        return answer


def test_what_is_trained_while_an_answer_is_under_way_stays():
    tables, rows = copies()
    gate, weight = Gate(), tables[1]["weight"]
    shared = Asynchronous(rows, gate, ALONE)
    shared.begin()
    weight += 1.0
    assert shared.exchange(NO_CODES).tolist() == [0.0, 0.0, 0.0]
    assert gate.asked.wait(20)
    gate.keeper.add(10.0 * torch.eye(7, dtype=torch.float64)[6])  # of another trainer, after the answer was made
    weight += 2.0  # while it is under way
    shared.exchange(NO_CODES)  # waits for nobody, and sends nothing
    assert len(gate.pushes) == 1 and weight.item() == 11.0
    gate.open.set()
    weight += 4.0
    shared.flush()
    shared.finish()
    assert [push[6].item() for push in gate.pushes] == [1.0, 6.0, 0.0]
    assert weight.item() == 8.0 + 1.0 + 2.0 + 4.0 + 10.0
    assert tables[0]["weight"].tolist() == [[1.0, -2.0], [0.5, 4.0]]


def test_asynchronous_copies_are_equal_in_the_end():
    """Counts add up exactly, whatever came in between."""
    keepers = {}

    class Kept:
        def keep(self, value):
            keepers[0] = Keeper(value)

        def push(self, change):
            return keepers[0].add(change)

    def work(world):
        tables, rows = copies()
        shared, ends = Asynchronous(rows, Kept(), world), []
        for _ in range(2):
            shared.begin()
            for _ in range(20 + world.rank):
                tables[0]["weight"] += 1.0
                tables[0]["sum"][world.rank % 2] += 0.5
                shared.exchange(NO_CODES)
            shared.flush()
            world.barrier("all is sent")
            shared.finish()
            ends.append(torch.cat([tensor.flatten() for table in tables for tensor in table.values()]).clone())
        return torch.stack(ends)

    steps = 20 + 21 + 22
    for ends in as_ranks(3, work):
        for number, end in enumerate(ends, 1):
            weight = [value + number * steps for value in (1.0, -2.0, 0.5, 4.0)]
            assert end.tolist() == [*weight, 1.0 + number * 21.0, 0.25 + number * 10.5, 8.0]
