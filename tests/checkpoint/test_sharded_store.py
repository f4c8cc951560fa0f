"""Checkpoints written by several ranks: read by any number, whole on all or failed on all."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kgexp.checkpoint import writing
from kgexp.checkpoint.store import CheckpointStore
from kgexp.errors import CheckpointError, ConfigError, RankError
from kgexp.optim.adagrad import RowwiseAdagrad
from kgexp.sharding.local import LocalTable
from kgexp.world import World

ROWS, BOUNDS = 501, (0, 100, 100, 333, 501)  # the second of four ranks has no rows


class Threads(World):
    """The ranks of a job as threads of this process; who waits in vain for ten seconds raises."""

    def __init__(self, rank, board):
        self.rank, self.size = rank, board.barrier.parties
        self._board = board

    def barrier(self, name):
        self.gather(name, None)

    def broadcast(self, name, value=None):
        return self.gather(name, value)[0]

    def gather(self, name, value):
        self._board.values[self.rank] = json.dumps([name, value])
        try:
            self._board.barrier.wait(10)
            said = [json.loads(text) for text in self._board.values]
            self._board.barrier.wait(10)  # before anyone speaks again
        except threading.BrokenBarrierError:
            raise RankError(f"a rank did not come to {name}") from None
        assert {other for other, _ in said} == {name}
        return [value for _, value in said]


class Board:
    def __init__(self, size):
        self.values, self.barrier = [""] * size, threading.Barrier(size)


def on_ranks(size, work):
    """What `work(world)` returned or raised on each rank."""
    board = Board(size)

    def one(rank):
        try:
            return work(Threads(rank, board))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


WHOLE = {
    "weight": torch.randn(ROWS, 7, generator=torch.Generator().manual_seed(0)),
    "sum": torch.rand(ROWS, generator=torch.Generator().manual_seed(1)),
}


def part(bounds, rank, whole=WHOLE):
    """The table of a rank that holds its own rows alone: all of them are in `state_tensors`."""
    start, stop = bounds[rank : rank + 2]
    weight, rest = whole["weight"][start:stop].clone(), {"sum": whole["sum"][start:stop].clone()}
    table = LocalTable("entity", weight, rest, RowwiseAdagrad())
    table.num_rows, table.bounds, table.first_row = len(whole["weight"]), bounds, start
    return table


def relation(fill=2.5):
    return LocalTable("relation", torch.full((6, 3), fill), {"sum": torch.full((6,), fill)}, RowwiseAdagrad())


def zeros():
    return {key: torch.zeros_like(tensor) for key, tensor in WHOLE.items()}


def saver(folder, bounds=BOUNDS, step=12, keep=2):
    names = folder / "names.arrow"
    if not names.exists():
        names.write_bytes(b"names")

    def save(world):
        store = CheckpointStore(folder / "checkpoints", keep, world)
        tables = {"entity": part(bounds, world.rank), "relation": relation()}
        return store.save(step, tables, {"step": step}, {"seed": 3}, {"entities.arrow": names})

    return save


def even(size):
    return tuple(ROWS * rank // size for rank in range(size + 1))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    paths = on_ranks(4, saver(folder))
    assert paths == [folder / "checkpoints" / "step_0000000012"] * 4
    return paths[0]


def test_each_rank_writes_its_rows_and_one_the_relations(written):
    shards = [f"entity-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    alone = ["relation-00001-of-00001.safetensors", "entities.arrow", "state.json", "config.json", "index.json"]
    assert sorted(path.name for path in written.iterdir()) == sorted(shards + alone)
    assert [path.name for path in written.parent.iterdir()] == [written.name]


@pytest.mark.parametrize("bounds", [even(1), even(2), even(3), even(7), (0, 0, 500, 500, 501)])
def test_any_number_of_ranks_reads_what_four_wrote(written, bounds):
    def read(world):
        checkpoint = CheckpointStore(written.parent, 2, world).newest()
        mine, relations = part(bounds, world.rank, zeros()), relation(0.0)
        checkpoint.load(mine)
        checkpoint.load(relations)
        assert checkpoint.step == 12 and checkpoint.config == {"seed": 3}
        for key, tensor in relation().state_tensors().items():
            assert torch.equal(relations.state_tensors()[key], tensor)
        return mine.state_tensors()

    ranks = on_ranks(len(bounds) - 1, read)
    for key, whole in WHOLE.items():
        assert torch.equal(torch.cat([tensors[key] for tensors in ranks]), whole)


def test_the_shape_of_the_whole_table_decides(written):
    larger = {key: torch.cat([tensor, tensor[:1]]) for key, tensor in WHOLE.items()}
    table = part((0, 100, 502), 0, larger)
    with pytest.raises(CheckpointError, match=r"\[501, 7\].*needs torch\.float32 \[502, 7\]"):
        CheckpointStore(written.parent, 2).newest().load(table)


def test_torch_reads_and_consolidates_it(written, tmp_path):
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    state = {f"entity.{key}": torch.zeros_like(tensor) for key, tensor in WHOLE.items()}
    load(state, storage_reader=HuggingFaceStorageReader(str(written)), no_dist=True)
    consolidate_safetensors_files(
        str(written), str(tmp_path), dict.fromkeys([*state, "relation.weight", "relation.sum"], 1)
    )
    (file,) = tmp_path.glob("*.safetensors")
    for tensors in (state, load_file(file)):
        for key, whole in WHOLE.items():
            assert torch.equal(tensors[f"entity.{key}"], whole)


def test_small_ranges_and_one_rank(tmp_path):
    small = {key: tensor[:5] for key, tensor in WHOLE.items()}
    bounds = (0, 2, 3, 5, 5)
    on_ranks(
        4,
        lambda world: CheckpointStore(tmp_path, 1, world).save(
            1, {"entity": part(bounds, world.rank, small)}, {}, {}, {}
        ),
    )
    checkpoint = CheckpointStore(tmp_path, 1).newest()
    assert torch.equal(checkpoint.tensor("entity", "weight").read(0, 5), small["weight"])
    assert len(list(checkpoint.path.glob("entity-*-of-00003.safetensors"))) == 3


@pytest.mark.parametrize("broken", [0, 2])
def test_the_disk_error_of_one_rank_fails_all_and_the_next_save_works(tmp_path, monkeypatch, broken):
    write_shard = writing.write_shard

    def fails(path, tensors, start):
        if start == BOUNDS[broken]:
            with open(path, "wb") as file:
                file.write(b"a part")
            raise OSError(28, "No space left on device")
        write_shard(path, tensors, start)

    on_ranks(4, saver(tmp_path, step=1))
    monkeypatch.setattr(writing, "write_shard", fails)
    errors = on_ranks(4, saver(tmp_path, step=2))
    assert isinstance(errors[broken], ConfigError) and "free some" in str(errors[broken])
    others = [error for rank, error in enumerate(errors) if rank != broken]
    assert [type(error) for error in others] == [RankError] * 3
    assert all(f"rank {broken}: " in str(error) and "No space" in str(error) for error in others)
    assert CheckpointStore(tmp_path / "checkpoints", 2).steps() == [1]
    monkeypatch.undo()
    on_ranks(4, saver(tmp_path, step=2))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_0000000001", "step_0000000002"]


@pytest.mark.parametrize("there", [False, True])
def test_ranks_without_a_common_folder_are_told(tmp_path, there):
    """Rank 3 is on another machine; a folder of the same name may even lie there."""
    other = tmp_path / "other"
    other.mkdir()
    if there:
        (other / "checkpoints" / "step_0000000012.tmp").mkdir(parents=True)
    errors = on_ranks(4, lambda world: saver(other if world.rank == 3 else tmp_path)(world))
    assert [type(error) for error in errors] == [CheckpointError] * 4
    for error in errors:
        assert "entity-00003-of-00003.safetensors" in str(error) and "rank 3" in str(error)
        assert "all ranks need one shared folder" in str(error)
    assert CheckpointStore(tmp_path / "checkpoints", 2).steps() == []


def test_all_ranks_pass_over_a_damaged_checkpoint_alike(tmp_path):
    for step in (1, 2):
        on_ranks(4, saver(tmp_path, step=step))
    folder = tmp_path / "checkpoints"
    shard = folder / "step_0000000002" / "entity-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    said = [[] for _ in range(3)]

    def newest(world):
        return CheckpointStore(folder, 2, world).newest(said[world.rank].append).step

    assert on_ranks(3, newest) == [1, 1, 1]
    assert [len(lines) for lines in said] == [1, 0, 0]
    assert on_ranks(4, saver(tmp_path, step=2))[3].name == "step_0000000002"  # written anew, by all
    assert on_ranks(3, newest) == [2, 2, 2]
    for path in folder.iterdir():
        (path / "index.json").unlink()
    errors = on_ranks(3, newest)
    assert [type(error) for error in errors] == [CheckpointError] * 3
    assert all("step_0000000002/index.json" in str(error) for error in errors)


def test_a_checkpoint_that_is_there_is_not_written_again(tmp_path):
    path = on_ranks(4, saver(tmp_path))[0]
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    assert on_ranks(2, saver(tmp_path, bounds=even(2))) == [path, path]
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before


def test_what_killed_ranks_left_is_no_part_of_the_next_checkpoint(tmp_path):
    path = on_ranks(4, saver(tmp_path, step=1))[0]
    shutil.copytree(path, path.with_name("step_0000000002.tmp"))
    (path.with_name("step_0000000002.tmp") / "index.json").unlink()
    assert CheckpointStore(tmp_path / "checkpoints", 2).newest().step == 1
    newer = on_ranks(2, saver(tmp_path, bounds=even(2), step=2))[0]
    assert sorted(file.name for file in newer.glob("entity-*")) == [
        "entity-00001-of-00002.safetensors",
        "entity-00002-of-00002.safetensors",
    ]
    assert [path.name for path in newer.parent.glob("*.tmp")] == []
