"""Gradients of every technique, loss, regulariser and model against float64 autograd of a plain loop over triples."""

import itertools
import math
from functools import partial

import pytest
import torch
from plain_losses import LOSSES, Sgd
from plain_step import assert_steps_are_plain

from kgexp.data.sides import Side
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.scoring import negatives, products
from kgexp.scoring import technique as techniques
from kgexp.scoring.batch import Batch
from kgexp.scoring.losses import Logistic, MarginRanking, SelfAdversarial, Softmax
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevsall import OneVsAll
from kgexp.scoring.onevssample import OneVsSample
from kgexp.scoring.regularizers import N3
from kgexp.scoring.targets import Targets
from kgexp.sharding.local import LocalTable
from kgexp.team import Team
from kgexp.train.step import Objective, train_step

TECHNIQUES = {
    "1vsAll": OneVsAll(),
    "1vsAll in blocks": OneVsAll(block=17),
    "1vsAll, the last alone": OneVsAll(block=52),
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
SAMPLED_LOSSES = [name for name in LOSSES if "smoothed" not in name]


MODELS = {
    "complex": ComplEx,
    "complex one way": partial(ComplEx, reciprocal=False),
    "distmult": DistMult,
    "transe l1": partial(TransE, norm="l1", margin=2.0),
    "transe l2 one way": partial(TransE, reciprocal=False, norm="l2"),
    "rotate": partial(RotatE, margin=2.0),
    "rotate one way": partial(RotatE, reciprocal=False),
    "rotate l2": partial(RotatE, norm="l2"),
}


# Every technique with every loss for one model; every model with a technique of each kind. Weights and dropout in turn.
PAIRS = [
    (technique, loss, "complex")
    for technique, loss in itertools.product(TECHNIQUES, LOSSES)
    if "1vsAll" in technique or loss in SAMPLED_LOSSES
] + list(
    itertools.product(["1vsAll in blocks", "negatives", "own negatives"], ["softmax", "logistic"], list(MODELS)[1:])
)
CASES = [
    (*pair, *flags)
    for pair, flags in zip(PAIRS, itertools.cycle(itertools.product([True, False], [True, False])), strict=False)
]


def sampled(loss, answers, negatives):
    return loss.sampled_(answers, negatives.clone(), (negatives > -math.inf).sum(dim=1))


def test_losses_by_hand():
    answers, negatives = torch.tensor([1.0, 0.0]).double(), torch.tensor([[0.5, -2.0], [1.0, -math.inf]]).double()
    softplus = [math.log1p(math.exp(x)) for x in (-1.0, 0.5, -2.0, 0.0, 1.0)]
    weight = 1 / (1 + math.exp(2 * -2.5))  # of 0.5 beside -2, at temperature 2
    expected = {
        Softmax(): [math.log(math.e + math.exp(0.5) + math.exp(-2)) - 1, math.log(1 + math.e)],
        Logistic(): [softplus[0] + (softplus[1] + softplus[2]) / 2, softplus[3] + softplus[4]],
        Logistic(balanced=False): [sum(softplus[:3]) / 3, (softplus[3] + softplus[4]) / 2],
        SelfAdversarial(2.0): [
            softplus[0] + weight * softplus[1] + (1 - weight) * softplus[2],
            softplus[3] + softplus[4],
        ],
        MarginRanking(2.0): [1.5 / 2, 3.0],
    }
    for loss, values in expected.items():
        torch.testing.assert_close(
            loss.sampled_(answers, negatives.clone(), (negatives > -math.inf).sum(dim=1)).losses,
            torch.tensor(values).double(),
            rtol=1e-7,
            atol=0,
        )


@pytest.mark.parametrize("loss", SAMPLED_LOSSES)
def test_an_example_without_negatives_keeps_its_answer_and_a_finite_gradient(loss):
    found = sampled(LOSSES[loss], torch.tensor([0.5]), torch.full((1, 2), -math.inf))
    assert found.by_answers.isfinite().all() and torch.equal(found.by_negatives, torch.zeros(1, 2))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_score_that_is_nan_is_a_loss_that_is_nan(world, loss):
    world.entities[17, 0] = math.nan
    objective = Objective(DistMult(8), OneVsAll(block=20), LOSSES[loss], None, world.m, seed=0)
    assert train_step(objective, world.table("entity"), world.table("relation"), Batch(0, world.triples)).isnan()


@pytest.mark.parametrize(("technique", "loss", "model", "weighted", "dropout"), CASES)
def test_a_step_is_the_gradient_of_a_plain_loop(world, technique, loss, model, weighted, dropout):
    model = MODELS[model](8)
    if dropout:
        model.entity_dropout, model.relation_dropout = 0.3, 0.0 if model.relations_are_angles else 0.4
    TECHNIQUES[technique].prepare(world.graph)
    objective = Objective(model, TECHNIQUES[technique], LOSSES[loss], None, world.m, seed=3)
    assert_steps_are_plain(world, objective, Batch(4, world.triples, world.weights if weighted else None))


@pytest.mark.parametrize("name", [name for name in TECHNIQUES if "1vsAll" not in name])
def test_neither_pieces_nor_threads_change_a_step(world, name, monkeypatch):
    scoring = TECHNIQUES[name]
    scoring.prepare(world.graph)
    objective = Objective(ComplEx(8, entity_dropout=0.3), scoring, Logistic(), N3(0.1), world.m, seed=3)
    batch, found = Batch(4, world.triples, world.weights), []
    for numbers, threads in ((1 << 18, 1), (16, 1), (40, 3)):
        monkeypatch.setattr(techniques, "_NUMBERS", numbers)
        monkeypatch.setattr(negatives, "_OWN", 1000)
        entity, relation = world.table("entity", Sgd(1.0)), world.table("relation", Sgd(1.0))
        entity.team = Team(threads)
        loss = train_step(objective, entity, relation, batch)
        found.append([loss, *(table.state_tensors()["weight"] for table in (entity, relation))])
    for other in found[1:]:
        for value, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["softmax", "logistic", "margin ranking"])
