"""The benchmark of ranking: a plain ranking beside it finds the same integers but for near ties."""

import json

import pytest
from rank_threads import as_ranks

from kgexp.tools.benchmarks.evaluate import evaluate
from kgexp.tools.composing import composed, composed_rowwise


def test_a_plain_ranking_agrees_and_the_figures_belong_together(tmp_path):
    evaluate(composed(["model.dim=8", "train.threads=1", "train.device=cpu"]), str(tmp_path))
    figures = json.loads((tmp_path / "figures.json").read_text())
    plain, queries = figures["plain"], figures["queries"]
    assert plain["queries"] <= queries
    assert plain["ranks_that_differ"] < 0.05 * plain["queries"]
    assert 0 < figures["distinct_queries"] < queries
    median = figures["test_seconds"]["median"]
    assert figures["faster_than_plain"] * median == pytest.approx(plain["seconds"])
    assert figures["share_of_products"] * median == pytest.approx(figures["products"])
    assert min(plain["seconds"], figures["products"]) > 0


def test_several_ranks_are_timed_without_a_plain_ranking_of_rows_that_they_lack(tmp_path):
    config = composed_rowwise(["model.dim=8", "train.threads=1", "train.device=cpu"])
    as_ranks(2, lambda world: evaluate(config, str(tmp_path), world))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["ranks"] == 2 and figures["candidates_per_second"] > 0
    assert "plain" not in figures
