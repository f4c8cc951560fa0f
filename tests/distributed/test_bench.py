"""The benchmark times the configuration's own ranks; its figures are positive and there for every rank."""

import json

import pytest
from rank_threads import as_ranks

from kgexp.errors import ConfigError
from kgexp.tools import bench
from kgexp.tools.composing import composed_rowwise
from kgexp.world import ALONE


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setattr(bench, "_SECONDS", 0.02)
    monkeypatch.setattr(bench, "_WINDOWS", 3)
    return composed_rowwise(["scoring=negatives", "model.dim=8", "train.threads=1", "train.device=cpu"])


def test_one_rank_and_several_are_timed_in_turns(config, tmp_path):
    as_ranks(2, lambda world: bench.scaling(config, str(tmp_path), world))
    figures = json.loads((tmp_path / "figures.json").read_text())
    one, two = figures["1 rank"], figures["2 ranks"]
    medians = [part["triples_per_second"]["median"] for part in (one, two)]
    assert figures["speedup"] == pytest.approx(medians[1] / medians[0]) and min(medians) > 0
    assert figures["cpu_speedup"] > 0
    assert [len(part["ms_a_step_by_rank"]["cpu"]) for part in (one, two)] == [1, 2]
    assert one["ms_a_step_by_rank"]["exchanged"] == [0]
    assert min(two["ms_a_step_by_rank"]["exchanged"]) > 0


def test_training_counts_the_triples_of_all_ranks(config, tmp_path):
    as_ranks(2, lambda world: bench.train(config, str(tmp_path), world))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["ranks"] == 2 and figures["triples_per_second"]["min"] > 0


def test_scaling_wants_several_ranks(config, tmp_path):
    with pytest.raises(ConfigError, match=r"set sharding\.ranks"):
        bench.scaling(config, str(tmp_path), ALONE)
