"""The benchmark times the configuration's own ranks; its figures are positive and there for every rank."""

import json

import pytest
from rank_threads import as_ranks

from kgexp.errors import ConfigError
from kgexp.tools import bench, trainers
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


@pytest.fixture
def in_threads(monkeypatch, tmp_path):
    """Trainers are threads of this process; each has one pass timed, once."""

    def measured(config, worker):
        assert worker == "kgexp.tools.trainers.passes"
        as_ranks(config["sharding"]["ranks"], lambda world: trainers.passes(config, str(tmp_path), world))
        return json.loads((tmp_path / "figures.json").read_text())

    monkeypatch.setattr(trainers, "measured", measured)
    monkeypatch.setattr(trainers, "_TURNS", 1)
    monkeypatch.setattr(trainers, "_PASSES", 1)


TRAINERS = [
    "scoring=negatives",
    "scoring.negatives=10",
    "model.dim=8",
    "train.threads=1",
    "train.device=cpu",
    "train.batch_size=2000",
]
FOUR = ["sharding.partitions=4", "sharding.buffer=2"]


def test_numbers_of_trainers_are_compared_with_each_scheduler(in_threads):
    figures = trainers.compare([*TRAINERS, *FOUR, "--ranks", "1,2"])
    setups = [figures[name] for name in ("1 trainer", "2 trainers, tournament", "2 trainers, locks")]
    rates = [setup["triples_per_second"]["median"] for setup in setups]
    assert [setup["speedup"] for setup in setups] == pytest.approx([rate / rates[0] for rate in rates])
    # CoDEx-S has 32,888 triples to train, all of them in every pass.
    assert [rate * setup["seconds"] for rate, setup in zip(rates, setups, strict=True)] == pytest.approx([32888] * 3)
    assert all(0 < setup["busy"] <= 1 for setup in setups)
    assert all(setup["received_mb"] > 0 for setup in setups[1:])


def test_a_scheduler_that_is_given_is_the_only_one(in_threads):
    figures = trainers.compare([*TRAINERS, *FOUR, "sharding.chunks=3", "sharding.scheduler=locks", "--ranks", "2"])
    assert [name for name in figures if "trainer" in name] == ["2 trainers, locks"]
    setup = figures["2 trainers, locks"]
    # The second of three passes.
    assert setup["triples_per_second"]["median"] * setup["seconds"] == pytest.approx(32888 / 3, abs=1)


@pytest.mark.parametrize(
    ("argument", "sentence"), [("sharding.ranks=2", "give --ranks"), ("sharding=rowwise", "leave the other choice out")]
)
def test_trainers_say_what_they_do_not_take(argument, sentence):
    with pytest.raises(ConfigError, match=sentence):
        trainers.compare([*TRAINERS, argument])
