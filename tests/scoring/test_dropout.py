"""Dropout: what is dropped, how often, and that nobody's way of working shows in it."""

import pytest
import torch
from plain_losses import LOSSES, Sgd
from plain_step import factors

from kgexp.models.complex import ComplEx
from kgexp.randomness import Purpose, key
from kgexp.scoring.batch import Batch, Rows
from kgexp.scoring.dropout import Dropout, dropped
from kgexp.scoring.kvsall import KvsAll
from kgexp.scoring.onevsall import OneVsAll
from kgexp.train.queries import QueryBatches
from kgexp.train.step import Objective, train_step


@pytest.mark.parametrize("d", [1, 4, 7])
def test_the_kept_numbers_are_those_of_the_hash(d):
    counters = torch.tensor([[3, 0], [2**31, 3]])
    rows = torch.randn(2, 2, d, dtype=torch.float64)
    for stream in (5, 2**64 - 1):
        expected = torch.stack([torch.stack([factors(0.4, stream, c, d) for c in pair]) for pair in counters.tolist()])
        assert torch.equal(dropped(rows, counters, 0.4, stream), rows * expected)


@pytest.mark.parametrize("p", [0.0, 1e-4, 0.3, 0.999])
def test_numbers_are_dropped_with_the_probability_and_keep_their_mean(p):
    n, d = 20_000, 11
    kept = dropped(torch.ones(n, d, dtype=torch.float64), torch.arange(n), p, stream=9)
    assert set(kept.unique().tolist()) <= {0.0, 1 / (1 - round(p * 65536) / 65536)}
    deviation = (p / (1 - p) / n) ** 0.5  # of the mean of a column
    assert (kept.mean(dim=0) - 1).abs().max() <= 4.5 * deviation + 1e-4
    if p == 0.3:  # columns are independent of each other, and rows of their neighbours
        for one, two in ((kept[:, 0], kept[:, 1]), (kept[:, 0], kept[:, 4]), (kept[1:, 2], kept[:-1, 2])):
            assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 4.5 / n**0.5


def test_a_probability_next_to_one_keeps_something_finite():
    assert dropped(torch.ones(9, 5), torch.arange(9), 1 - 1e-9, stream=0).isfinite().all()


def stepped(world, scoring, batch, step=4, seed=3, **dropout):
    """The loss of a step, and both tables after it."""
    objective = Objective(ComplEx(8, **dropout), scoring, LOSSES["softmax"], None, world.m, seed)
    tables = world.table("entity", Sgd(1.0)), world.table("relation", Sgd(1.0))
    value = train_step(objective, *tables, Batch(step, batch.triples, None, batch.examples, batch.targets))
    return torch.cat([value[None], *(table.state_tensors()["weight"].reshape(-1) for table in tables)])


@pytest.mark.parametrize("technique", [OneVsAll, KvsAll])
def test_blocks_do_not_change_what_is_dropped(world, technique):
    sides = technique().sides
    batch = Batch(4, world.triples)
    if technique.by_query:
        batch = QueryBatches(world.graph, sides, 20, 0)(4)
    both = {"entity_dropout": 0.4, "relation_dropout": 0.2}
    whole = stepped(world, technique(), batch, **both)
    torch.testing.assert_close(stepped(world, technique(block=7), batch, **both), whole, rtol=1e-12, atol=1e-13)


def test_every_step_seed_and_kind_of_row_drops_its_own(world):
    batch = Batch(4, world.triples)
    results = [
        stepped(world, OneVsAll(), batch, **arguments)
        for arguments in (
            {},
            {"entity_dropout": 0.4},
            {"entity_dropout": 0.4, "step": 5},
            {"entity_dropout": 0.4, "seed": 4},
            {"relation_dropout": 0.4},
            {"relation_dropout": 0.4, "step": 5},
            {"relation_dropout": 0.4, "seed": 4},
        )
    ]
    assert len({result[0].item() for result in results}) == len(results)


def test_a_relation_is_dropped_afresh_in_every_triple(world):
    one, other = (
        dropped(world.relations[:1].expand(2, -1), torch.arange(2), 0.5, stream=stream).eq(0) for stream in (1, 2)
    )
    assert not torch.equal(one[0], one[1]) and not torch.equal(one, other)


def test_relations_that_are_all_candidates_are_dropped_by_their_number(world):
    model = ComplEx(8, relation_dropout=0.4)
    rows = Rows({}, {}, {}, {}, world.relations)
    kept = Dropout(model, seed=3, step=5).drop(Batch(5, world.triples), {}, rows).every_relation
    stream = key(3, Purpose.RELATION_DROPOUT, 5)
    assert torch.equal(kept, world.relations * torch.stack([factors(0.4, stream, i, 8) for i in range(2 * world.m)]))
