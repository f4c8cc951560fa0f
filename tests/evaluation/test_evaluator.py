import pytest
import torch

from kgexp.errors import NonFiniteError
from kgexp.evaluation.evaluator import Evaluator

CONFIG = {
    "protocol": "full",
    "candidates": 30,
    "splits": ["valid", "test"],
    "every_epochs": 5,
    "every_steps": 0,
    "queries": 64,
    "block": 40,
    "max_valid_triples": None,
    "objective": "realistic/both/mrr",
}


@pytest.fixture
def case(made):
    graph = made.random_graph(101, 3, (900, 30, 60))
    return (*made.random_model("complex", graph), graph)


def test_valid_is_filtered_without_test_and_with_it(case):
    valid = Evaluator(CONFIG, *case).evaluate("valid")
    plain, with_test = (
        valid.metrics[f"valid/{name}/realistic/both/mrr"] for name in ("filtered", "filtered_with_test")
    )
    assert 0 < plain < with_test
    assert valid.seconds > 0
    assert sum(row.triples for row in valid.relations) == valid.metrics["valid/triples"]


def test_test_has_one_filter(case):
    names = {name.split("/")[1] for name in Evaluator(CONFIG, *case).evaluate("test").metrics if name.count("/") > 2}
    assert names == {"filtered"}


@pytest.mark.parametrize(
    "objective, sign",
    [
        ("realistic/both/mrr", 1),
        ("realistic/tail/mr", -1),
        ("pessimistic/both/median", -1),
        ("realistic/head/hits@3", 1),
    ],
)
def test_the_objective_is_among_the_metrics(case, objective, sign):
    for protocol, segment in (("full", "filtered"), ("sampled", "sampled@30(uniform)")):
        evaluator = Evaluator(CONFIG | {"objective": objective, "protocol": protocol}, *case)
        assert evaluator.objective_name == f"valid/{segment}/{objective}"
        assert evaluator.objective_name in evaluator.evaluate("valid").metrics
        assert evaluator.objective_sign == sign


def test_sampled_metrics_share_no_name_with_full_ones(case):
    full, sampled = (
        Evaluator(CONFIG | {"protocol": protocol}, *case).evaluate("test").metrics for protocol in ("full", "sampled")
    )
    assert {name for name in full.keys() & sampled.keys() if name.endswith("mrr")} == set()


def test_an_empty_split_has_no_metrics(made):
    graph = made.graph([(0, 0, 1), (1, 0, 2)])
    evaluation = Evaluator(CONFIG, *made.random_model("complex", graph), graph).evaluate("valid")
    assert (evaluation.metrics, evaluation.relations) == ({}, [])


def test_a_sample_of_valid_is_said(case):
    said = []
    evaluator = Evaluator(CONFIG | {"max_valid_triples": 10}, *case, said.append)
    evaluation = evaluator.evaluate("valid")
    assert evaluation.metrics["valid/triples"] == 10
    assert evaluation.warnings == said
    assert any("10 of its" in line for line in said)
    assert evaluator.evaluate("test").metrics["test/triples"] > 10


def test_rows_that_are_not_finite_fail_before_the_ranking(case):
    model, entity, relation, graph = case
    entity.state_tensors()["weight"][4:6] = torch.nan
    seen = []
    evaluator = Evaluator(CONFIG, model, entity, relation, graph, progress=lambda *at: seen.append(at))
    with pytest.raises(NonFiniteError, match="2 entity rows"):
        evaluator.evaluate("test")
    assert seen == []
