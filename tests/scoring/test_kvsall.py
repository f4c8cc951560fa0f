"""KvsAll against a plain loop over the distinct queries of train and their sets of answers."""

import numpy as np
import pytest
import torch
from plain_losses import LOSSES
from plain_step import assert_steps_are_plain

from kgexp.data.graph import Split
from kgexp.data.sides import Side
from kgexp.errors import ConfigError
from kgexp.models.complex import ComplEx
from kgexp.scoring.kvsall import KvsAll
from kgexp.train.queries import QueryBatches
from kgexp.train.step import Objective


def batches(world, sides=(Side.TAIL, Side.HEAD), size=20, seed=0):
    return QueryBatches(world.graph, sides, size, seed, torch.float64)


def answers_of(world, side):
    """Every query of train with the set of its answers."""
    found = {}
    for triple in world.graph.train.triples.tolist():
        found.setdefault((side, triple[side.given], triple[1]), set()).add(triple[side.column])
    return found


@pytest.mark.parametrize("sides", [(Side.TAIL, Side.HEAD), (Side.HEAD,)])
def test_an_epoch_holds_every_query_once_with_all_its_answers(world, sides):
    make = batches(world, sides)
    expected = {query: answers for side in sides for query, answers in answers_of(world, side).items()}
    assert make.triples == len(expected) and make.calendar.steps(1) == -(-len(expected) // 20)
    for epoch in range(2):
        seen = []
        for part in range(make.calendar.steps(1)):
            batch = make(epoch * make.calendar.steps(1) + part)
            assert torch.cat(list(batch.examples.values())).tolist() == list(range(len(batch)))
            for side, rows in batch.examples.items():
                for i in rows.tolist():
                    triple = batch.triples[i].tolist()
                    query = (side, triple[side.given], triple[1])
                    answers = batch.targets.entity[batch.targets.query == i].tolist()
                    assert len(answers) == batch.targets.counts[i] and set(answers) == expected[query]
                    assert triple[side.column] in answers
                    seen.append(query)
        assert sorted(seen) == sorted(expected)


def test_a_batch_of_queries_depends_on_its_step_alone(world):
    make = batches(world)
    in_order = [make(step).triples for step in range(30)]
    assert all(torch.equal(batches(world)(step).triples, in_order[step]) for step in (29, 3, 12))
    assert not torch.equal(batches(world, seed=1)(0).triples, in_order[0])


@pytest.mark.parametrize("block", [0, 17])
@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "margin ranking"])
def test_a_step_over_queries_is_the_gradient_of_a_plain_loop(world, loss, block):
    dropout = 0.3 if block else 0.0
    world.graph.relation_weights = np.linspace(0, 2, world.m) if block else None
    model = ComplEx(8, reciprocal=not block, entity_dropout=dropout, relation_dropout=dropout)
    objective = Objective(model, KvsAll(block=block), LOSSES[loss], None, world.m, seed=3)
    found = {query: answers for side in Side for query, answers in answers_of(world, side).items()}

    def answers(side, h, r, t):
        return found[side, (t, h)[side], r]

    assert_steps_are_plain(world, objective, batches(world)(4), answers)


def test_weights_are_refused(world):
    train = world.graph.train
    world.graph.train, world.graph.name = Split("train", train.triples, train.triples[:, 0] * 1.0), "mine"
    with pytest.raises(ConfigError, match=r"mine has weights.*scoring=onevsall"):
        batches(world)
