"""The collectives, over real gloo groups: parts of any size, in the order of the ranks."""

import time

import pytest
import torch
from rank_threads import as_ranks

from kgexp.errors import RankError
from kgexp.sharding.exchange import Exchange, GroupExchange
from kgexp.sharding.groups import gloo_group
from kgexp.train.meter import LossMeter

CPU = torch.device("cpu")
SIZES = [[2, 0, 3], [0, 0, 1], [4, 4, 4], [0, 0, 0]]


def over_ranks(work, ranks=3, wire_dtype=None, timeout=20.0):
    def rank(world):
        group = gloo_group(world.store, "test", world.rank, world.size, timeout, world.one_machine)
        return work(GroupExchange(group, CPU, world, wire_dtype))

    return as_ranks(ranks, rank)


def values(rank, rows, dtype=torch.float64):
    return torch.arange(2 * rows, dtype=dtype).reshape(rows, 2) + 100 * rank


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_parts_are_gathered_in_the_order_of_the_ranks(sizes, dtype):
    expected = torch.cat([values(rank, size, dtype) for rank, size in enumerate(sizes)])
    for got in over_ranks(lambda x: x.all_gather(values(x.rank, sizes[x.rank], dtype), sizes)):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_rank_gets_the_sum_of_its_part(sizes):
    total = sum(values(rank, sum(sizes)) for rank in range(3))
    parts = over_ranks(lambda x: x.reduce_scatter(values(x.rank, sum(sizes)), sizes))
    for part, expected in zip(parts, total.split(sizes), strict=True):
        assert torch.equal(part, expected)


def test_a_sum_is_in_place_and_has_the_same_bits_everywhere():
    def work(exchange):
        mine = torch.randn(501, generator=torch.Generator().manual_seed(exchange.rank))
        assert exchange.all_sum(mine) is mine
        return mine

    one, two, three = over_ranks(work)
    assert torch.equal(one, two) and torch.equal(two, three)


#: Rows that each rank sends to each.
SENT = [[1, 0, 2], [0, 0, 0], [3, 1, 0]]


@pytest.mark.parametrize("wire_dtype", [None, torch.bfloat16], ids=str)
def test_rows_go_to_their_rank_and_are_rounded_where_that_is_wanted(wire_dtype):
    def work(exchange):
        rows = torch.rand(sum(SENT[exchange.rank]), 5, generator=torch.Generator().manual_seed(exchange.rank))
        got = exchange.rows(rows, SENT[exchange.rank], [sent[exchange.rank] for sent in SENT])
        return rows, got, exchange.sent

    ranks = over_ranks(work, wire_dtype=wire_dtype)
    for rank, (_, got, sent) in enumerate(ranks):
        parts = [rows.split(SENT[other])[rank] for other, (rows, _, _) in enumerate(ranks)]
        expected = torch.cat(parts)
        assert torch.equal(got, expected if wire_dtype is None else expected.bfloat16().float())
        assert sent == sum(SENT[rank]) - SENT[rank][rank]
    assert wire_dtype is None or not torch.equal(ranks[0][1], torch.cat([ranks[0][0][:1], ranks[2][0][:3]]))


def test_who_waits_in_vain_says_who_is_missing():
    def work(exchange):
        if exchange.rank:
            exchange.all_sum(torch.ones(1))
        else:
            time.sleep(3)

    with pytest.raises(
        RankError, match=r"rank 1 lost another rank in an exchange .*rank 0 \(process \d+ on .*\): start"
    ):
        over_ranks(work, ranks=2, timeout=1.0)


def test_over_one_rank_nothing_happens():
    alone, x = Exchange(), torch.ones(3, 2)
    assert alone.all_gather(x, [3]) is x and alone.reduce_scatter(x, [3]) is x and alone.all_sum(x) is x


def test_the_losses_of_all_ranks_add_up_whenever_they_are_looked_at():
    def work(exchange):
        meter = LossMeter(str, pending=3, exchange=exchange)
        for step in range(5):
            meter.add(step, 10 + step, torch.tensor(float(step + 100 * exchange.rank)))
        state = meter.state_dict()
        return meter.mean("steps"), meter.last, state

    triples = [10 + step for step in range(5)]
    losses = [sum(step + 100 * rank for rank in range(3)) for step in range(5)]
    mean = sum(x * n for x, n in zip(losses, triples, strict=True)) / sum(triples)
    for found, last, state in over_ranks(work):
        assert found == pytest.approx(mean) and last == losses[-1]
        assert state["triples"] == dict.fromkeys(("steps", "epoch", "visit"), sum(triples))
