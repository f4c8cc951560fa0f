"""Checkpoints do not know who wrote them; what is committed stays as it is, and what is not goes."""

import pytest
import torch
from rank_threads import as_ranks
from trained import Trained, assert_equal, cut, saved, state_of

from kgexp.checkpoint.store import CheckpointStore
from kgexp.errors import CheckpointError
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts

OPTIONS = ("scoring=negatives", "optimizer=adam")
PARTITIONED = cut(4, 2, slices=2)
#: Who reads and writes: the overrides, and whether rows are in files between visits.
KINDS = {
    "none": ((), False),
    "same": (PARTITIONED, True),
    "memory": (PARTITIONED, False),
    "other": (cut(3, 2, slices=5), True),
    "one": (cut(1, 1), True),
}


def begin(configured, graph, kind, folder):
    overrides, files = KINDS[kind]
    return Trained(configured(*OPTIONS, *overrides), graph, folder if files else None)


def resume(configured, graph, kind, folder, checkpoint):
    """Goes on from a checkpoint in the folder."""
    trained = begin(configured, graph, kind, folder)
    for table in trained.tables.values():
        checkpoint.load(table)
    trained.step = checkpoint.step
    return trained


@pytest.mark.parametrize("reader", KINDS)
@pytest.mark.parametrize("writer", KINDS)
def test_any_of_them_reads_what_any_wrote(configured, graph, writer, reader, tmp_path):
    trained = begin(configured, graph, writer, tmp_path).train(20)
    checkpoint = trained.save(tmp_path).open(20)
    state = state_of(trained.entity)
    first, rows = saved(checkpoint, state), trained.numbers()["entity"]
    assert torch.equal(first["entity.weight"], rows) and first["entity.step"].max() > 1
    other = resume(configured, graph, reader, tmp_path, checkpoint)
    assert torch.equal(other.entity.read(torch.arange(len(rows))), rows)
    other.step += 1  # the same rows again, as another checkpoint
    assert_equal(saved(other.save(tmp_path).open(21), state), first)
    other.train(3)
    assert torch.stack(other.losses).isfinite().all()


def test_ranks_read_what_partitions_wrote_and_back(configured, graph, tmp_path):
    trained = begin(configured, graph, "same", tmp_path).train(20)
    checkpoint = trained.save(tmp_path).open(20)
    state = state_of(trained.entity)
    config = configured(*OPTIONS, "sharding=rowwise")

    def take(world):
        parts = Parts.of(config, graph, torch.device("cpu"), world)
        tables = dict(zip(("entity", "relation"), parts.tables(MemoryStorage()), strict=True))
        for table in tables.values():
            CheckpointStore(tmp_path / "checkpoints", 2).open(20).load(table)
        store = CheckpointStore(tmp_path / "ranks" / "checkpoints", 2, world)
        store.save(20, tables, {"model_weight": "weight"}, {}, {})

    as_ranks(2, take)
    of_ranks = CheckpointStore(tmp_path / "ranks" / "checkpoints", 2).open(20)
    assert_equal(saved(of_ranks, state), saved(checkpoint, state))
    again = resume(configured, graph, "other", tmp_path / "again", of_ranks)
    assert_equal(saved(again.save(tmp_path / "again").open(20), state), saved(checkpoint, state))


@pytest.mark.parametrize("kind", ["same", "memory"])
def test_going_on_from_a_checkpoint_changes_nothing(configured, graph, kind, tmp_path):
    whole = begin(configured, graph, kind, tmp_path / "whole").train(50)
    trained = begin(configured, graph, kind, tmp_path).train(23)
    other = resume(configured, graph, kind, tmp_path, trained.save(tmp_path).open(23)).train(27)
    assert_equal(other.numbers() | {"losses": torch.stack(trained.losses + other.losses)}, whole.numbers())


def files(folder):
    """Bytes and time of all files below."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def named(store):
    """Files of rows that checkpoints name."""
    return {store.folder / name for step in store.steps() for name in store.open(step).files if name.startswith("rows")}


@pytest.mark.parametrize("kind", ["same", "memory"])
@pytest.mark.parametrize("keep", [1, 2])
def test_what_is_committed_stays_as_it_is_until_it_goes(configured, graph, kind, keep, tmp_path):
    trained, rows = begin(configured, graph, kind, tmp_path), tmp_path / "checkpoints" / "rows"
    committed, shared = {}, 0
    for number, step in enumerate((3, 9, 12, 40, 41)):
        while trained.step < step:
            trained.train(1)
            trained.entity.buffer.settle()
            there = files(rows) if rows.is_dir() else {}
            assert {path: there[path] for path in committed} == committed
            # Besides these, one file a slice at most: what was superseded has gone.
            assert len(there.keys() - committed.keys()) <= (8 if kind == "same" else 0)
        before = set(committed)
        store = trained.save(tmp_path, keep, best=3 if number else None)
        kept = [3, 9, 12, 40, 41][: number + 1][-keep:]
        assert store.steps() == sorted({3, *kept}), "the best stays"
        committed = files(rows)
        assert set(committed) == named(store), "a file that no checkpoint names goes with the next commit"
        shared += len(before & named(store))
    assert shared > 8, "slices that nobody trained in between are not written again"


def test_what_a_killed_run_has_left_goes_with_the_next_commit(configured, graph, tmp_path):
    trained = begin(configured, graph, "same", tmp_path).train(5)
    store = trained.save(tmp_path)
    trained.train(20)  # and is killed
    rows = tmp_path / "checkpoints" / "rows"
    (rows / "entity-00001.000009-12345678.safetensors.77.0.tmp").write_bytes(b"half of it")
    assert {*files(rows)} > named(store)
    again = resume(configured, graph, "same", tmp_path, store.newest()).train(1)
    again.save(tmp_path)
    assert {*files(rows)} == named(store)


def test_rows_are_kept_while_a_damaged_checkpoint_might_name_them(configured, graph, tmp_path):
    trained = begin(configured, graph, "same", tmp_path).train(5)
    store = trained.save(tmp_path, keep=1)
    first = named(store)
    (store.folder / "step_0000000005" / "state.json").unlink()
    trained.train(30).save(tmp_path, keep=1)
    assert all(path.is_file() for path in first)


@pytest.mark.parametrize("reader", ["same", "other", "none"])
@pytest.mark.parametrize("damage", ["gone", "short", "long"])
def test_a_file_of_rows_that_is_not_whole_is_named(configured, graph, damage, reader, tmp_path):
    store = begin(configured, graph, "same", tmp_path).train(5).save(tmp_path)
    path = sorted(named(store))[3]
    content = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(content[:-1] if damage == "short" else content + b"x")
    with pytest.raises(CheckpointError, match=path.name):
        store.open(5)
    with pytest.raises(CheckpointError, match=path.name):
        store.newest()


@pytest.mark.parametrize("place", [3, 40, -1, -2000])
def test_a_damaged_byte_is_found_when_the_slice_is_fetched(configured, graph, place, tmp_path):
    store = begin(configured, graph, "same", tmp_path).train(5).save(tmp_path)
    path = sorted(named(store))[3]
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        resume(configured, graph, "same", tmp_path, store.open(5)).train(60)


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_file_that_goes_meanwhile_is_named(configured, graph, damage, tmp_path):
    trained = begin(configured, graph, "same", tmp_path).train(5)
    store = trained.save(tmp_path)
    for path in named(store):
        path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"rows/entity-0000.*safetensors"):
        trained.train(60)
