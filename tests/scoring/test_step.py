"""Gradients of every technique, loss, regulariser and model against float64 autograd of a plain loop over triples."""

import itertools
import math

import pytest
import torch

from kgexp.data.sides import Side
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.optim.base import RowOptimizer
from kgexp.scoring.batch import Batch
from kgexp.scoring.losses import Logistic, Softmax
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevsall import OneVsAll
from kgexp.scoring.regularizers import N3
from kgexp.train.step import Objective, train_step

TECHNIQUES = {
    "1vsAll": OneVsAll(),
    "1vsAll in blocks": OneVsAll(block=17),
    "1vsAll one by one": OneVsAll(block=1),
    "1vsAll tails": OneVsAll(sides="tail"),
    "negatives": NegativeSampling(negatives=7, chunk_size=5),
    "negatives in one chunk": NegativeSampling(negatives=60, chunk_size=100),
    "negatives heads": NegativeSampling(negatives=7, chunk_size=5, sides="head"),
}


MODELS = {
    "complex": ComplEx(8),
    "complex one way": ComplEx(8, reciprocal=False),
    "distmult": DistMult(8),
    "transe l1": TransE(8, norm="l1", margin=2.0),
    "transe l2 one way": TransE(8, reciprocal=False),
    "rotate": RotatE(8, margin=2.0),
    "rotate one way": RotatE(8, reciprocal=False),
    "rotate l2": RotatE(8, norm="l2"),
}


class Sgd(RowOptimizer):
    """w - g: what a step did to a table is its gradient."""

    def state_shapes(self, rows, dim):
        return {}

    def step_rows(self, weight, state, index, grad, lr):
        weight.index_add_(0, index, grad, alpha=-lr)

    def step_all(self, weight, state, grad, lr):
        weight.sub_(grad, alpha=lr)


def plain_loss(loss, scores, answer):
    """The definition, for the scores of all candidates and the place of the answer among them."""
    if isinstance(loss, Softmax):
        return -torch.log(torch.exp(scores[answer]) / torch.exp(scores).sum())
    others = torch.cat([scores[:answer], scores[answer + 1 :]])
    return -torch.log(torch.sigmoid(scores[answer])) - torch.log(torch.sigmoid(-others)).mean()


