"""The fused step of every row optimizer against its operations in torch."""

import pytest
import torch

from kgexp.optim import base
from kgexp.optim.adagrad import Adagrad, RowwiseAdagrad
from kgexp.optim.adam import Adam
from kgexp.optim.averaged import Averaged
from kgexp.optim.sgd import SGD

OPTIMIZERS = {"sgd": SGD, "adagrad": Adagrad, "rowwise": RowwiseAdagrad, "adam": Adam}
LIMITS = {"free": {}, "limited": {"clip": 1.5, "max_norm": 2.5}}
CASES = [("free", True, 11), ("limited", True, 11), ("limited", False, 300)]


def steps(optimizer, index, device, d, seed=0):
    """Weights and state after two steps on 13 rows of 20 float32[d], or on all."""
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(20, d, generator=g).to(device)
    state = {name: torch.zeros(shape, device=device) for name, shape in optimizer.state_shapes(20, d).items()}
    for step in range(2):
        rows = torch.randperm(20, generator=g)[:13].to(device) if index else None
        grad = torch.randn(13 if index else 20, d, generator=g).to(device) * 10.0 ** (-3 * step)
        grad[1] = 0
        optimizer.step(weight, state, rows, grad, factor=1 - 0.1 * step)
    return {"weight": weight, **state}


@pytest.mark.parametrize(("limits", "index", "d"), CASES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fused_step_is_the_step(name, limits, index, d, everywhere, monkeypatch):
    optimizer = OPTIMIZERS[name](lr=0.3, **LIMITS[limits])
    fused, again = (steps(optimizer, index, everywhere, d) for _ in range(2))
    monkeypatch.setattr(base, "usable", lambda *tensors: False)
    plain = steps(optimizer, index, everywhere, d)
    for part, tensor in plain.items():
        torch.testing.assert_close(fused[part], tensor, rtol=2e-6, atol=2e-7)
        assert torch.equal(fused[part], again[part])


def test_the_first_and_a_late_step_of_adam_keep_their_digits(everywhere, monkeypatch):
    optimizer = Adam(lr=1.0, betas=(0.9, 0.9999), eps=0.0)
    results = []
    for fused in (True, False):
        monkeypatch.setattr(base, "usable", lambda *tensors, fused=fused: fused)
        dtype = torch.float32 if fused else torch.float64
        weight = torch.zeros(6, 2, dtype=dtype, device=everywhere)
        state = {
            name: torch.zeros(shape, dtype=dtype).to(weight) for name, shape in optimizer.state_shapes(6, 2).items()
        }
        state["step"] += torch.tensor([0.0, 1, 4, 6, 4999, 1 << 20]).to(weight)
        optimizer.step(weight, state, None, torch.full_like(weight, 0.25))
        results.append(weight.double())
    torch.testing.assert_close(*results, rtol=1e-6, atol=0)


def test_penalty_and_average_stay(everywhere):
    optimizer = Averaged(SGD(lr=0.5))
    optimizer.penalty = lambda rows: 2 * rows
    weight, average = torch.ones(9000, 3, device=everywhere), torch.full((9000, 3), 7.0, device=everywhere)
    index = torch.tensor([0, 5, 8999], device=everywhere)
    optimizer.step(weight, {"average": average}, index, torch.full((3, 3), 0.5, device=everywhere))
    assert weight[index].eq(-0.25).all()
    assert weight.ne(1).any(dim=1).sum() == 3
    assert average.eq(7).all()
