"""The suite that times the reading of files."""

import pytest
from small_graph import N, graph_folder  # noqa: F401 - a fixture

from kgexp.errors import DataError
from kgexp.tools.benchmarks import load as module
from kgexp.tools.benchmarks.load import load

STAGES = {"fingerprint", "read", "index", "all"}


@pytest.fixture(autouse=True)
def once(monkeypatch):
    monkeypatch.setattr(module, "_TIMES", 1)


def test_the_embedded_graph(tmp_path, capfd):
    figures = load(["sharding=none", f"dataset.cache={tmp_path}"])
    assert (figures["triples"], figures["entities"]) == (36_543, 2_034)
    assert set(figures["seconds"]) == set(figures["triples_per_second"]) == STAGES
    assert all(set(rates) == {"median", "min", "max"} for rates in figures["triples_per_second"].values())
    # A distinct triple takes an id and a mask on either side, and a query a key and an offset.
    assert figures["index_bytes"] > 2 * 36_543 * (4 + 1)
    assert figures["peak_rss"] > 0
    assert not list(tmp_path.iterdir())  # the user's cache is left alone
    assert capfd.readouterr() == ("", "")


def test_buckets_of_partitions(graph_folder):  # noqa: F811
    figures = load(["dataset=files", f"dataset.path={graph_folder}", "sharding=partitioned", "sharding.partitions=3"])
    assert figures["entities"] == N
    assert figures["bytes"] == sum(path.stat().st_size for path in graph_folder.iterdir())
    assert set(figures["seconds"]) == {*STAGES, "bucket"}


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "graph.tsv").write_text("a\tr\n")
    with pytest.raises(DataError, match=r"graph\.tsv, line 1: expected 3 columns"):
        load(["dataset=files", f"dataset.path={tmp_path / 'graph.tsv'}"])
