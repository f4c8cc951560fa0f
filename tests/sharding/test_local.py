"""The local table: gather, update, blocks; the same rows from every storage."""

import numpy as np
import pytest
import torch

from kgexp.models.complex import ComplEx
from kgexp.optim.adagrad import Adagrad, RowwiseAdagrad
from kgexp.optim.adam import Adam
from kgexp.optim.sgd import SGD
from kgexp.sharding.local import LocalSharding
from kgexp.sharding.route import Route
from kgexp.sharding.rows import Placement, TableSpec
from kgexp.storage.local import LocalStorage
from kgexp.storage.memory import MemoryStorage


def make(optimizer=None, storage=None, n=501, dtype=torch.float64):
    model = ComplEx(6, init_scale=1.0)

    def initial(ids):
        return model.initial_entities(5, ids, n)

    optimizer = optimizer or Adagrad()
    placement = Placement(torch.device("cpu"), dtype)
    spec = TableSpec("entity", n, 6, initial, optimizer, storage or MemoryStorage(), placement)
    return LocalSharding().entity_table(spec)


def test_rows_are_drawn_by_id():
    expected = ComplEx(6, init_scale=1.0).initial_entities(5, np.arange(501), 501)
    assert np.array_equal(make().read(torch.arange(501)).numpy(), expected)


def test_gather_gives_a_leaf_of_its_own():
    table = make()
    ids = torch.tensor([0, 7, 500])
    rows = table.gather(Route(ids))
    assert rows.is_leaf and rows.requires_grad
    rows.detach().zero_()
    assert not table.read(ids).eq(0).any()


def test_read_takes_ids_of_any_shape():
    table = make()
    assert table.read(torch.tensor([[1, 1], [500, 0], [2, 3]])).shape == (3, 2, 6)
    assert table.read(torch.tensor([], dtype=torch.int64)).shape == (0, 6)


def test_blocks_cover_every_row_once():
    table = make()
    blocks = list(table.local_blocks(200))
    assert [(b.start, b.stop) for b in blocks] == [(0, 200), (200, 400), (400, 501)]
    assert torch.equal(torch.cat([b.rows for b in blocks]), table.read(torch.arange(501)))
    assert all(b.grad is None for b in blocks)


@pytest.mark.parametrize("optimizer", [Adagrad, RowwiseAdagrad, Adam, SGD])
@pytest.mark.parametrize("limits", [{}, {"clip": 0.5, "max_norm": 1.0}])
def test_an_update_adds_the_blocks_gradient_to_the_rows(optimizer, limits):
    one, two = make(optimizer(**limits)), make(optimizer(**limits))
    ids = torch.tensor([3, 250])
    grad, dense = torch.randn(2, 6, dtype=torch.float64), torch.randn(501, 6, dtype=torch.float64)
    for block in one.local_blocks(100, grad=True):
        block.grad.add_(dense[block.start : block.stop])
    one.update(Route(ids), grad)
    two.update(Route(torch.arange(501)), dense.index_add(0, ids, grad))
    for name, tensor in one.state_tensors().items():
        torch.testing.assert_close(tensor, two.state_tensors()[name], rtol=0, atol=1e-15)


def test_a_table_in_files_is_the_table_in_memory(tmp_path):
    storage = LocalStorage(str(tmp_path / "tables"))
    storage.open(tmp_path)
    one, two = make(storage=storage), make()
    grad = torch.randn(4, 6, dtype=torch.float64)
    for table in (one, two):
        table.update(Route(torch.tensor([0, 1, 499, 500])), grad, 0.5)
    for name, tensor in one.state_tensors().items():
        assert torch.equal(tensor, two.state_tensors()[name])
    storage.close()


def test_one_row_is_a_table():
    table = make(n=1)
    table.update(Route(torch.tensor([0])), torch.ones(1, 6, dtype=torch.float64))
    assert [b.stop for b in table.local_blocks(10)] == [1]
