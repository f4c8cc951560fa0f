from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from rich.console import Console

from kgexp.errors import NonFiniteError
from kgexp.evaluation.categories import CATEGORIES, relation_categories, unseen
from kgexp.evaluation.counts import RankCounts, distinct
from kgexp.evaluation.metrics import metrics, tie_warnings
from kgexp.evaluation.report import relation_rows, summary, write_tsv
from kgexp.protocol import OBJECTIVES


def make_counts(triples, greater, equal, candidates, **changes):
    arrays = (np.asarray(x, dtype=np.int64) for x in (greater, equal, candidates))
    greater, equal, candidates = ({"filtered": x} for x in arrays)
    fixed = {"total": len(triples), "duplicates": 0, "in_train": 0, "nonfinite": 0, "nonfinite_rows": {}}
    triples = np.asarray(triples, dtype=np.int64).reshape(-1, 3)
    return RankCounts("test", triples, greater, equal, candidates, **(fixed | changes))


@pytest.fixture
def graph(made):
    # r0 is 1-1, r1 is N-1 (two heads a tail), r2 is 1-N, r3 is N-N, r4 is only in test; entity 9 as well.
    train = [(0, 0, 1), (2, 0, 3), (0, 1, 4), (1, 1, 4), (5, 2, 0), (5, 2, 1)]
    train += [(h, 3, t) for h in (0, 1) for t in (2, 3)]
    return made.graph(train, test=[(9, 4, 0)], n=10, m=5)


TRIPLES = [(0, 0, 3), (2, 0, 1), (1, 3, 2), (0, 1, 4), (9, 4, 0)]
#         head, tail queries
GREATER = [(0, 1), (2, 0), (9, 0), (0, 0), (4, 8)]
EQUAL = [(0, 1), (0, 0), (0, 3), (0, 0), (2, 1)]
CANDIDATES = [(10, 10), (9, 8), (10, 10), (7, 5), (10, 10)]


@pytest.fixture
def values(graph):
    return metrics(make_counts(TRIPLES, GREATER, EQUAL, CANDIDATES), graph)


def test_realistic_ranks_by_hand(values):
    # Realistic ranks of head queries: 1, 3, 10, 1, 6; of tail queries: 2.5, 1, 2.5, 1, 9.5.
    prefix = "test/filtered/realistic"
    head = (1 + Fraction(1, 3) + Fraction(1, 10) + 1 + Fraction(1, 6)) / 5
    tail = (Fraction(2, 5) + 1 + Fraction(2, 5) + 1 + Fraction(2, 19)) / 5
    assert values[f"{prefix}/head/mrr"] == pytest.approx(float(head), abs=1e-15)
    assert values[f"{prefix}/tail/mrr"] == pytest.approx(float(tail), abs=1e-15)
    assert values[f"{prefix}/both/mrr"] == pytest.approx(float((head + tail) / 2), abs=1e-15)
    assert values[f"{prefix}/head/mr"] == 21 / 5
    assert values[f"{prefix}/tail/mr"] == 16.5 / 5
    assert values[f"{prefix}/head/median"] == 3
    assert values[f"{prefix}/both/median"] == 2.5
    assert [values[f"{prefix}/both/hits@{k}"] for k in (1, 3, 10)] == [0.4, 0.7, 1.0]
    # E[MR] of the tail queries: (11 + 9 + 11 + 6 + 11) / 2 / 5 = 4.8.
    assert values[f"{prefix}/tail/amri"] == pytest.approx(1 - (3.3 - 1) / (4.8 - 1), abs=1e-15)


def test_the_other_tie_rules_by_hand(values):
    # Optimistic: 1, 3, 10, 1, 5 and 2, 1, 1, 1, 9; pessimistic: 1, 3, 10, 1, 7 and 3, 1, 4, 1, 10.
    assert values["test/filtered/optimistic/both/mr"] == 34 / 10
    assert values["test/filtered/pessimistic/both/mr"] == 41 / 10
    assert values["test/filtered/optimistic/both/hits@1"] == 0.5
    assert values["test/filtered/pessimistic/both/hits@3"] == 0.6
    assert "test/filtered/pessimistic/both/amri" not in values


def test_groups_by_hand(values):
    prefix = "test/filtered/realistic"
    assert values[f"{prefix}/both/1-1/mrr"] == pytest.approx((1 + 1 / 3 + 0.4 + 1) / 4, abs=1e-15)
    assert values[f"{prefix}/head/N-1/mrr"] == 1
    assert values[f"{prefix}/tail/N-N/mrr"] == pytest.approx(0.4, abs=1e-15)
    assert f"{prefix}/both/1-N/mrr" not in values
    assert [values[f"test/{name}/triples"] for name in CATEGORIES] == [2, 0, 1, 1]
    assert (values["test/triples"], values["test/unseen"], values["test/duplicates"]) == (5, 1, 0)
    assert values[f"{prefix}/head/seen/mrr"] == pytest.approx((1 + 1 / 3 + 0.1 + 1) / 4, abs=1e-15)
    by_relation = [(1 + 1 / 3) / 2, 0.1, 1, 1 / 6]
    assert values[f"{prefix}/head/macro_relation/mrr"] == pytest.approx(np.mean(by_relation), abs=1e-15)


