"""Row optimizers against torch's dense ones and against plain loops; untouched rows stay as they are."""

import pytest
import torch

from kgexp.optim.adagrad import Adagrad, RowwiseAdagrad
from kgexp.optim.adam import Adam
from kgexp.optim.sgd import SGD

OPTIMIZERS = [Adagrad, RowwiseAdagrad, Adam, SGD]


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
@pytest.mark.parametrize("limits", [{}, {"clip": 2.0, "max_norm": 2.0}])
def test_all_rows_are_the_rows_one_by_one(optimizer, limits):
    optimizer = optimizer(lr=0.1, **limits)
    one, two = start(optimizer, n=9000), start(optimizer, n=9000)  # more rows than are taken at a time
    grad = torch.randn(9000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(9000, generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        optimizer.step(*one, None, grad)
        optimizer.step(*two, order, grad[order])
    assert torch.equal(one[0], two[0])
    for name, tensor in one[1].items():
        assert torch.equal(tensor, two[1][name])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zero_gradient_changes_nothing(optimizer):
    optimizer = optimizer(lr=0.1)
    weight, state = start(optimizer)
    before = weight.clone()
    optimizer.step(weight, state, None, torch.zeros_like(weight))
    assert torch.equal(weight, before)


def test_sgd_by_hand():
    weight = torch.ones(3, 2)
    SGD(lr=0.5).step(weight, {}, torch.tensor([2]), torch.tensor([[1.0, -2.0]]), factor=0.5)
    assert weight.tolist() == [[1, 1], [1, 1], [0.75, 1.5]]


@pytest.mark.parametrize("all_rows", [True, False])
def test_adam_is_torchs_where_every_row_is_touched(all_rows):
    optimizer = Adam(lr=0.03, betas=(0.8, 0.99), eps=1e-6)
    weight, state = start(optimizer)
    reference = weight.clone().requires_grad_()
    dense = torch.optim.Adam([reference], lr=0.03, betas=(0.8, 0.99), eps=1e-6)
    for step in range(50):
        g = torch.Generator().manual_seed(step)
        grad = torch.randn(501, 6, dtype=torch.float64, generator=g)
        order = torch.randperm(501, generator=g)
        optimizer.step(weight, state, None if all_rows else order, grad if all_rows else grad[order])
        reference.grad = grad
        dense.step()
    torch.testing.assert_close(weight, reference.detach(), rtol=1e-12, atol=1e-12)


def adam_of_one_number(w, steps, lr, beta1, beta2, eps):
    """Algorithm 1 of the paper, for the gradients that reach a number."""
    m = v = 0.0
    for t, g in enumerate(steps, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w -= lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)) ** 0.5 + eps)
    return w


