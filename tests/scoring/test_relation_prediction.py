"""Relation prediction against float64 autograd of a plain loop over the examples."""

import pytest
import torch
from plain_losses import Sgd

from kgexp.data.sides import Side
from kgexp.models import pieces
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.scoring.batch import Batch
from kgexp.scoring.kvsall import KvsAll
from kgexp.scoring.losses import Softmax
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevsall import OneVsAll
from kgexp.scoring.relation_prediction import RelationPrediction
from kgexp.train.queries import QueryBatches
from kgexp.train.step import Objective, train_step

MODELS = {"complex": ComplEx, "distmult": DistMult, "transe": TransE, "rotate": RotatE}
TECHNIQUES = {
    "1vsAll": OneVsAll(),
    "heads alone": OneVsAll(sides="head"),
    "KvsAll": KvsAll(),
    "negatives": NegativeSampling(negatives=7, chunk_size=5),
    "a side each": NegativeSampling(negatives=7, chunk_size=5, sides="bernoulli"),
}


def plain_loss(world, model, batch, sides, entities, relations):
    total, examples = 0.0, 0
    for side in sides:
        chosen = range(len(batch)) if batch.examples is None else batch.examples[side].tolist()
        for i in chosen:
            h, r, t = batch.triples[i].tolist()
            if model.reciprocal and side is Side.HEAD:
                h, r, t = t, r + world.m, h
            scores = [
                model.score_triples(entities[h][None], relations[row][None], entities[t][None])[0]
                for row in range(2 * world.m if model.reciprocal else world.m)
            ]
            weight = 1.0 if batch.weights is None else batch.weights[i]
            total = total + weight * (torch.stack(scores).logsumexp(0) - scores[r])
            examples += 1
    return total / examples


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize(
    ("technique", "model"),
    [("1vsAll", model) for model in MODELS] + [(technique, "complex") for technique in list(TECHNIQUES)[1:]],
)
def test_it_adds_the_gradient_of_a_plain_loop(world, technique, model, reciprocal, monkeypatch):
    monkeypatch.setitem(pieces.NUMBERS, "cpu", 3 * 26 * 8)  # three relations at a time
    model, scoring = MODELS[model](8, reciprocal=reciprocal), TECHNIQUES[technique]
    scoring.prepare(world.graph)
    if scoring.by_query:
        world.graph.relation_weights = torch.linspace(0.5, 2, world.m, dtype=torch.float64).numpy()
        batch = QueryBatches(world.graph, scoring.sides, 20, 0, torch.float64)(4)
    else:
        batch = Batch(4, world.triples, world.weights)
    values, moved = [], []
    for auxiliary in (None, RelationPrediction(0.3)):
        entity = world.table("entity", Sgd(1.0))
        relation = world.table("relation", Sgd(1.0), model)
        if not reciprocal:
            relation = type(relation)("relation", relation.state_tensors()["weight"][: world.m].clone(), {}, Sgd(1.0))
        objective = Objective(model, scoring, Softmax(), None, world.m, 3, auxiliary)
        values.append(train_step(objective, entity, relation, batch))
        moved.append([table.state_tensors()["weight"] for table in (entity, relation)])

    entities, relations = world.entities.clone().requires_grad_(), world.relation_rows(model).clone().requires_grad_()
    expected = 0.3 * plain_loss(world, model, scoring.choose(batch, 3), scoring.sides, entities, relations)
    expected.backward()
    torch.testing.assert_close(values[1] - values[0], expected.detach(), rtol=1e-10, atol=0)
    gradients = entities.grad, relations.grad[: len(moved[0][1])]
    for without, with_it, gradient in zip(*moved, gradients, strict=True):
        torch.testing.assert_close(without - with_it, gradient, rtol=1e-9, atol=1e-12)
    assert gradients[1].abs().sum(dim=1).gt(0).all(), "every relation is a candidate"
