"""Rows that are kept in another way than they are computed with: the same numbers, or in bfloat16 the same mean."""

from itertools import pairwise

import pytest
import torch

from kgexp.optim.adagrad import Adagrad, RowwiseAdagrad
from kgexp.optim.adam import Adam
from kgexp.optim.averaged import Averaged
from kgexp.optim.sgd import SGD
from kgexp.sharding.rounding import rounded
from kgexp.sharding.rows import OwnRows, Placement, TableSpec, new_rows
from kgexp.storage.memory import MemoryStorage

BF16, CPU = torch.bfloat16, torch.device("cpu")
OPTIMIZERS = [SGD, Adagrad, RowwiseAdagrad, Adam]
N, D = 5003, 5  # more rows than are taken at a time


def own(optimizer, ids=range(N), d=D, weight=None, state=None, value=None, seed=3):
    """Rows kept in these dtypes and computed in float32, drawn by id; or all of one value."""

    def initial(ids):
        g = torch.Generator().manual_seed(0)
        whole = torch.randn(N, d, generator=g) if value is None else torch.full((N, d), value)
        return whole[ids].double().numpy()

    placement = Placement(CPU, torch.float32, weight, state)
    kept = new_rows(TableSpec("entity", N, d, initial, optimizer, MemoryStorage(), placement), ids)
    return OwnRows("entity", *kept, optimizer, ids.start, torch.float32, seed)


def gradient(step, rows=N, d=D):
    return torch.randn(rows, d, generator=torch.Generator().manual_seed(step))


