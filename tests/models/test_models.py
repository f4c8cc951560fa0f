"""Scores against hand-computed numbers and complex arithmetic; every form of a score agrees with the others."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from kgexp.data.sides import Side
from kgexp.models import pieces
from kgexp.models.angles import cos_sin
from kgexp.models.base import fold
from kgexp.models.complex import ComplEx
from kgexp.models.distances import square_root
from kgexp.models.distmult import DistMult
from kgexp.models.initial import DISTRIBUTIONS, initial_rows
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.schemas import SCHEMAS

DISTANCES = {
    "transe_l1": partial(TransE, norm="l1", margin=3.0),
    "transe_l2": partial(TransE, norm="l2", margin=3.0),
    "rotate_l1": partial(RotatE, norm="l1", margin=3.0),
    "rotate_l2": partial(RotatE, norm="l2", margin=3.0),
}
MODELS = {"complex": ComplEx, "distmult": DistMult} | DISTANCES
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_distance = pytest.mark.parametrize("model", DISTANCES.values(), ids=DISTANCES)


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


def test_no_model_of_the_configuration_is_left_out():
    tested = {getattr(model, "func", model) for model in MODELS.values()}
    assert {f"{model.__module__}.{model.__name__}" for model in tested} == {
        schema._target_ for schema in SCHEMAS["model"].values()
    }


def scores_of_answers(model, side, given, relation, answers, entities, ids):
    """The scores float[4] of four queries' answers, in every form: `answers` are the rows `ids` of `entities`."""
    queries = model.query(side, given, relation)
    everyone = (
        model.score_tails(given, relation, entities)
        if side is Side.TAIL
        else model.score_heads(entities, relation, given)
    )
    forms = {"pairs": model.score_pairs(queries, answers), "of all": everyone[range(4), ids]}
    if side is Side.TAIL or model.reciprocal:  # the head query of r is a tail query of its inverse
        forms["triples"] = model.score_triples(given, relation, answers)
    else:
        forms["triples"] = model.score_triples(answers, relation, given)
    with torch.enable_grad():  # as in training
        queries = queries.detach().requires_grad_()
        chunks = model.score(queries.unflatten(0, (2, 2)), answers.unflatten(0, (2, 2)))
        forms["chunks"] = chunks.diagonal(dim1=1, dim2=2).flatten().detach()
        forms["own"] = model.score(queries[:, None], answers[:, None])[:, 0, 0].detach()
    return forms


@every_model
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_forms_of_a_score_agree(model, reciprocal, dtype):
    """Of two entities, of one with itself, and of two that have the same row."""
    model = model(6, reciprocal=reciprocal)
    entities, relations = rows(11, 6, seed=1, dtype=dtype), rows(10, model.relation_dim, seed=2, dtype=dtype)
    entities[10] = entities[4]
    triples = torch.tensor([[0, 1, 2], [3, 3, 3], [10, 0, 4], [9, 2, 10]])
    found = {}
    for side in Side:
        given, ids = entities[triples[:, side.given]], triples[:, side.column]
        relation = relations[model.relation_rows(triples[:, 1], side, 5)]
        exact_queries = model.query(side, given.double(), relation.double())
        exact = found[side] = model.rescore_pairs(exact_queries, entities[ids].double())
        twins = [model.rescore_pairs(exact_queries, entities[e].double().expand(4, 6)) for e in (4, 10)]
        assert torch.equal(*twins)
        error = model.score_error(model.query(side, given, relation), entities)[:, 0].double()
        for form, scores in scores_of_answers(model, side, given, relation, entities[ids], entities, ids).items():
            bound = 1e-12 if dtype is torch.float64 else error
            assert ((scores.double() - exact).abs() <= bound).all(), (side, form)
    if not reciprocal:  # one function of the triple, whichever side is asked for
        torch.testing.assert_close(found[Side.HEAD], found[Side.TAIL], rtol=0, atol=1e-12)