def test_adam_is_the_papers_row_by_row():
    optimizer = Adam(lr=0.1, betas=(0.9, 0.999), eps=1e-8)
    weight, state = start(optimizer, n=7, d=2)
    first, received = weight.tolist(), [[[], []] for _ in range(7)]
    for step in range(30):
        g = torch.Generator().manual_seed(step)
        index = torch.randperm(6, generator=g)[: step % 4]  # the last row is never touched
        grad = torch.randn(len(index), 2, dtype=torch.float64, generator=g)
        optimizer.step(weight, state, index, grad)
        for row, values in zip(index.tolist(), grad.tolist(), strict=True):
            for column, value in enumerate(values):
                received[row][column].append(value)
    assert state["step"].tolist() == [len(row[0]) for row in received]
    assert len(set(state["step"].tolist())) > 3
    expected = [
        [adam_of_one_number(first[i][j], received[i][j], 0.1, 0.9, 0.999, 1e-8) for j in range(2)] for i in range(7)
    ]
    torch.testing.assert_close(weight, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_a_row_that_adam_touches_late_does_not_jump():
    optimizer = Adam(lr=0.01)
    weight, state = torch.zeros(2, 3), {k: torch.zeros(s) for k, s in optimizer.state_shapes(2, 3).items()}
    for _ in range(1000):
        optimizer.step(weight, state, torch.tensor([0]), torch.full((1, 3), 0.5))
    optimizer.step(weight, state, torch.tensor([1]), torch.full((1, 3), 0.5))
    torch.testing.assert_close(weight[1], torch.full((3,), -0.01), rtol=1e-6, atol=0)


def test_adam_in_float32_keeps_close_to_float64():
    optimizer = Adam(lr=0.01)
    double, state = start(optimizer)
    single, state32 = double.float(), {k: v.float() for k, v in state.items()}
    for step in range(20):
        grad = torch.randn(501, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.step(double, state, None, grad)
        optimizer.step(single, state32, None, grad.float())
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_are_not_touched_stay_as_they_are(optimizer):
    optimizer = optimizer(lr=0.1, clip=1.0, max_norm=0.5)
    weight, state = start(optimizer)
    for tensor in state.values():
        tensor.uniform_(1, 2)
    before = {"weight": weight.clone()} | {name: tensor.clone() for name, tensor in state.items()}
    index = torch.tensor([500, 3, 77])
    optimizer.step(weight, state, index, torch.ones(3, 6, dtype=torch.float64))
    rest = torch.ones(501, dtype=torch.bool)
    rest[index] = False
    for name, tensor in {"weight": weight, **state}.items():
        assert torch.equal(tensor[rest], before[name][rest])
        assert not tensor[index].eq(before[name][index]).any()


def test_clip_shortens_long_gradients_alone():
    weight = torch.zeros(4, 2, dtype=torch.float64)
    grad = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-6e-9, 8e-9]], dtype=torch.float64)
    SGD(lr=1.0, clip=1.0).step(weight, {}, None, grad)
    expected = torch.tensor([[-0.6, -0.8], [-0.3, -0.4], [0.0, 0.0], [6e-9, -8e-9]], dtype=torch.float64)
    torch.testing.assert_close(weight, expected, rtol=1e-15, atol=0)
    SGD(lr=1.0, clip=1e-9).step(weight.zero_(), {}, torch.tensor([3]), grad[3:])  # however small
    torch.testing.assert_close(weight[3], torch.tensor([6e-10, -8e-10], dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_clip_is_the_step_with_the_shorter_gradient(optimizer):
    one, two = start(optimizer(lr=0.1)), start(optimizer(lr=0.1))
    index, grad = torch.tensor([4, 2]), torch.full((2, 6), 2.0, dtype=torch.float64)
    optimizer(lr=0.1, clip=0.5).step(*one, index, grad)
    optimizer(lr=0.1).step(*two, index, grad * (0.5 / 24**0.5))
    torch.testing.assert_close(one, two, rtol=1e-14, atol=0)


def test_a_gradient_that_is_not_finite_is_not_hidden_by_clip():
    for bad in (float("nan"), float("inf")):
        weight = torch.zeros(1, 2)
        SGD(clip=1.0).step(weight, {}, None, torch.tensor([[bad, 1.0]]))
        assert weight.isnan().any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("all_rows", [True, False])
def test_max_norm_bounds_what_was_updated(optimizer, all_rows):
    free, bounded = optimizer(lr=0.5), optimizer(lr=0.5, max_norm=2.0)
    one, two = start(free), start(bounded)
    grad = torch.randn(501, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    index = None if all_rows else torch.arange(501)
    free.step(*one, index, grad)
    bounded.step(*two, index, grad)
    long = one[0].norm(dim=1) > 2
    assert 0 < long.sum() < 501
    assert torch.equal(two[0][~long], one[0][~long])
    expected = one[0][long] / one[0][long].norm(dim=1, keepdim=True) * 2
    torch.testing.assert_close(two[0][long], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_rows_are_legal(optimizer):
    optimizer = optimizer(lr=0.1, clip=1.0, max_norm=1.0)
    weight, state = start(optimizer)
    before = weight.clone()
    optimizer.step(weight, state, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 6, dtype=torch.float64))
    optimizer.step(weight[:0], {k: v[:0] for k, v in state.items()}, None, torch.zeros(0, 6, dtype=torch.float64))
    assert torch.equal(weight, before)


@pytest.mark.parametrize("all_rows", [True, False])
def test_a_penalty_joins_the_gradient_before_it_is_clipped(all_rows):
    penalized, plain = SGD(lr=0.1, clip=0.9), SGD(lr=0.1, clip=0.9)
    penalized.penalty = lambda rows: 0.3 * rows
    one, two = start(penalized, n=5000), start(plain, n=5000)  # more rows than are taken at a time
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(2))
    grad = torch.randn(5000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = one[0].clone() if all_rows else one[0][order[:4500]]
    index, grad = (None, grad) if all_rows else (order[:4500], grad[:4500])
    penalized.step(*one, index, grad)
    plain.step(*two, index, grad + 0.3 * rows)
    assert torch.equal(one[0], two[0])
