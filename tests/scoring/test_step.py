"""Gradients of every technique, loss, regulariser and model against float64 autograd of a plain loop over triples."""

import itertools
import math

import pytest
import torch

from kgexp.data.sides import Side
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.optim.base import RowOptimizer
from kgexp.scoring.batch import Batch
from kgexp.scoring.losses import Logistic, MarginRanking, SelfAdversarial, Softmax
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevsall import OneVsAll
from kgexp.scoring.onevssample import OneVsSample
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
    "own negatives": NegativeSampling(negatives=7, chunk_size=1, mask="equal"),
    "negatives, known masked": NegativeSampling(60, chunk_size=5, degree_exponent=0.75, mask="known"),
    "negatives of a side each": NegativeSampling(negatives=7, chunk_size=4, sides="bernoulli", mask="known"),
    "1vsSample": OneVsSample(samples=20),
    "1vsSample of all": OneVsSample(samples=1000, mask="known"),
}
LOSSES = {
    "softmax": Softmax(),
    "smoothed softmax": Softmax(label_smoothing=0.3),
    "logistic": Logistic(),
    "equal logistic": Logistic(balanced=False),
    "smoothed logistic": Logistic(label_smoothing=0.3),
    "smoothed equal logistic": Logistic(balanced=False, label_smoothing=0.3),
    "self-adversarial": SelfAdversarial(0.7),
    "margin ranking": MarginRanking(1.3),
}
SAMPLED_LOSSES = [name for name in LOSSES if "smoothed" not in name]
CASES = [(t, k) for t, k in itertools.product(TECHNIQUES, LOSSES) if "1vsAll" in t or k in SAMPLED_LOSSES]


class Sgd(RowOptimizer):
    """w - g: what a step did to a table is its gradient."""

    def state_shapes(self, rows, dim):
        return {}

    def step_rows(self, weight, state, index, grad, lr):
        weight.index_add_(0, index, grad, alpha=-lr)

    def step_all(self, weight, state, grad, lr):
        weight.sub_(grad, alpha=lr)


def plain_loss(loss, scores, answers):
    """The definition, for the scores of all candidates and the places of the answers among them."""
    n, count = len(scores), len(answers)
    smoothing = getattr(loss, "label_smoothing", 0.0)
    others = [c for c in range(n) if c not in answers]
    if isinstance(loss, Softmax):
        target = torch.full((n,), smoothing / n, dtype=scores.dtype)
        target[answers] += (1 - smoothing) / count
        return -(target * torch.log(torch.exp(scores) / torch.exp(scores).sum())).sum()
    if isinstance(loss, Logistic):
        labels = torch.full((n,), smoothing / n, dtype=scores.dtype)
        labels[answers] += 1 - smoothing
        each = -labels * torch.log(torch.sigmoid(scores)) - (1 - labels) * torch.log(torch.sigmoid(-scores))
        return each[answers].mean() + each[others].mean() if loss.balanced else each.mean()
    if isinstance(loss, SelfAdversarial):
        weights = torch.exp(loss.temperature * scores[others]).detach()
        each = -torch.log(torch.sigmoid(-scores[others])) * weights / weights.sum()
        return -torch.log(torch.sigmoid(scores[answers])).mean() + each.sum()
    return torch.clamp(loss.margin - scores[answers] + scores[others], min=0).mean()


def plain_step(world, objective, batch, entities, relations):
    model, scoring = objective.model, objective.scoring
    batch = scoring.choose(batch, objective.seed)
    drawn = scoring.candidates(batch, world.n, objective.seed)
    train = {tuple(triple) for triple in world.graph.train.triples.tolist()}
    total, penalty, examples = 0.0, 0.0, 0
    for i, (h, r, t) in enumerate(batch.triples.tolist()):
        for side in scoring.sides:
            chosen = list(range(len(batch))) if batch.examples is None else batch.examples[side].tolist()
            if i not in chosen:
                continue
            answer = t if side is Side.TAIL else h
            if drawn:  # the answer and its chunk's negatives
                negatives = drawn[side].ids[chosen.index(i) // scoring.chunk_size].tolist()
                if scoring.mask == "equal":
                    negatives = [e for e in negatives if e != answer]
                if scoring.mask == "known":
                    negatives = [e for e in negatives if ((h, r, e) if side is Side.TAIL else (e, r, t)) not in train]
                candidates, place = [answer, *negatives], 0
            else:
                candidates, place = list(range(world.n)), answer
            scores = world.scores(model, entities, relations, side, h, r, t, candidates)
            weight = 1.0 if batch.weights is None else batch.weights[i]
            total = total + weight * plain_loss(objective.loss, scores, [place])
            for row in (entities[h], entities[t], relations[world.relation_row(model, r, side)]):
                if isinstance(model, ComplEx):
                    re, im = row.chunk(2)
                    penalty = penalty + weight * (re**2 + im**2).sqrt().pow(3).sum()
                else:
                    penalty = penalty + weight * row.abs().pow(3).sum()
            examples += 1
    return total / examples, penalty / examples


@pytest.mark.parametrize(("technique", "loss"), CASES)
@pytest.mark.parametrize("model", [ComplEx(8), ComplEx(8, reciprocal=False), DistMult(8)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_is_the_gradient_of_a_plain_loop(world, technique, loss, model, weighted):
    TECHNIQUES[technique].prepare(world.graph)
    objective = Objective(model, TECHNIQUES[technique], LOSSES[loss], N3(0.05), world.m, seed=3)
    batch = Batch(4, world.triples, world.weights if weighted else None)
    entity, relation = world.table("entity", Sgd(1.0)), world.table("relation", Sgd(1.0))
    value = train_step(objective, entity, relation, batch)

    entities, relations = world.entities.clone().requires_grad_(), world.relations.clone().requires_grad_()
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
    drawn = torch.cat([part.ids.reshape(-1) for part in scoring.candidates(batch, world.n, 0).values()])
    touched = set(torch.cat([world.triples[:, 0], world.triples[:, 2], drawn]).tolist())
    changed = (entity.state_tensors()["weight"] != world.entities).any(dim=1).nonzero().squeeze(1).tolist()
    assert set(changed) == touched and len(touched) < world.n


def test_negatives_depend_on_step_seed_side_and_chunk_alone(world):
    scoring = NegativeSampling(negatives=20, chunk_size=5)
    long, short = Batch(7, world.triples), Batch(7, world.triples[:5])
    for side in Side:
        drawn = scoring.candidates(long, world.n, 1)[side].ids
        assert [len(ids) for ids in drawn] == [20, 20, 20]
        assert torch.equal(drawn[0], scoring.candidates(short, world.n, 1)[side].ids[0])
    streams = [
        tuple(scoring.candidates(Batch(step, world.triples), world.n, seed)[side].ids[chunk].tolist())
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
    for technique, loss in CASES:
        TECHNIQUES[technique].prepare(world.graph)
        objective = Objective(DistMult(8), TECHNIQUES[technique], LOSSES[loss], None, world.m, seed=0)
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