@every_model
def test_every_relation_is_scored_as_its_triple(model, monkeypatch):
    monkeypatch.setitem(pieces.NUMBERS, "cpu", 60)  # two relations a piece
    model = model(6)
    h, t, relations = rows(5, 6), rows(5, 6, seed=1), rows(7, model.relation_dim, seed=2)
    expected = torch.stack([model.score_triples(h, r.expand(5, -1), t) for r in relations], dim=1)
    torch.testing.assert_close(model.score_relations(h, relations, t), expected)


@every_model
def test_candidates_broadcast(model):
    model = model(6)
    queries, shared, chunked = rows(4, 6), rows(5, 6, seed=1), rows(2, 5, 6, seed=2)
    assert model.score(queries, shared).shape == (4, 5)
    scores = model.score(queries.reshape(2, 2, 6), chunked)
    assert scores.shape == (2, 2, 5)
    torch.testing.assert_close(scores[1], model.score(queries[2:], chunked[1]))


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_have_the_same_bits_in_any_company(model, dtype):
    model = model(202)
    q, c = rows(300, 202, dtype=dtype), rows(300, 202, seed=1, dtype=dtype)
    c[7] = q[7]
    together = model.rescore_pairs(q, c)
    torch.testing.assert_close(together, model.score_pairs(q, c))
    for start, stop in [(0, 1), (5, 7), (100, 300)]:
        assert torch.equal(together[start:stop], model.rescore_pairs(q[start:stop].clone(), c[start:stop].clone()))


@every_model
def test_the_error_bound_holds(model):
    model = model(200)
    for scale, seed in itertools.product([1e-3, 1.0, 100.0], range(3)):
        e, r = rows(50, 200, seed=seed).float() * scale, rows(50, model.relation_dim, seed=seed + 9).float()
        queries = model.tail_query(e, r)
        exact_queries = model.tail_query(e.double(), r.double())
        e[0] = queries[0]  # nearly at distance zero, where squares cancel
        exact = torch.stack([model.rescore_pairs(exact_queries, row.double().expand_as(e)) for row in e], dim=1)
        error = (model.score(queries, e).double() - exact).abs()
        bound = model.score_error(queries, e)
        assert bound.shape == (50, 1)
        assert (error <= bound).all()
        assert (bound < 1e-3 * exact.abs().max()).all()  # it is of use, too


def test_transe_by_hand():
    h, r, t = (torch.tensor([x], dtype=torch.float64) for x in ([1.0, 2.0], [3.0, -1.0], [1.0, 5.0]))
    assert TransE(2, norm="l2").score_triples(h, r, t).tolist() == [-5.0]  # h + r - t = (3, -4)
    assert TransE(2, norm="l1", margin=9.0).score_triples(h, r, t).tolist() == [2.0]


def test_rotate_by_hand():
    # h = 1 + 2i, 4; turned by 90° and 0° it is -2 + i, 4; less t = 1 + 5i, 1 this is -3 - 4i, 3
    h, t = (torch.tensor([x], dtype=torch.float64) for x in ([1.0, 4.0, 2.0, 0.0], [1.0, 1.0, 5.0, 0.0]))
    r = torch.tensor([[math.pi / 2, 0.0]], dtype=torch.float64)
    assert RotatE(4).score_triples(h, r, t).item() == pytest.approx(-8.0, abs=1e-14)
    assert RotatE(4, norm="l2", margin=1.0).score_triples(h, r, t).item() == pytest.approx(1 - 34**0.5, abs=1e-14)


def test_rotate_agrees_with_complex_arithmetic():
    h, r, t = rows(9, 14), 10 * rows(9, 7, seed=1), rows(9, 14, seed=2)
    as_complex = [torch.complex(*x.chunk(2, dim=-1)) for x in (h, t)]
    expected = -(as_complex[0] * torch.exp(1j * r) - as_complex[1]).abs().sum(-1)
    torch.testing.assert_close(RotatE(14).score_triples(h, r, t), expected)


def test_angles_begin_everywhere_on_the_circle():
    angles = RotatE(10, init_scale=1e-3).initial_relations(7, np.arange(501), 501)
    assert angles.shape == (501, 5)
    assert -math.pi <= angles.min() < -3.1 and 3.1 < angles.max() < math.pi
    assert angles.std() == pytest.approx(math.pi / 3**0.5, rel=0.05)


