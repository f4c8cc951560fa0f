"""Scores against hand-computed numbers and complex arithmetic; every form of a score agrees with the others."""

import itertools

import pytest
import torch

from kgexp.data.sides import Side
from kgexp.models.base import fold
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult

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


def test_initial_rows_depend_on_their_id_alone():
    import numpy as np

    model = ComplEx(10, init="uniform", init_scale=0.5)
    all_rows = model.initial_entities(7, np.arange(501))
    assert np.array_equal(all_rows[[3, 500]], model.initial_entities(7, np.array([3, 500])))
    assert abs(all_rows).max() <= 0.5 and abs(all_rows).max() > 0.49
    assert not np.array_equal(all_rows, model.initial_entities(8, np.arange(501)))
    normal = ComplEx(10, init="normal", init_scale=0.1).initial_entities(7, np.arange(501))
    assert 0.095 < normal.std() < 0.105
