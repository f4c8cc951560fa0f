"""Distances by tiles against those in torch, and their gradients against autograd in float64."""

import pytest
import torch

from kgexp.models import distance
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE

MODELS = {
    "transe_l1": TransE(10, norm="l1", margin=3.0),
    "transe_l2": TransE(10, norm="l2", margin=3.0),
    "rotate_l1": RotatE(10, norm="l1", margin=3.0),
}
#: Leading dimensions, queries, candidates.
SHAPES = {"shared": ((), 17, 7), "chunks": ((2,), 3, 9), "own": ((2,), 1, 35), "one candidate": ((), 5, 1)}


@pytest.fixture(autouse=True)
def small_tiles(device, monkeypatch):
    from kgexp.kernels import distances

    monkeypatch.setattr(distances, "_LINES", 8)
    monkeypatch.setattr(distances, "_COLUMNS", 8)
    monkeypatch.setattr(distances, "_DEPTH", 4)
    monkeypatch.setattr(distances, "_NUMBERS", 32)
    monkeypatch.setattr(distances, "_PROGRAMS", 4)
    monkeypatch.setattr(distances, "_OTHERS", 3)


def rows(shape, device):
    """Queries and candidates, some of which are the same or have a component in common, and an upstream gradient."""
    lead, b, k = shape
    g = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(*lead, b, 10, generator=g), torch.randn(*lead, k, 10, generator=g)
    candidates[..., 0, :] = queries[..., 0, :]
    candidates[..., -1, [2, 7]] = queries[..., -1, [2, 7]]
    return [x.to(device) for x in (queries, candidates, torch.randn(*lead, b, k, generator=g))]


def scored(model, queries, candidates, upstream):
    scores, backward = model.scored(queries, candidates)
    return scores, *backward(upstream)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", MODELS)
def test_scores_and_gradients(model, shape, everywhere):
    queries, candidates, upstream = rows(SHAPES[shape], everywhere)
    got = scored(MODELS[model], queries, candidates, upstream)
    leaves = queries.double().requires_grad_(), candidates.double().requires_grad_()
    pairs = leaves[0].unsqueeze(-2) - leaves[1].unsqueeze(-3)
    scores = MODELS[model].margin - MODELS[model].distance.norm(pairs)
    exact = scores, *torch.autograd.grad(scores, leaves, upstream.double())
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("model", MODELS)
def test_autograd_and_the_same_bits_again(model, everywhere, monkeypatch):
    queries, candidates, upstream = rows(SHAPES["chunks"], everywhere)
    got = scored(MODELS[model], queries, candidates, upstream)
    again = [x.clone().requires_grad_() for x in (queries, candidates)]
    scores = MODELS[model].score(*again)
    gradients = torch.autograd.grad(scores, again, upstream)
    assert all(map(torch.equal, got, (scores, *gradients)))
    if MODELS[model].distance.cancels:  # a product is less accurate near distance zero
        return
    monkeypatch.setattr(distance, "usable", lambda *tensors: False)
    for one, other in zip(got, scored(MODELS[model], queries, candidates, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_fast_products_are_used_where_they_are_asked_for(everywhere, monkeypatch):
    queries, candidates, _ = rows(SHAPES["shared"], everywhere)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    kernels = {name: distance._kernel(model.distance, queries, candidates) for name, model in MODELS.items()}
    assert kernels == {"transe_l1": "manhattan", "transe_l2": None, "rotate_l1": "moduli"}


def test_a_rank_without_rows(everywhere):
    queries, empty = (torch.ones(x, 10, device=everywhere, requires_grad=True) for x in (3, 0))
    scores = MODELS["transe_l1"].score(queries, empty)
    by_queries, by_candidates = torch.autograd.grad(scores, (queries, empty), torch.empty_like(scores))
    assert scores.shape == (3, 0) and by_candidates.shape == (0, 10) and by_queries.eq(0).all()
