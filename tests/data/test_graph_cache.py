import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kgexp.data import cache
from kgexp.data import load as loading
from kgexp.data.load import load
from kgexp.data.sides import Side
from kgexp.errors import DataError

TRAIN = "".join(f"e{i % 37}\tr{i % 5}\te{i * i % 41}\t{i / 7}\n" for i in range(501))
COLUMNS = ["head", "relation", "tail", "weight"]


def contents(graph):
    """All that a graph holds, as plain lists."""
    splits = [
        (split.triples.tolist(), None if split.weights is None else split.weights.tolist())
        for split in (graph.train, graph.valid, graph.test)
    ]
    names = [vocabulary.names(range(len(vocabulary))) for vocabulary in (graph.entities, graph.relations)]
    known = [[part.tolist() for part in graph.known.lookup(side, graph.train.triples)] for side in Side]
    return splits, names, known, graph.report, graph.fingerprint


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "graph.tsv"
    path.write_text(TRAIN)
    return path


@pytest.fixture
def group(dataset, source):
    return dataset(source, columns=COLUMNS)


@pytest.fixture
def built(monkeypatch):
    """Counts how often a graph is read from its files."""
    calls = []
    read = loading.read
    monkeypatch.setattr(loading, "read", lambda *args: calls.append(args) or read(*args))
    return calls


def test_second_load_maps_what_the_first_wrote(group, built):
    first, second = load(group), load(group)
    assert len(built) == 1
    assert contents(first) == contents(second)
    assert isinstance(second.train.triples, np.memmap) and isinstance(second.train.weights, np.memmap)
    assert not second.train.triples.flags.writeable
    assert contents(load(group | {"cache": None})) == contents(first)


def test_the_folder_is_as_described(group):
    graph = load(group)
    folder = Path(group["cache"]) / graph.fingerprint
    index = json.loads((folder / "graph.json").read_text())
    files = {path.name for path in folder.iterdir()}
    assert {"train_triples.npy", "train_weights.npy", "entities.arrow", "relations.arrow"} < files
    assert index["files"] == {name: (folder / name).stat().st_size for name in files - {"graph.json"}}
    assert index["report"]["splits"]["train"]["triples"] == len(graph.train)
    assert [path.name for path in Path(group["cache"]).iterdir()] == [graph.fingerprint]


def test_what_decides_ids_decides_the_fingerprint(group, source):
    def print_of(**changes):
        return load(group | changes).fingerprint

    fingerprint = print_of()
    assert len(fingerprint) == 32
    assert fingerprint == print_of(name="other", cache=None)
    changes = [
        {"split_seed": 1},
        {"valid": 0.1},
        {"header": True},
        {"columns": ["tail", "relation", "head", "weight"]},
    ]
    prints = {fingerprint, *(print_of(**change) for change in changes)}
    source.write_text(TRAIN + "x\ty\tz\t1\n")
    assert len(prints | {print_of()}) == 6


@pytest.mark.parametrize("damage", ["cut", "gone", "no index", "bad index", "empty folder"])
def test_a_damaged_folder_is_made_again(group, built, damage):
    first = load(group)
    before = contents(first)
    folder = Path(group["cache"]) / first.fingerprint
    if damage == "cut":
        whole = (folder / "train_triples.npy").read_bytes()
        (folder / "train_triples.npy").unlink()
        (folder / "train_triples.npy").write_bytes(whole[:-4])
    elif damage == "gone":
        (folder / "known_head_keys.npy").unlink()
    elif damage == "no index":
        (folder / "graph.json").unlink()
    elif damage == "bad index":
        (folder / "graph.json").write_text('{"files": ')
    else:
        shutil.rmtree(folder)
        folder.mkdir()
    assert contents(load(group)) == before
    assert len(built) == 2
    assert os.listdir(group["cache"]) == [first.fingerprint]


def test_the_loser_of_a_race_uses_the_winners_folder(tmp_path):
    def slow(folder: Path):
        def fast(other: Path):
            (other / "a").write_text("winner")
            return {}

        cache.obtain(tmp_path, "print", fast)
        (folder / "a").write_text("loser!")
        return {}

    folder = cache.obtain(tmp_path, "print", slow)
    assert (folder / "a").read_text() == "winner"
    assert os.listdir(tmp_path) == ["print"]


def _load(group, queue, barrier):
    barrier.wait()
    queue.put(contents(load(group)))


def test_processes_that_start_together_agree(group):
    context = multiprocessing.get_context("fork")
    queue, barrier = context.Queue(), context.Barrier(4)
    processes = [context.Process(target=_load, args=(group, queue, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert all(result == results[0] for result in results)
    assert os.listdir(group["cache"]) == [results[0][-1]]


def test_leftovers_of_killed_writers(tmp_path):
    old, new = tmp_path / "a.1.0.tmp", tmp_path / "b.2.0.tmp"
    for folder in (old, new):
        folder.mkdir()
        (folder / "x").write_text("x")
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    cache.obtain(tmp_path, "print", lambda folder: {})
    assert sorted(os.listdir(tmp_path)) == ["b.2.0.tmp", "print"]


def test_a_writer_that_fails_leaves_nothing(group, source):
    source.write_text(TRAIN + "broken\n")
    with pytest.raises(DataError, match="line 502"):
        load(group)
    assert os.listdir(group["cache"]) == []


def test_a_cache_that_cannot_be_written(group, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"dataset\.cache"):
        load(group | {"cache": str(tmp_path / "file" / "cache")})


def test_without_a_cache_the_folder_goes_with_the_process(group, tmp_path):
    code = f"from kgexp.data.load import load; g = load({group | {'cache': None}!r}); print(g.entities.path)"
    path = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    assert path.name == "entities.arrow" and not path.parent.exists() and not path.parent.parent.exists()
