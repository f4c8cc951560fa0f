"""Scores against hand-computed numbers and complex arithmetic; every form of a score agrees with the others."""

import itertools

import numpy as np
import pytest
import torch

from kgexp.data.sides import Side
from kgexp.models.base import fold
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.models.initial import DISTRIBUTIONS, initial_rows

MODELS = [ComplEx, DistMult]


def rows(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_distmult_by_hand():
    h, r, t = (torch.tensor([x], dtype=torch.float64) for x in ([1.0, 2.0], [3.0, -1.0], [5.0, 7.0]))
    assert DistMult(2).score_triples(h, r, t).tolist() == [1 * 3 * 5 - 2 * 1 * 7]


def test_complex_by_hand():
    # h = 1 + 2i, r = 3 - i, t = 5 + 7i: h r = 5 + 5i, times conj(t) = 60 - 10i
    h, r, t = (torch.tensor([x], dtype=torch.float64) for x in ([1.0, 2.0], [3.0, -1.0], [5.0, 7.0]))
    assert ComplEx(2).score_triples(h, r, t).tolist() == [60.0]


def test_complex_agrees_with_complex_arithmetic():
    h, r, t = (rows(9, 14, seed=i) for i in range(3))
    as_complex = [torch.complex(*x.chunk(2, dim=-1)) for x in (h, r, t)]
    expected = (as_complex[0] * as_complex[1] * as_complex[2].conj()).sum(-1).real
    torch.testing.assert_close(ComplEx(14).score_triples(h, r, t), expected)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("reciprocal", [True, False])
def test_all_forms_of_a_score_agree(model, reciprocal):
    model = model(6, reciprocal=reciprocal)
    entities, relations = rows(11, 6, seed=1), rows(10, 6, seed=2)
    triples = torch.tensor([[0, 1, 2], [3, 3, 3], [10, 0, 9]])
    h, r, t = triples.T
    tails = model.score_tails(entities[h], relations[r], entities)
    torch.testing.assert_close(tails[range(3), t], model.score_triples(entities[h], relations[r], entities[t]))
    inverse = relations[model.relation_rows(r, Side.HEAD, 5)]
    heads = model.score_heads(entities, inverse, entities[t])
    alone = model.score_pairs(model.query(Side.HEAD, entities[t], inverse), entities[h])
    torch.testing.assert_close(heads[range(3), h], alone)
    if reciprocal:  # a relation of its own: a tail query of the inverse relation
        torch.testing.assert_close(heads, model.score_tails(entities[t], relations[r + 5], entities))
    else:  # one function of the triple, whichever side is asked for
        torch.testing.assert_close(heads[range(3), h], tails[range(3), t])


@pytest.mark.parametrize("model", MODELS)
def test_candidates_broadcast(model):
    model = model(6)
    queries, shared, chunked = rows(4, 6), rows(5, 6, seed=1), rows(2, 5, 6, seed=2)
    assert model.score(queries, shared).shape == (4, 5)
    scores = model.score(queries.reshape(2, 2, 6), chunked)
    assert scores.shape == (2, 2, 5)
    torch.testing.assert_close(scores[1], model.score(queries[2:], chunked[1]))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_have_the_same_bits_in_any_company(model, dtype):
    model = model(202)
    q, c = rows(300, 202, dtype=dtype), rows(300, 202, seed=1, dtype=dtype)
    together = model.rescore_pairs(q, c)
    torch.testing.assert_close(together, model.score_pairs(q, c))
    for start, stop in [(0, 1), (5, 7), (100, 300)]:
        assert torch.equal(together[start:stop], model.rescore_pairs(q[start:stop].clone(), c[start:stop].clone()))


@pytest.mark.parametrize("model", MODELS)
def test_the_error_bound_holds(model):
    model = model(200)
    for scale, seed in itertools.product([1e-3, 1.0, 100.0], range(3)):
        e, r = rows(50, 200, seed=seed).float() * scale, rows(50, 200, seed=seed + 9).float()
        queries = model.tail_query(e, r)
        exact = model.tail_query(e.double(), r.double()) @ e.double().T
        error = (model.score(queries, e).double() - exact).abs()
        bound = model.score_error(queries, e)
        assert bound.shape == (50, 1)
        assert (error <= bound).all()
        assert (bound < 1e-3 * exact.abs().max()).all()  # it is of use, too


@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 31])
def test_fold_reduces_everything(d):
    x = torch.arange(1.0, d + 1).repeat(3, 1)
    assert fold(torch.add, x).tolist() == [d * (d + 1) / 2] * 3
    assert fold(torch.maximum, x).tolist() == [d] * 3


@pytest.mark.parametrize("init", DISTRIBUTIONS)
def test_initial_rows_depend_on_their_id_alone(init):
    model = ComplEx(10, init=init, init_scale=0.5)
    all_rows = model.initial_entities(7, np.arange(501), 501)
    assert np.array_equal(all_rows[[3, 500]], model.initial_entities(7, np.array([3, 500]), 501))
    assert not np.array_equal(all_rows, model.initial_entities(8, np.arange(501), 501))


@pytest.mark.parametrize("init", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", [(2001, 24), (7, 3000)])
def test_initial_rows_are_spread_as_torchs(init, shape):
    scale = 0.3
    weight = torch.empty(shape, dtype=torch.float64)
    arguments = {"normal": {"std": scale}, "uniform": {"a": -scale, "b": scale}}.get(init, {"gain": scale})
    getattr(torch.nn.init, f"{init}_")(weight, **arguments, generator=torch.Generator().manual_seed(0))
    rows = initial_rows(init, scale, 7, np.arange(shape[0]), *shape)
    assert rows.shape == shape
    assert rows.std() == pytest.approx(weight.std().item(), rel=0.03)
    assert abs(rows.mean()) < 0.03 * rows.std()
    if init.endswith("uniform"):
        bound = scale if init == "uniform" else scale * (6 / sum(shape)) ** 0.5
        assert 0.99 * bound < abs(rows).max() <= bound
    else:
        assert abs(rows).max() > 3 * rows.std()


def test_the_tables_rows_scale_what_is_drawn_for_it():
    model = ComplEx(10, init="xavier_normal")
    small, large = (model.initial_relations(7, np.arange(5), n) for n in (30, 1590))
    np.testing.assert_allclose(small, large * (1600 / 40) ** 0.5, rtol=1e-12)