def test_macro_over_queries_counts_each_query_once(graph):
    # Two triples of the same tail query (0, r1, ?) with ranks 1 and 4; head queries all differ, all rank 1.
    counts = make_counts([(0, 1, 4), (0, 1, 5), (2, 1, 6)], [(0, 0), (0, 3), (0, 1)], np.zeros((3, 2)), [(9, 9)] * 3)
    values = metrics(counts, graph)
    tail = [(1 + 1 / 4) / 2, 1 / 2]
    assert values["test/filtered/realistic/tail/macro_query/mrr"] == pytest.approx(np.mean(tail))
    assert values["test/filtered/realistic/tail/mrr"] == pytest.approx((1 + 1 / 4 + 1 / 2) / 3)
    assert values["test/filtered/realistic/both/macro_query/mrr"] == pytest.approx(np.mean([*tail, 1, 1, 1]))


def test_every_objective_is_a_metric(values):
    assert all(f"test/filtered/{objective}" in values for objective in OBJECTIVES)


def test_relation_categories(made):
    train = [(0, 0, 1), (2, 0, 3), (0, 1, 4), (1, 1, 4), (5, 2, 0), (5, 2, 1)]
    train += [(h, 3, t) for h in (0, 1) for t in (2, 3)] * 2
    # r4: three triples with two heads: 1.5 tails a head is already N; three tails: one head a tail.
    train += [(0, 4, 1), (0, 4, 2), (1, 4, 3)]
    graph = made.graph(train, n=6, m=6)
    names = [CATEGORIES[c] if c >= 0 else "-" for c in relation_categories(graph)]
    assert names == ["1-1", "N-1", "1-N", "N-N", "1-N", "-"]


def test_unseen_entities(graph):
    assert unseen(graph, np.array([(0, 0, 1), (9, 0, 1), (0, 0, 8), (5, 4, 0)])).tolist() == [
        False,
        True,
        True,
        False,
    ]


def test_distinct_keeps_the_first_of_each():
    triples = [(3, 0, 1), (0, 0, 1), (3, 0, 1), (3, 1, 1), (0, 0, 1)]
    assert distinct(np.array(triples)).tolist() == [[3, 0, 1], [0, 0, 1], [3, 1, 1]]
    assert distinct(np.zeros((0, 3), np.int32)).shape == (0, 3)


def test_ties_are_warned_of(values, graph):
    assert len(tie_warnings(values)) == 1
    assert "test/filtered" in tie_warnings(values)[0]
    untied = metrics(make_counts(TRIPLES, GREATER, np.zeros((5, 2)), CANDIDATES), graph)
    assert tie_warnings(untied) == []


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"nonfinite": 3}, ["3 scores of test", "NaN"]),
        ({"nonfinite_rows": {"entity": 2, "relation": 1}}, ["2 entity rows and 1 relation rows"]),
    ],
)
def test_numbers_that_are_not_finite_are_an_error(graph, changes, words):
    counts = replace(make_counts(TRIPLES, GREATER, EQUAL, CANDIDATES), **changes)
    with pytest.raises(NonFiniteError) as error:
        metrics(counts, graph)
    assert all(word in str(error.value) for word in words)


def test_no_triples_no_metrics(graph):
    empty = np.zeros((0, 2))
    assert metrics(make_counts([], empty, empty, empty), graph) == {}


def test_ranks_of_more_entities_than_float32_counts(graph):
    counts = make_counts([(0, 0, 1)], [(2**24 + 1, 2**31)], [(1, 0)], [(2**33, 2**33)])
    assert metrics(counts, graph)["test/filtered/realistic/head/mr"] == 2**24 + 2.5


def test_relations_table(graph, tmp_path):
    counts = make_counts(TRIPLES, GREATER, EQUAL, CANDIDATES)
    rows = relation_rows(counts, graph, "filtered")
    assert [(row.relation, row.triples, row.category) for row in rows] == [
        ("r0", 2, "1-1"),
        ("r1", 1, "N-1"),
        ("r3", 1, "N-N"),
        ("r4", 1, "-"),
    ]
    assert rows[0].head_mrr == pytest.approx((1 + 1 / 3) / 2)
    assert rows[0].both_mrr == pytest.approx((1 + 1 / 3 + 0.4 + 1) / 4)
    assert rows[0].both_hits_at_10 == 1.0
    write_tsv(tmp_path / "relations.tsv", rows)
    lines = [line.split("\t") for line in (tmp_path / "relations.tsv").read_text().splitlines()]
    assert lines[0][:4] == ["relation", "triples", "category", "head_mrr"]
    assert [line[0] for line in lines[1:]] == ["r0", "r1", "r3", "r4"]
    assert float(lines[1][3]) == rows[0].head_mrr


def test_summary_shows_every_side(values):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(summary(values))
    text = capture.get()
    assert f"{values['test/filtered/realistic/both/mrr']:.4f}" in text
    assert [side in text for side in ("both", "head", "tail")] == [True] * 3
    assert "1-1" not in text
