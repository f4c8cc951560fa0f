"""Shards against the safetensors library and torch's distributed checkpoint; read by any range, written by anyone."""

import itertools
import os
import stat

import pytest
import torch
from safetensors.torch import load_file

from kgexp.errors import CheckpointError
from kgexp.storage.shards import RowReader, write_shard

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


def table(n=501, d=7, dtype=torch.float32):
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)


def write(folder, weight, cuts):
    """A tensor in files of rows `cuts[i] … cuts[i + 1]`."""
    paths = []
    for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
        paths.append(folder / f"entity-{i}.safetensors")
        write_shard(paths[-1], {"entity.weight": weight[start:stop], "entity.sum": weight[start:stop, 0]}, start)
    return paths


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_library_reads_what_we_write(tmp_path, dtype):
    weight = table(dtype=dtype)
    path = write(tmp_path, weight, [0, 501])[0]
    tensors = load_file(path)
    assert torch.equal(tensors["entity.weight"], weight)
    assert torch.equal(tensors["entity.sum"], weight[:, 0])


@pytest.mark.parametrize("cuts", [[0, 501], [0, 250, 501], [0, 0, 3, 3, 400, 501]])
def test_any_range_is_read_from_any_files(tmp_path, cuts):
    weight = table()
    reader = RowReader("entity.weight", list(reversed(write(tmp_path, weight, cuts))))
    assert reader.shape == (501, 7) and reader.dtype == torch.float32
    for start, stop in [(0, 501), (0, 0), (2, 4), (399, 401), (500, 501)]:
        assert torch.equal(reader.read(start, stop), weight[start:stop])
    sums = RowReader("entity.sum", write_other(tmp_path, weight, cuts))
    assert torch.equal(sums.read(100, 450), weight[100:450, 0])
    target = torch.zeros(300, 7)
    reader.copy_into(target, 150)
    assert torch.equal(target, weight[150:450])


def write_other(folder, weight, cuts):
    other = folder / "other"
    other.mkdir()
    return write(other, weight, cuts)


def test_torchs_distributed_checkpoint_puts_the_shards_together(tmp_path):
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    weight = table()
    write(tmp_path, weight, [0, 100, 333, 501])
    state = {"entity.weight": torch.zeros(501, 7), "entity.sum": torch.zeros(501)}
    load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert torch.equal(state["entity.weight"], weight)
    assert torch.equal(state["entity.sum"], weight[:, 0])


def test_a_missing_or_doubled_part_is_named(tmp_path):
    paths = write(tmp_path, table(), [0, 100, 333, 501])
    with pytest.raises(CheckpointError, match="row 333 after row 99"):
        RowReader("entity.weight", [paths[0], paths[2]])
    with pytest.raises(CheckpointError, match="twice"):
        RowReader("entity.weight", [paths[0], paths[0], paths[1], paths[2]])
    with pytest.raises(CheckpointError, match=r"entity-0\.safetensors: relation\.weight cannot be read"):
        RowReader("relation.weight", paths)


def test_a_truncated_file_is_named(tmp_path):
    path = write(tmp_path, table(), [0, 501])[0]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="cannot be read"):
        RowReader("entity.weight", [path])


def test_files_have_ordinary_modes(tmp_path):
    mask = os.umask(0o022)
    try:
        path = write(tmp_path, table(), [0, 501])[0]
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_committed_file_is_never_written_again(tmp_path):
    write(tmp_path, table(), [0, 501])
    with pytest.raises(FileExistsError):
        write(tmp_path, table(), [0, 501])
