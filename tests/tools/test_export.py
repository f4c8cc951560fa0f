"""Exported vectors are those of the run, bit by bit, under their names, and take no more memory for more rows."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from kgexp.checkpoint.store import CheckpointStore
from kgexp.data.vocabulary import Vocabulary
from kgexp.optim.adagrad import RowwiseAdagrad
from kgexp.sharding.local import LocalTable
from kgexp.storage.shards import RowReader
from kgexp.tools import export

N, D = 53, 6
NAMES = [f"entity {i} «ø» \"quoted\", and 'more'" for i in range(N)]


def weights(step, n=N, dtype=torch.float32, d=D):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(step), dtype=dtype)


def save(folder, step, best=None, key="weight", dtype=torch.float32, names=NAMES):
    """A checkpoint of step `step` in the run `folder`, with 2 x 3 relation rows for 3 relations."""
    folder.mkdir(exist_ok=True)
    files = {}
    for file, kind, words in (("entities", "entity", names), ("relations", "relation", ["likes", "knows", "is a"])):
        path = folder / f"{file}-{step}.arrow"
        Vocabulary(pa.array(words, pa.large_string()), kind).save(path)
        files[f"{file}.arrow"] = path
    tables = {}
    for name, n in (("entity", len(names)), ("relation", 6)):
        weight, other = weights(step, n, dtype), weights(step + 100, n, dtype)
        state = {"sum": weight[:, 0]} | ({} if key == "weight" else {key: weight})
        tables[name] = LocalTable(name, weight if key == "weight" else other, state, RowwiseAdagrad())
    state = {"best": {"step": best}, "model_weight": key}
    return CheckpointStore(folder / "checkpoints", 9).save(step, tables, state, {}, files)


@pytest.fixture
def run(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path / "run", step, best=min(step, 2))
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(export, "_BLOCK", 10 * D)  # 53 rows are six blocks, the last one short


def kgexp_export(*arguments):
    return export.main([str(argument) for argument in arguments])


def read_tsv(path, dtype=np.float32):
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")]
    assert lines.pop() == [""]
    return [line[0] for line in lines], torch.from_numpy(np.array([line[1:] for line in lines], dtype))


def read_names(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def test_each_format_holds_the_vectors_of_the_best_checkpoint(run, tmp_path, capsys):
    assert kgexp_export(run, tmp_path / "new" / "e.tsv") == 0
    names, vectors = read_tsv(tmp_path / "new" / "e.tsv")
    assert names == NAMES and torch.equal(vectors, weights(2))
    assert "53 entity rows of step 2" in capsys.readouterr().out
    assert kgexp_export(run, tmp_path / "e.npy") == 0
    mapped = np.load(tmp_path / "e.npy", mmap_mode="r")
    assert mapped.dtype == np.float32 and torch.equal(torch.from_numpy(mapped.copy()), weights(2))
    assert read_names(tmp_path / "e.names.txt") == NAMES
    assert kgexp_export(run, tmp_path / "vectors.bin", "--format", "safetensors") == 0
    tensors = load_file(tmp_path / "vectors.bin")
    assert list(tensors) == ["entity.weight"] and torch.equal(tensors["entity.weight"], weights(2))
    assert read_names(tmp_path / "vectors.names.txt") == NAMES
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(("arguments", "step"), [([], 2), (["--newest"], 3), (["--step", 1], 1), (["--step", 3], 3)])
def test_the_checkpoint_is_chosen(run, tmp_path, arguments, step):
    assert kgexp_export(run, tmp_path / "e.npy", *arguments) == 0
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "e.npy")), weights(step))


def test_a_checkpoint_is_exported_as_it_is_and_a_run_without_validation_from_its_newest(tmp_path):
    first = save(tmp_path / "run", 1)
    save(tmp_path / "run", 2)
    assert kgexp_export(first, tmp_path / "one.npy") == 0
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "one.npy")), weights(1))
    assert kgexp_export(tmp_path / "run", tmp_path / "two.npy") == 0
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "two.npy")), weights(2))


def test_inverse_relations_have_names_of_their_own(run, tmp_path):
    assert kgexp_export(run, tmp_path / "r.tsv", "--table", "relation", "--step", 1) == 0
    names, vectors = read_tsv(tmp_path / "r.tsv")
    assert names == ["likes", "knows", "is a", "likes_inverse", "knows_inverse", "is a_inverse"]
    assert torch.equal(vectors, weights(1, 6))


def test_averaged_weights_are_the_model_where_weights_were_averaged(tmp_path):
    path = save(tmp_path / "run", 1, key="average")
    assert kgexp_export(path, tmp_path / "e.safetensors") == 0
    assert torch.equal(load_file(tmp_path / "e.safetensors")["entity.weight"], weights(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_read_back_exactly(tmp_path, dtype):
    rows = weights(1, 40, dtype)
    rows[:, 0] *= torch.logspace(-40, 38, 40, dtype=torch.float64).to(dtype)
    special = [0.1, 1 / 3, -0.0, 1e-45, 3.4028234e38, 1e16, 123456789.0, 5e-324, float("inf")]
    rows[: len(special), 1] = torch.tensor(special, dtype=torch.float64).to(dtype)
    lines = export.FORMATS["tsv"].body(rows, ["name"] * 40).decode().splitlines()
    numpys = torch.float64 if dtype == torch.float64 else torch.float32
    back = np.array([line.split("\t")[1:] for line in lines], np.float64 if dtype == torch.float64 else np.float32)
    assert torch.equal(torch.from_numpy(back), rows.to(numpys))
    if dtype == torch.float32:
        assert lines[0].split("\t")[2] == "0.1"  # not 0.10000000149


@pytest.mark.parametrize("format", ["tsv", "npy", "safetensors"])
def test_memory_does_not_grow_with_the_table(tmp_path, monkeypatch, format):
    read, sizes = RowReader.read, []
    monkeypatch.setattr(RowReader, "read", lambda self, a, b: (sizes.append(b - a), read(self, a, b))[1])
    monkeypatch.setattr(export, "_BLOCK", 100 * D)
    peaks = []
    for n in (2_000, 10_000):
        path = save(tmp_path / f"run{n}", 1, names=[f"e{i}" for i in range(n)])
        rows = export.Rows(export.choose(path), "entity")
        tracemalloc.start()
        export.export(rows, tmp_path / f"{n}.{format}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(sizes) == 100 and sum(sizes) == 12_000
    assert peaks[1] < peaks[0] + 20_000  # of 8,000 rows, less than three bytes each


def test_nothing_is_overwritten_unless_forced(run, tmp_path, capsys):
    (tmp_path / "e.names.txt").write_text("mine")
    assert kgexp_export(run, tmp_path / "e.npy") == 2
    assert "e.names.txt exists" in capsys.readouterr().err and not (tmp_path / "e.npy").exists()
    assert kgexp_export(run, tmp_path / "e.npy", "--force") == 0
    assert read_names(tmp_path / "e.names.txt") == NAMES


def test_an_error_leaves_what_was_there(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "e.tsv").write_text("mine")

    def full(block, names):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(export.FORMATS, "tsv", export.FORMATS["tsv"]._replace(body=full))
    assert kgexp_export(run, tmp_path / "e.tsv", "--force") == 1
    assert "No space left" in capsys.readouterr().err
    assert (tmp_path / "e.tsv").read_text() == "mine" and not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["RUN", "e.vec"], "e.vec does not end in a format"),
        (["RUN", "e.npy", "--step", "7"], "has no checkpoint of step 7: there are 1, 2, 3"),
        (["RUN/checkpoints/step_0000000001", "e.npy", "--newest"], "is one checkpoint already"),
        (["RUN/nothing", "e.npy"], "is no checkpoint and no run that has one"),
        (["RUN", "folder.npy"], "folder.npy is a folder"),
    ],
)
def test_errors_are_sentences(run, tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    assert kgexp_export(*[argument.replace("RUN", str(run)) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.npy", "run"]


def test_names_that_do_not_fit_the_rows_are_refused(tmp_path, capsys):
    path = save(tmp_path / "run", 1)
    fewer = tmp_path / "fewer.arrow"
    Vocabulary(pa.array(["one"], pa.large_string())).save(fewer)
    index = json.loads((path / "index.json").read_text())
    index["files"]["entities.arrow"] = fewer.stat().st_size
    (path / "index.json").write_text(json.dumps(index))
    fewer.rename(path / "entities.arrow")
    assert kgexp_export(path, tmp_path / "e.npy") == 2
    assert "53 entity rows have 1 names" in capsys.readouterr().err