def test_neither_threads_nor_what_was_left_change_a_step_over_all_entities(world, name, monkeypatch):
    for constant, small in (("_LEAST", 1), ("_MOST", 7), ("_SCORES", 1), ("_ROWS", 11)):
        monkeypatch.setattr(products, constant, small)
    scoring, found = OneVsAll(), []
    objective = Objective(ComplEx(8, entity_dropout=0.3), scoring, LOSSES[name], None, world.m, seed=3)
    # A step of fewer queries in between.
    for threads, triples in ((1, world.triples), (1, world.triples[:9]), (3, world.triples)):
        tables = world.table("entity", Sgd(1.0)), world.table("relation", Sgd(1.0))
        tables[0].team = Team(threads)
        loss = train_step(objective, *tables, Batch(4, triples))
        found.append([loss, *(table.state_tensors()["weight"] for table in tables)])
    for value, expected in zip(found[2], found[0], strict=True):
        assert torch.equal(value, expected)


def test_losses_over_all_entities_that_wait_for_their_gradient_do_not_share_memory(world):
    scoring, loss, model = OneVsAll(), Softmax(), ComplEx(8)
    queries = torch.randn(2, 13, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def value(queries, table, answer):
        targets = Targets.one_each(torch.full((13,), answer), world.n)
        return scoring.losses(queries, targets, [13], model, loss, table, lambda ids, rows: rows).sum()

    def gradients(together):
        table, leaves = world.table("entity", Sgd(1.0)), [part.clone().requires_grad_() for part in queries]
        losses = [partial(value, leaf, table, answer) for answer, leaf in enumerate(leaves)]
        if together:
            (losses[0]() + losses[1]()).backward()
        else:
            for one in losses:
                one().backward()
        return [leaf.grad for leaf in leaves]

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_an_answer_far_ahead_of_all_others_has_a_finite_gradient(world):
    for scale in (1.0, 1e2):  # in float32, whose exponentials end at 88
        rows = torch.zeros(world.n, 8)
        rows[5], rows[6] = scale, -scale
        leaf, table = rows[[5, 6]].clone().requires_grad_(), LocalTable("entity", rows, {}, Sgd(1.0))
        targets = Targets.one_each(torch.tensor([5, 5]), world.n)
        given = (leaf, targets, [2], DistMult(8), Softmax(), table, lambda ids, rows: rows)
        OneVsAll().losses(*given).sum().backward()
        scores = (leaf.detach() @ rows.mT).double()
        expected = (scores.softmax(1) - torch.nn.functional.one_hot(targets.entity, world.n)) @ rows.double()
        torch.testing.assert_close(leaf.grad.double(), expected, rtol=1e-5, atol=1e-5)


def test_gradient_buffers_start_afresh_each_step(world):
    objective = Objective(ComplEx(8), OneVsAll(block=20), Softmax(), None, world.m, seed=3)
    batch = Batch(0, world.triples)
    optimizer = Sgd(0.0)
    entity, relation = world.table("entity", optimizer), world.table("relation", Sgd(0.0))
    train_step(objective, entity, relation, batch)  # a learning rate of zero
    second = world.table("entity", Sgd(1.0))
    second.state_tensors()["weight"].copy_(entity.state_tensors()["weight"])
    train_step(objective, second, world.table("relation", Sgd(1.0)), batch)
    before = entity.state_tensors()["weight"].clone()
    optimizer.lr = 1.0
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
    for technique, loss in {case[:2] for case in CASES}:
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
