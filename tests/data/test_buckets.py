import os

import numpy as np
import pytest

from kgexp.data import buckets as module
from kgexp.data.buckets import count_buckets, obtain_buckets
from kgexp.data.load import load

ENTITIES = 97
BOUNDS = [0, 13, 13, 40, 41, 90, ENTITIES, ENTITIES]  # two slices are empty, one holds a single entity


def silent(message):
    pass


@pytest.fixture
def graph(tmp_path, dataset):
    return make(tmp_path, dataset)


def make(tmp_path, dataset, rows=1003, weighted=True, seed=0):
    generator = np.random.default_rng(seed)
    heads = np.append(np.arange(ENTITIES), generator.integers(ENTITIES, size=rows - ENTITIES))
    tails = generator.integers(ENTITIES, size=rows)
    tails[generator.random(rows) < 0.3] = 5  # a bucket may be far larger than the others
    path = tmp_path / f"graph{seed}"
    path.mkdir()
    lines = zip(heads, generator.integers(3, size=rows), tails, generator.random(rows), strict=True)
    (path / "train.txt").write_text("".join("\t".join(map(str, line[: 3 + weighted])) + "\n" for line in lines))
    return load(dataset(path, columns=["head", "relation", "tail", *["weight"][:weighted]]))


def by_hand(graph, bounds):
    """The triples and weights of every bucket, by one scan of train for each."""
    triples, slices = graph.train.triples, range(len(bounds) - 1)
    masks = [
        (bounds[a] <= triples[:, 0])
        & (triples[:, 0] < bounds[a + 1])
        & (bounds[b] <= triples[:, 2])
        & (triples[:, 2] < bounds[b + 1])
        for a in slices
        for b in slices
    ]
    weights = graph.train.weights
    return [triples[mask] for mask in masks], None if weights is None else [weights[mask] for mask in masks]


@pytest.mark.parametrize("piece", [7, 100, 1 << 20])
@pytest.mark.parametrize("bounds", [BOUNDS, [*range(21), ENTITIES], [0, ENTITIES]])
def test_buckets_hold_their_triples_in_the_order_of_train(graph, tmp_path, bounds, piece):
    buckets = obtain_buckets(graph, list(bounds), tmp_path / "cache", silent, rows=piece)
    counted = count_buckets(graph, list(bounds), rows=piece)
    assert np.array_equal(counted.offsets, buckets.offsets) and np.array_equal(counted.bounds, buckets.bounds)
    assert counted.row_bytes == buckets.row_bytes
    triples, weights = by_hand(graph, list(bounds))
    assert buckets.sizes().tolist() == [len(part) for part in triples]
    assert len(buckets) == len(graph.train) and buckets.bounds.tolist() == list(bounds)
    every = np.arange(len(triples))
    for some in (every, every[::3], every[:0], np.array([4, 5, 6, 20]) % len(every)):
        got, got_weights = buckets.read(some)
        assert got.dtype == np.int32 and got_weights.dtype == np.float64
        np.testing.assert_array_equal(got, np.concatenate([graph.train.triples[:0], *(triples[i] for i in some)]))
        np.testing.assert_array_equal(got_weights, np.concatenate([np.empty(0), *(weights[i] for i in some)]))


def test_one_slice_is_the_file_of_train(tmp_path, dataset):
    graph = make(tmp_path, dataset, weighted=False)
    buckets = obtain_buckets(graph, [0, ENTITIES], None, silent)
    triples, weights = buckets.read(np.arange(1))
    np.testing.assert_array_equal(triples, graph.train.triples)
    assert weights is None


def test_it_is_sorted_once_for_a_graph_and_bounds(graph, tmp_path, dataset):
    said = []
    other = make(tmp_path, dataset, seed=1)
    folder = tmp_path / "sorted"
    for graph_of, bounds in ((graph, BOUNDS), (graph, BOUNDS), (graph, [0, 5, ENTITIES]), (other, BOUNDS)):
        buckets = obtain_buckets(graph_of, bounds, folder, said.append)
        np.testing.assert_array_equal(
            buckets.read(np.arange(len(buckets.sizes())))[0], np.concatenate(by_hand(graph_of, bounds)[0])
        )
    assert len(os.listdir(folder)) == len(said) == 3


def test_what_a_killed_writer_left_and_a_damaged_file_are_of_no_use(graph, tmp_path, monkeypatch):
    folder = tmp_path / "sorted"

    def killed(*args):
        os._exit(9)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(module._Sorter, "_sort", killed)
        obtain_buckets(graph, BOUNDS, folder, silent)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (leftover,) = folder.iterdir()
    assert leftover.suffix == ".tmp"

    expected = np.concatenate(by_hand(graph, BOUNDS)[0])
    for damage in (False, True):
        if damage:
            (path,) = folder.glob("*[!p]/triples.npy")
            os.truncate(path, path.stat().st_size - 4)
        buckets = obtain_buckets(graph, BOUNDS, folder, silent)
        np.testing.assert_array_equal(buckets.read(np.arange(len(buckets.sizes())))[0], expected)


def test_progress_ends_at_its_total(graph, tmp_path):
    calls = []
    obtain_buckets(graph, BOUNDS, None, silent, lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls) and calls[-1] == (3 * len(graph.train), 3 * len(graph.train))