def plain_step(world, objective, batch, entities, relations):
    model, scoring = objective.model, objective.scoring
    drawn = scoring.candidates(batch, world.n, objective.seed)
    total, penalty, examples = 0.0, 0.0, 0
    for i, (h, r, t) in enumerate(batch.triples.tolist()):
        for side in scoring.sides:
            answer = t if side is Side.TAIL else h
            if drawn:  # the answer and its chunk's negatives
                candidates = [answer, *drawn[side][i // scoring.chunk_size].tolist()]
                place = 0
            else:
                candidates, place = list(range(world.n)), answer
            scores = torch.stack([world.score(model, entities, relations, side, h, r, t, c) for c in candidates])
            weight = 1.0 if batch.weights is None else batch.weights[i]
            total = total + weight * plain_loss(objective.loss, scores, place)
            for row in (entities[h], entities[t], relations[world.relation_row(model, r, side)]):
                if isinstance(model, RotatE) and len(row) == 4:
                    penalty = penalty + weight * 4  # a rotation's components have modulus one
                elif isinstance(model, (ComplEx, RotatE)):
                    re, im = row.chunk(2)
                    penalty = penalty + weight * (re**2 + im**2).sqrt().pow(3).sum()
                else:
                    penalty = penalty + weight * row.abs().pow(3).sum()
            examples += 1
    return total / examples, penalty / examples


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("loss", [Softmax(), Logistic()], ids=["softmax", "logistic"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_is_the_gradient_of_a_plain_loop(world, technique, loss, model, weighted):
    objective = Objective(model, TECHNIQUES[technique], loss, N3(0.05), world.m, seed=3)
    batch = Batch(4, world.triples, world.weights if weighted else None)
    entity, relation = world.table("entity", Sgd(1.0)), world.table("relation", Sgd(1.0), model)
    value = train_step(objective, entity, relation, batch)

    entities = world.entities.clone().requires_grad_()
    relations = world.relation_rows(model).clone().requires_grad_()
    expected, penalty = plain_step(world, objective, batch, entities, relations)
    (expected + 0.05 * penalty).backward()
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)
    for table, before in ((entity, entities), (relation, relations)):
        gradient = before.detach() - table.state_tensors()["weight"]
        torch.testing.assert_close(gradient, before.grad, rtol=1e-9, atol=1e-12)


def test_gradient_buffers_start_afresh_each_step(world):
    objective = Objective(ComplEx(8), OneVsAll(block=20), Softmax(), None, world.m, seed=3)
    batch = Batch(0, world.triples)
    entity, relation = world.table("entity", Sgd(0.0)), world.table("relation", Sgd(0.0))
    train_step(objective, entity, relation, batch)  # a learning rate of zero
    second = world.table("entity", Sgd(1.0))
    second.state_tensors()["weight"].copy_(entity.state_tensors()["weight"])
    train_step(objective, second, world.table("relation", Sgd(1.0)), batch)
    before = entity.state_tensors()["weight"].clone()
    entity._optimizer.lr = 1.0
    train_step(objective, entity, relation, batch)
    assert torch.equal(entity.state_tensors()["weight"], second.state_tensors()["weight"])
    assert not torch.equal(entity.state_tensors()["weight"], before)


def test_negatives_touch_only_their_rows(world):
    scoring = NegativeSampling(negatives=3, chunk_size=100)
    batch = Batch(0, world.triples)
    objective = Objective(ComplEx(8), scoring, Softmax(), None, world.m, seed=0)
    entity, relation = world.table("entity"), world.table("relation")
    train_step(objective, entity, relation, batch)
    drawn = torch.cat([ids for chunks in scoring.candidates(batch, world.n, 0).values() for ids in chunks])
    touched = set(torch.cat([world.triples[:, 0], world.triples[:, 2], drawn]).tolist())
    changed = (entity.state_tensors()["weight"] != world.entities).any(dim=1).nonzero().squeeze(1).tolist()
    assert set(changed) == touched and len(touched) < world.n


def test_negatives_depend_on_step_seed_side_and_chunk_alone(world):
    scoring = NegativeSampling(negatives=20, chunk_size=5)
    long, short = Batch(7, world.triples), Batch(7, world.triples[:5])
    for side in Side:
        drawn = scoring.candidates(long, world.n, 1)[side]
        assert [len(ids) for ids in drawn] == [20, 20, 20]
        assert torch.equal(drawn[0], scoring.candidates(short, world.n, 1)[side][0])
    streams = [
        tuple(scoring.candidates(Batch(step, world.triples), world.n, seed)[side][chunk].tolist())
        for step, seed, side, chunk in itertools.product([7, 8], [1, 2], Side, [0, 1])
    ]
    assert len(set(streams)) == len(streams)


def test_a_weight_of_two_is_two_copies(world):
    objective = Objective(ComplEx(8), OneVsAll(), Softmax(), N3(0.1), world.m, seed=0)
    tables = []
    for triples, weights in (
        (world.triples[[0, 0, 2]], torch.ones(3, dtype=torch.float64)),
        (world.triples[[0, 5, 2]], torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)),
    ):
        entity = world.table("entity", Sgd(1.0))
        train_step(objective, entity, world.table("relation", Sgd(1.0)), Batch(0, triples, weights))
        tables.append(entity.state_tensors()["weight"])
    torch.testing.assert_close(*tables, rtol=1e-12, atol=1e-14)


def test_extreme_scores_stay_finite(world):
    world.entities *= 1e3
    for technique, loss in itertools.product(TECHNIQUES.values(), (Softmax(), Logistic())):
        objective = Objective(DistMult(8), technique, loss, None, world.m, seed=0)
        entity = world.table("entity")
        value = train_step(objective, entity, world.table("relation"), Batch(0, world.triples))
        assert math.isfinite(value.item())
        assert entity.state_tensors()["weight"].isfinite().all()


def test_n3_has_a_gradient_at_zero(world):
    world.entities.zero_()
    world.relations.zero_()
    objective = Objective(ComplEx(8), OneVsAll(), Softmax(), N3(0.1), world.m, seed=0)
    entity = world.table("entity")
    train_step(objective, entity, world.table("relation"), Batch(0, world.triples))
    assert entity.state_tensors()["weight"].isfinite().all()
