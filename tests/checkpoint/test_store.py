"""Checkpoints are there or not there, keep what they must, and name what is wrong."""

import json
import shutil

import pytest
import torch

from kgexp.checkpoint.store import CheckpointStore
from kgexp.errors import CheckpointError
from kgexp.optim.adagrad import RowwiseAdagrad
from kgexp.optim.adam import Adam
from kgexp.sharding.local import LocalTable
from kgexp.sharding.route import Route


def make_table(name="entity", n=53, fill=None):
    weight = torch.randn(n, 4) if fill is None else torch.full((n, 4), fill)
    return LocalTable(name, weight, {"sum": weight[:, 0].clone().abs()}, RowwiseAdagrad())


@pytest.fixture
def store(tmp_path):
    names = tmp_path / "names.arrow"
    names.write_bytes(b"names")
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    store.vocabularies = {"entities.arrow": names}
    return store


def save(store, step, best=None, tables=None):
    tables = tables or {"entity": make_table(), "relation": make_table("relation", 6)}
    state = {"step": step, "best": {"step": best, "value": 0.5}}
    return store.save(step, tables, state, {"seed": 3}, store.vocabularies)


def test_what_is_saved_comes_back(store):
    table = make_table()
    path = save(store, 12, tables={"entity": table})
    checkpoint = store.newest()
    assert checkpoint.step == 12 and checkpoint.config == {"seed": 3} and checkpoint.path == path
    other = make_table()
    checkpoint.load(other)
    for name, tensor in table.state_tensors().items():
        assert torch.equal(tensor, other.state_tensors()[name])
    assert (path / "entities.arrow").read_bytes() == b"names"


def test_training_goes_on_from_a_checkpoint_of_adam(store):
    def adam(weight):
        optimizer = Adam(lr=0.1)
        state = {name: torch.zeros(shape) for name, shape in optimizer.state_shapes(*weight.shape).items()}
        return LocalTable("entity", weight, state, optimizer)

    one, two = adam(torch.randn(53, 4)), adam(torch.zeros(53, 4))
    ids, grad = torch.tensor([0, 7, 52]), torch.randn(3, 4)
    one.update(Route(ids), grad)
    save(store, 1, tables={"entity": one})
    store.newest().load(two)
    assert two.state_tensors()["step"].tolist() == [float(i in (0, 7, 52)) for i in range(53)]
    for table in (one, two):
        table.update(Route(ids + torch.tensor([0, 0, -1])), grad)
    for name, tensor in one.state_tensors().items():
        assert torch.equal(tensor, two.state_tensors()[name])


def test_no_checkpoint_is_none(store):
    assert store.newest() is None and store.steps() == []


def test_the_newest_stay_and_the_best(store):
    for step, best in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3)]:
        save(store, step, best)
    assert store.steps() == [3, 4, 5]


def test_what_a_killed_writer_left_is_no_checkpoint(store):
    good = save(store, 1)
    shutil.copytree(good, store.folder / "step_0000000002.tmp")
    (store.folder / "step_0000000003").mkdir()  # not even an index
    assert store.newest().step == 1
    save(store, 4)
    assert not list(store.folder.glob("*.tmp"))


@pytest.mark.parametrize("damage", ["truncate", "remove", "index"])
def test_a_damaged_checkpoint_is_passed_over_and_written_anew(store, damage):
    save(store, 1)
    path = save(store, 2)
    shard = path / "entity-00001-of-00001.safetensors"
    if damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-4])
    elif damage == "remove":
        shard.unlink()
    else:
        (path / "index.json").write_text("{")
    assert store.newest().step == 1
    save(store, 2)
    assert store.newest().step == 2


def test_all_damaged_is_an_error_that_names_the_newest(store):
    path = save(store, 1)
    (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step_0000000001/state\.json is missing"):
        store.newest()


def test_a_step_that_is_there_stays_as_it_is(store):
    path = save(store, 1)
    before = (path / "entity-00001-of-00001.safetensors").stat().st_mtime_ns
    save(store, 1)
    assert (path / "entity-00001-of-00001.safetensors").stat().st_mtime_ns == before


def test_another_shape_dtype_or_format_is_refused(store):
    path = save(store, 1)
    with pytest.raises(CheckpointError, match=r"entity\.weight is torch\.float32 \[53, 4\].*\[54, 4\]"):
        store.open(1).load(make_table(n=54))
    with pytest.raises(CheckpointError, match="holds no tensor other"):
        store.open(1).load(make_table("other"))
    index = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text(json.dumps(index | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        store.open(1)
