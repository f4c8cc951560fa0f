import numpy as np
import pytest

from kgexp.data.known import TEST, TRAIN, VALID
from kgexp.data.sides import Side
from kgexp.evaluation.batches import batches
from kgexp.evaluation.metrics import metrics
from kgexp.evaluation.ranker import Ranker
from kgexp.evaluation.sampled import SampledRanker, sampled_name

ALL = TRAIN | VALID | TEST
NAME = sampled_name(50)


@pytest.fixture(params=["complex", "transe_l1", "transe_l2", "rotate"])
def case(made, request):
    graph = made.random_graph(101, 3, (900, 30, 60))
    return made.random_model(request.param, graph), graph


def rank(case, split="test", **changes):
    tables, graph = case
    return SampledRanker(*tables, graph, **({"candidates": 50, "seed": 3} | changes)).rank(split, {NAME: ALL})


def test_counts_are_those_of_the_drawn_entities(case):
    (model, entity, relation), graph = case
    ranker = SampledRanker(model, entity, relation, graph, candidates=50, seed=3)
    counts = ranker.rank("test", {NAME: ALL, "raw": 0})
    rows, relations = (table.state_tensors()["weight"].double() for table in (entity, relation))
    known = {tuple(t) for split in (graph.train, graph.valid, graph.test) for t in split.triples.tolist()}
    for side in Side:
        (batch,) = batches(graph.known, side, counts.triples, 512, range(101))
        drawn = np.empty((len(counts), 50), np.int64)
        drawn[batch.places] = ranker.draw(batch)
        for i, triple in enumerate(counts.triples.tolist()):
            r = triple[1] + graph.num_relations * (side is Side.HEAD)
            query = model.query(side, rows[triple[side.given]][None], relations[r][None])
            score = {e: model.rescore_pairs(query, rows[e][None]).item() for e in {*drawn[i], triple[side.column]}}
            answer = score[triple[side.column]]
            for name in counts.filters:
                others = [e for e in drawn[i].tolist() if e != triple[side.column]]
                if name == NAME:
                    others = [e for e in others if (triple[0], triple[1], e) not in known or side is Side.HEAD]
                    others = [e for e in others if (e, triple[1], triple[2]) not in known or side is Side.TAIL]
                assert counts.candidates[name][i, side] == len(others) + 1
                assert counts.greater[name][i, side] == sum(score[e] > answer for e in others)
                assert counts.equal[name][i, side] == sum(score[e] == answer for e in others)
    assert (counts.candidates[NAME] < counts.candidates["raw"]).any()


def test_the_draw_depends_on_seed_side_and_content_alone(case):
    counts = rank(case)
    for other in (rank(case, queries=1), rank(case, queries=7)):
        np.testing.assert_array_equal(other.greater[NAME], counts.greater[NAME])
        np.testing.assert_array_equal(other.candidates[NAME], counts.candidates[NAME])
    _, graph = case
    backwards = rank(case, graph.test.triples[::-1])
    place = {tuple(t): i for i, t in enumerate(backwards.triples.tolist())}
    order = [place[tuple(t)] for t in counts.triples.tolist()]
    np.testing.assert_array_equal(backwards.greater[NAME][order], counts.greater[NAME])
    assert (rank(case, seed=4).greater[NAME] != counts.greater[NAME]).any()


def test_sides_and_triples_draw_their_own(case):
    tables, graph = case
    ranker = SampledRanker(*tables, graph, candidates=50, seed=0)
    triples = graph.test.triples.astype(np.int64)[:20]
    head, tail = (ranker.draw(next(batches(graph.known, side, triples, 20, range(101)))) for side in Side)
    assert (head != tail).mean() > 0.9
    assert (head[0] != head[1]).mean() > 0.9
    assert len(np.unique(head)) > 95  # of 101, in 1000 draws


def test_the_name_says_that_it_is_a_sample(case):
    values = metrics(rank(case), case[1])
    assert 0 < values["test/sampled@50(uniform)/realistic/both/mrr"] <= 1
    assert not any("filtered" in name for name in values)


def test_a_graph_without_known_answers_in_the_sample(made):
    graph = made.graph([(0, 0, 1)], test=[(2, 0, 3)], n=5)
    counts = SampledRanker(*made.random_model("distmult", graph), graph, candidates=4, seed=0).rank("test", {NAME: ALL})
    assert (counts.candidates[NAME] <= 5).all()


def test_typed_queries_draw_from_the_type_of_the_answer(made):
    graph = made.typed_graph()
    ranker = SampledRanker(*made.random_model("complex", graph), graph, candidates=500, seed=3)
    drawn, draw = {}, ranker.draw

    def spy(batch):
        for (_, r, _), ids in zip(batch.triples.tolist(), draw(batch).tolist(), strict=True):
            drawn.setdefault((r, batch.side), set()).update(ids)
        return draw(batch)

    ranker.draw = spy
    counts = ranker.rank("test", {NAME: 0})
    for (r, side), ids in drawn.items():
        _, start, stop = graph.entities.types[graph.relation_types[r, side]]
        assert ids == set(range(start, stop))
    # Everything is drawn: the counts of what scores higher say the same as those against all of the type.
    full = Ranker(ranker.model, ranker.entity, ranker.relation, graph).rank("test", {NAME: 0})
    np.testing.assert_array_equal(counts.greater[NAME] == 0, full.greater[NAME] == 0)