@pytest.mark.parametrize("size", [1.0, 1e3, 2.0**20])
def test_cos_and_sin_are_those_of_the_library_within_a_unit(size):
    angles = size * (2 * torch.rand(3001, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1)
    angles[:4] = torch.tensor([0.0, -0.0, math.pi / 4, -math.pi / 2])
    for found, function in zip(cos_sin(angles), (math.cos, math.sin), strict=True):
        expected = torch.tensor([function(x) for x in angles.tolist()], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=2.0**-52)
    assert torch.autograd.gradcheck(cos_sin, angles[:9].clone().requires_grad_(), atol=1e-4 * size**0.5)


@every_distance
def test_queries_have_the_same_bits_at_any_place(model):
    model = model(38)
    e, r = rows(97, 38), 3 * rows(97, model.relation_dim, seed=1)
    for make in (model.tail_query, lambda e, r: model.head_query(r, e)):
        together = make(e, r)
        for start, length in itertools.product(range(17), (*range(1, 18), 40)):
            piece = slice(start, start + length)
            assert torch.equal(together[piece], make(e[piece].clone(), r[piece].clone()))
            assert torch.equal(together[piece], make(e[piece], r.mT.contiguous().mT[piece]))  # another layout


def test_square_roots_are_correctly_rounded_at_any_place():
    x = torch.rand(4099, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for part in (x, x[1:18].clone(), x[5:9], x[::3]):
        assert square_root(part).tolist() == [math.sqrt(number) for number in part.tolist()]


SHAPES = [((5, 6), (7, 6)), ((3, 5, 6), (3, 7, 6)), ((5, 1, 6), (5, 7, 6)), ((3, 5, 6), (7, 6)), ((5, 6), (0, 6))]


@every_distance
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("piece", [1, 70, 1 << 18])
def test_scores_and_gradients_do_not_depend_on_the_pieces(monkeypatch, model, shapes, piece):
    monkeypatch.setitem(pieces.NUMBERS, "cpu", piece)
    model = model(6)
    q, c = (rows(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
    expected = model.score_pairs(q.unsqueeze(-2), c.unsqueeze(-3))
    found = model.score(q, c)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(model.score(q, c), expected)
    upstream = rows(*found.shape, seed=5)
    wanted = torch.autograd.grad(expected, (q, c), upstream)
    for gradient, expect in zip(torch.autograd.grad(found, (q, c), upstream), wanted, strict=True):
        torch.testing.assert_close(gradient, expect)


@every_distance
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_distance_zero_are_finite(model, dtype):
    model = model(8)
    q = torch.ones(3, 8, dtype=dtype, requires_grad=True)
    c = torch.ones(5, 8, dtype=dtype, requires_grad=True)
    for scores in (model.score(q, c), model.score_pairs(q, c[:3])):
        assert (scores == 3.0).all()
        for gradient in torch.autograd.grad(scores.sum(), (q, c)):
            assert (gradient == 0).all()


@every_model
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("side", Side)
def test_gradients_by_hand_are_those_of_autograd(model, reciprocal, side):
    """Of queries, of pairs and of candidates; a query that meets its answer has no slope."""
    model = model(6, reciprocal=reciprocal)
    e, r, a, c = (rows(n, width, seed=n) for n, width in ((9, 6), (9, model.relation_dim), (9, 6), (5, 6)))
    a[4] = model.query(side, e, r)[4]
    e, r, a, c = (x.requires_grad_() for x in (e, r, a, c))
    queries = model.query(side, e, r)
    pairs, scores = model.score_pairs(queries, a), model.score(queries, c)
    of_pairs, of_scores = rows(9, seed=1), rows(9, 5, seed=2)
    wanted = torch.autograd.grad((pairs, scores), (e, r, a, c), (of_pairs, of_scores))

    by_e, by_r, by_a = (torch.full_like(x, math.nan, requires_grad=False) for x in (e, r, a))
    with torch.no_grad():
        made, to_rows = model.queried(side, e, r)
        own, to_pair = model.scored_pairs(made, a)
        all_scores, to_factors = model.scored(made, c)
        by_queries, by_c = to_factors(of_scores)
        to_pair(of_pairs, by_queries, by_a)
        to_rows(by_queries, by_e, by_r)
    for found, expected in zip((own, all_scores, by_e, by_r, by_a, by_c), (pairs, scores, *wanted), strict=True):
        torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_component_without_a_difference_has_no_slope(monkeypatch, dtype):
    """Of rows that agree in some components only, and of differences however small: the slopes of `l1` are signs."""
    monkeypatch.setitem(pieces.NUMBERS, "cpu", 150)  # two components of 5 x 13 pairs, then one
    tiny = torch.finfo(dtype).tiny
    values = torch.tensor([-3.0, -tiny, 0.0, tiny, 1e-30, 1.0], dtype=dtype)
    draw = torch.Generator().manual_seed(0)
    q, c = (values[torch.randint(6, (n, 7), generator=draw)].requires_grad_() for n in (5, 13))
    upstream = rows(5, 13, dtype=dtype)
    slopes = (q.detach().unsqueeze(1) - c.detach()).sign() * upstream.unsqueeze(-1)
    for found, expected in zip(
        torch.autograd.grad(TransE(7, norm="l1").score(q, c), (q, c), upstream),
        (-slopes.sum(dim=1), slopes.sum(dim=0)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)


@every_distance
def test_the_error_bound_is_tight(model):
    """Of a table like a trained one, what lies in the band of an answer is scored again: few candidates may."""
    model = model(200)
    clusters = rows(60, 200, dtype=torch.float32).repeat(60, 1)
    e, r = clusters + 0.7 * rows(3600, 200, seed=1, dtype=torch.float32), rows(20, model.relation_dim, seed=2).float()
    queries = model.tail_query(e[:20] + 0.3 * clusters[20:40], r)
    scores = model.score(queries, e)
    answers = scores.kthvalue(3590, dim=1, keepdim=True).values  # of rank ten
    inside = (scores - answers).abs() <= model.score_error(queries, e)
    assert inside.double().mean() < 5e-3


@every_distance
def test_the_bound_gives_up_where_squares_may_overflow_and_counts_underflow(model):
    model = model(6)
    large, small = rows(4, 6).float() * 1e25, rows(4, 6).float() * 1e-30
    exact = model.rescore_pairs(small.double()[:1].expand(4, 6), small.double())
    assert ((model.score(small[:1], small)[0] - exact).abs() <= model.score_error(small[:1], small)).all()
    error = model.score_error(large[:1], large)
    exact = model.rescore_pairs(large.double()[:1].expand(4, 6), large.double())
    assert error.isinf().all() or ((model.score(large[:1], large)[0] - exact).abs() <= error).all()


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


@every_distance
def test_no_piece_holds_the_differences_of_all_pairs(monkeypatch, model):
    """Of 20 x 103 pairs of ten numbers, a piece has at most 100; a query alone, differences of all its ten numbers."""
    monkeypatch.setitem(pieces.NUMBERS, "cpu", 100)
    model = model(10)
    seen, held = [], []
    between = model.distance.between

    def watched(q, c, scratch):
        distances = between(q, c, scratch)
        seen.append(distances.numel())
        held.append(scratch.numel())
        return distances

    monkeypatch.setattr(model.distance, "between", watched)
    for shapes, most in (((20, 10), (103, 10)), 100), (((20, 1, 10), (20, 103, 10)), 10):
        seen.clear()
        model.score(rows(*shapes[0]), rows(*shapes[1]))
        assert sum(seen) == 2060
        assert max(seen) == most
    assert max(held) <= 200  # two numbers of a pair


@every_distance
def test_gradients_are_those_of_differences(monkeypatch, model):
    """Far from kinks; pieces that divide neither the rows nor the components."""
    monkeypatch.setitem(pieces.NUMBERS, "cpu", 47)
    model = model(6)
    for shapes in ((5, 6), (7, 6)), ((2, 3, 6), (2, 4, 6)), ((3, 1, 6), (3, 4, 6)):
        q, c = (rows(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
        assert torch.autograd.gradcheck(model.score, (q, c))
