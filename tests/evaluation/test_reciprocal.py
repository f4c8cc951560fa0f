"""Relations of the two directions: a head query finds the row of its own relation's inverse, and is counted for it."""

import pytest
import torch

from kgexp.data.sides import Side
from kgexp.evaluation.evaluator import Evaluator

CONFIG = {
    "protocol": "full",
    "candidates": 30,
    "queries": 17,
    "block": 40,
    "max_valid_triples": None,
    "objective": "realistic/both/mrr",
}


def conjugate(rows):
    return torch.cat([rows[:, : rows.shape[1] // 2], -rows[:, rows.shape[1] // 2 :]], dim=1)


#: The row with which the tail query of (t, r⁻¹, ?) scores as the head query of (?, r, t) does.
INVERSES = {"complex": conjugate, "distmult": torch.clone, "transe_l1": torch.neg, "rotate": torch.neg}


@pytest.fixture
def evaluate(made):
    graph = made.random_graph(61, 4, (300, 40, 80))

    def command(kind, reciprocal, relations=None):
        model, entity, relation = made.random_model(kind, graph, reciprocal=reciprocal, dtype=torch.float64)
        relation = relation if relations is None else made.table("relation", relations)
        return Evaluator(CONFIG, model, entity, relation, graph).evaluate("test"), relation.state_tensors()["weight"]

    return command


@pytest.mark.parametrize("kind", INVERSES)
def test_inverses_that_say_the_same_give_the_same_metrics(evaluate, kind):
    plain, relations = evaluate(kind, False)
    inverses = INVERSES[kind](relations)
    same, _ = evaluate(kind, True, torch.cat([relations, inverses]))
    assert same.metrics == plain.metrics
    assert same.relations == plain.relations
    wrong, _ = evaluate(kind, True, torch.cat([relations, inverses.roll(1, 0)]))
    for row, other in zip(plain.relations, wrong.relations, strict=True):
        assert (row.relation, row.tail_mrr) == (other.relation, other.tail_mrr)
        assert row.head_mrr != other.head_mrr


@pytest.mark.parametrize("kind", INVERSES)
def test_every_relation_and_side_has_a_row_that_leads_back(made, kind):
    graph = made.random_graph(9, 5, (40, 5, 5))
    ids = torch.arange(5)
    model, _, relation = made.random_model(kind, graph)
    found = torch.cat([model.relation_rows(ids, side, 5) for side in (Side.TAIL, Side.HEAD)])
    assert found.tolist() == list(range(relation.num_rows)) and torch.equal(found % 5, ids.repeat(2))
    model, _, relation = made.random_model(kind, graph, reciprocal=False)
    assert all(torch.equal(model.relation_rows(ids, side, relation.num_rows), ids) for side in Side)
