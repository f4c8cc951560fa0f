"""Row optimizers against torch's dense ones and against plain loops; untouched rows stay as they are."""

import pytest
import torch

from kgexp.optim.adagrad import Adagrad, RowwiseAdagrad
from kgexp.optim.schedule import Constant, Plateau

OPTIMIZERS = [Adagrad, RowwiseAdagrad]


def start(optimizer, n=501, d=6):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(n, d, generator=g, dtype=torch.float64)
    state = {k: torch.zeros(s, dtype=torch.float64) for k, s in optimizer.state_shapes(n, d).items()}
    return weight, state


def test_adagrad_is_torchs():
    optimizer = Adagrad(lr=0.3, eps=1e-10)
    weight, state = start(optimizer)
    reference = weight.clone().requires_grad_()
    dense = torch.optim.Adagrad([reference], lr=0.3, eps=1e-10)
    for step in range(5):
        index = torch.randperm(501, generator=torch.Generator().manual_seed(step))[:37]
        grad = torch.randn(37, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.step(weight, state, index, grad)
        reference.grad = torch.zeros_like(reference).index_add_(0, index, grad)
        dense.step()
    torch.testing.assert_close(weight, reference.detach(), rtol=1e-14, atol=1e-14)


def test_rowwise_adagrad_by_hand():
    optimizer = RowwiseAdagrad(lr=0.5, eps=0.0)
    weight, state = torch.ones(3, 2), {"sum": torch.tensor([0.0, 0.5, 0.0])}
    optimizer.step(weight, state, torch.tensor([1]), torch.tensor([[1.0, -2.0]]), factor=2.0)
    # sum = 0.5 + (1 + 4) / 2 = 3; the step is 1.0 * g / sqrt(3)
    torch.testing.assert_close(weight[1], torch.tensor([1 - 1 / 3**0.5, 1 + 2 / 3**0.5]))
    assert state["sum"].tolist() == [0.0, 3.0, 0.0]
    assert weight[[0, 2]].eq(1).all()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_rows_are_the_rows_one_by_one(optimizer):
    optimizer = optimizer(lr=0.1)
    one, two = start(optimizer, n=9000), start(optimizer, n=9000)  # more rows than are taken at a time
    grad = torch.randn(9000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(9000, generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        optimizer.step(*one, None, grad)
        optimizer.step(*two, order, grad[order])
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1]["sum"], two[1]["sum"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zero_gradient_changes_nothing(optimizer):
    optimizer = optimizer(lr=0.1)
    weight, state = start(optimizer)
    before = weight.clone()
    optimizer.step(weight, state, None, torch.zeros_like(weight))
    assert torch.equal(weight, before)


def test_plateau_waits_then_decays_and_remembers():
    schedule = Plateau(factor=0.5, patience=1, min_factor=0.2)
    for value in [0.1, 0.2, 0.2, 0.15]:  # the second failure in a row is one too many
        assert schedule.factor(0, 10) == 1.0
        schedule.observe(value)
    assert schedule.factor(0, 10) == 0.5
    other = Plateau(factor=0.5, patience=1, min_factor=0.2)
    other.load_state_dict(schedule.state_dict())
    for s in (schedule, other):
        for value in [0.1, 0.1, 0.1, 0.1]:
            s.observe(value)
        assert s.factor(0, 10) == 0.2


def test_constant_is():
    assert Constant().factor(3, 10) == 1.0