def train(*parts, steps=4):
    """Steps on some rows of the whole, and one on all, in one or several parts of it."""
    for step in range(steps):
        touched = torch.randperm(N, generator=torch.Generator().manual_seed(step))[: N - 400].sort().values
        grad = gradient(step)
        for part in parts:
            mine = range(part.first_row, part.first_row + part.num_rows)
            if step == 2:
                part.step(slice(0, len(mine)), grad[mine.start : mine.stop], 0.7, step)
                continue
            index = touched[(touched >= mine.start) & (touched < mine.stop)]
            part.step(index - mine.start, grad[index], 0.7, step)
    return {name: torch.cat([p.state_tensors()[name] for p in parts]) for name in parts[0].state_tensors()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kept", [{"state": torch.float64}, {"weight": torch.float64}])
def test_a_step_on_a_copy_is_the_step_in_place(optimizer, kept):
    """Kept in float64, float32 numbers lose nothing, so all have to be equal."""

    def make():
        made = optimizer(lr=0.1, clip=2.0, max_norm=2.0)
        made.penalty = lambda rows: 0.1 * rows
        return made

    plain, aside = train(own(make())), train(own(make(), **kept))
    for name, tensor in plain.items():
        assert torch.equal(aside[name].float(), tensor), name
    assert any(tensor.dtype == torch.float64 for tensor in aside.values()) or optimizer is SGD


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kept", [{"weight": BF16}, {"weight": BF16, "state": BF16}])
def test_who_owns_a_row_does_not_change_how_it_is_rounded(optimizer, kept):
    whole = train(own(optimizer(lr=0.1), **kept))
    cuts = (0, 1000, 1000, N)  # one part owns nothing
    parts = train(*(own(optimizer(lr=0.1), range(a, b), **kept) for a, b in pairwise(cuts)))
    for name, tensor in whole.items():
        assert torch.equal(parts[name], tensor), name
    assert whole["weight"].dtype == BF16
    other = train(own(optimizer(lr=0.1), seed=4, **kept))
    assert not torch.equal(other["weight"], whole["weight"])
    torch.testing.assert_close(other["weight"], whole["weight"], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_are_not_touched_keep_their_bits(optimizer):
    rows = own(optimizer(lr=0.1), weight=BF16, state=BF16)
    train(rows)
    before = {name: tensor.clone() for name, tensor in rows.state_tensors().items()}
    index = torch.tensor([5002, 0, 77])
    rows.step(index, torch.ones(3, D), step=9)
    rest = torch.ones(N, dtype=torch.bool)
    rest[index] = False
    for name, tensor in rows.state_tensors().items():
        assert torch.equal(tensor[rest], before[name][rest]), name
    assert not torch.equal(rows.state_tensors()["weight"][index], before["weight"][index])


def test_small_steps_move_weights_in_bfloat16():
    """To the nearest, 0.5 - 0.0005 is 0.5 again, for ever."""
    rows = own(SGD(lr=5e-4), range(1000), d=20, value=0.5, weight=BF16)
    for step in range(100):
        rows.step(slice(0, 1000), torch.ones(1000, 20), step=step)
    weight = rows.state_tensors()["weight"].double()
    # A step goes down by 2⁻⁹ with probability q, else by nothing: the deviation of the mean is that of a binomial.
    q, ulp = 5e-4 * 2**9, 2.0**-9
    assert weight.mean().item() == pytest.approx(0.45, abs=4 * ulp * (100 * q * (1 - q) / 20_000) ** 0.5)
    assert weight.std().item() == pytest.approx(ulp * (100 * q * (1 - q)) ** 0.5, rel=0.05)


def test_adams_second_moment_decays_in_bfloat16():
    """To the nearest, 0.999 v is v again. The count of steps is exact past 256, where bfloat16 would stop."""
    rows = own(Adam(lr=1e-3), range(200), d=10, state=BF16)
    state = rows.state_tensors()
    state["exp_avg_sq"].fill_(1.0)
    for step in range(300):
        rows.step(slice(0, 200), torch.zeros(200, 10), step=step)
    assert state["exp_avg_sq"].dtype == BF16 and state["step"].dtype == torch.float32
    assert state["exp_avg_sq"].double().mean().item() == pytest.approx(0.999**300, abs=0.005)
    assert state["step"].eq(300).all()


@pytest.mark.parametrize("shape", [(40_000,), (10_000, 4)])
def test_the_mean_of_rounded_numbers_is_the_number(shape):
    ids = torch.arange(shape[0])
    for x in (1.0 + 2.0**-9, -3.3, 1e-20, 6e-39):  # the last is subnormal
        values = torch.full(shape, x)
        out = rounded(values, 5, ids)
        down, up = sorted(out.unique().double().tolist())
        assert down < values.view(-1)[0] < up and out.shape == values.shape
        share = (values.view(-1)[0].double().item() - down) / (up - down)
        assert (out.double() == up).double().mean().item() == pytest.approx(share, abs=4 * 0.5 / 200)
    assert not torch.equal(rounded(values, 5, ids), rounded(values, 6, ids))


def test_what_bfloat16_can_hold_is_not_rounded():
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([[0.0, -0.0, 1.0, -2.5, inf, -inf, 2.0**-130]])
    for stream in range(50):
        assert torch.equal(rounded(values, stream, torch.zeros(1, dtype=torch.int64)).float(), values)
    patterns = torch.tensor([[0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF]], dtype=torch.int32)  # NaN of every kind
    assert rounded(patterns.view(torch.float32), 0, torch.zeros(1, dtype=torch.int64)).isnan().all()
    rows = own(SGD(), range(2), weight=BF16)
    rows.step(slice(0, 2), torch.tensor([[nan] * D, [1.0] * D]), step=0)
    assert rows.read(torch.arange(2)).isnan().any(dim=1).tolist() == [True, False]


def test_reading_gives_the_dtype_of_computing():
    rows = own(Adagrad(), range(7, 30), weight=BF16)
    kept = rows.state_tensors()["weight"]
    index = torch.tensor([2, 2, 0])
    assert torch.equal(rows.read(index), kept[index].float())
    blocks = list(rows.blocks(10))
    assert [(b.start, b.stop) for b in blocks] == [(7, 17), (17, 27), (27, 30)]
    assert torch.equal(torch.cat([b.rows for b in blocks]), kept.float())
    plain = own(Adagrad(), range(7, 30))
    assert next(plain.blocks(10)).rows.data_ptr() == plain.state_tensors()["weight"].data_ptr()
    plain.read(index).zero_()
    assert not plain.read(index).eq(0).any()


def test_the_gradient_of_blocks_is_in_the_dtype_of_computing():
    one, two = (own(Adagrad(), range(7, 30), weight=BF16, state=BF16) for _ in range(2))
    dense, grad, index = gradient(0, 23), gradient(1, 2), torch.tensor([3, 22])
    for _ in range(2):  # the second time from a buffer that was used
        for block in one.blocks(10, grad=True):
            block.grad.add_(dense[block.start - 7 : block.stop - 7])
        one.update(index, grad, 0.5, 6)
        two.update(torch.arange(23), dense.index_add(0, index, grad), 0.5, 6)
    one.update(index, grad)
    two.update(index, grad)
    for name, tensor in one.state_tensors().items():
        assert torch.equal(tensor, two.state_tensors()[name])


def test_an_average_is_kept_as_it_is_computed():
    state = own(Averaged(Adam()), range(3), state=BF16).state_tensors()
    narrow = {name for name, tensor in state.items() if tensor.dtype == BF16}
    assert narrow == {"exp_avg", "exp_avg_sq"} and state["average"].dtype == torch.float32


def test_bfloat16_is_rounded_from_float32_alone():
    with pytest.raises(ValueError, match="numbers of entity in bfloat16 are rounded from float32, not from"):
        OwnRows("entity", torch.zeros(2, 3, dtype=BF16), {}, SGD(), dtype=torch.float64)
