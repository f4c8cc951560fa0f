"""The benchmark times the configuration's own ranks; its figures are positive and there for every rank."""

import json

import numpy as np
import pytest
from rank_threads import as_ranks

from kgexp.errors import ConfigError
from kgexp.tools.benchmarks import steps, trainers
from kgexp.tools.benchmarks.exchange import exchange
from kgexp.tools.benchmarks.scaling import scaling
from kgexp.tools.benchmarks.train import train
from kgexp.tools.composing import composed_rowwise
from kgexp.world import ALONE


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setattr(steps, "SECONDS", 0.02)
    monkeypatch.setattr(steps, "WINDOWS", 3)
    return composed_rowwise(["scoring=negatives", "model.dim=8", "train.threads=1", "train.device=cpu"])


def test_one_rank_and_several_are_timed_in_turns(config, tmp_path):
    as_ranks(2, lambda world: scaling(config, str(tmp_path), world))
    figures = json.loads((tmp_path / "figures.json").read_text())
    one, two = figures["alone"], figures["together"]
    medians = [part["triples_per_second"]["median"] for part in (one, two)]
    assert figures["speedup"] == pytest.approx(medians[1] / medians[0]) and min(medians) > 0
    assert figures["cpu_speedup"] > 0
    assert [len(part["ms_a_step_by_rank"]["cpu"]) for part in (one, two)] == [1, 2]
    assert one["ms_a_step_by_rank"]["exchanged"] == [0]
    assert min(two["ms_a_step_by_rank"]["exchanged"]) > 0


def test_training_counts_the_triples_of_all_ranks(config, tmp_path):
    as_ranks(2, lambda world: train(config, str(tmp_path), world))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["ranks"] == 2 and figures["triples_per_second"]["min"] > 0


@pytest.mark.parametrize("suite", [scaling, exchange])
def test_what_several_ranks_do_wants_several(suite, config, tmp_path):
    with pytest.raises(ConfigError, match=r"set sharding\.ranks"):
        suite(config, str(tmp_path), ALONE)


def test_the_exchange_counts_what_ranks_send_to_each_other(config, tmp_path, monkeypatch):
    monkeypatch.setattr("kgexp.tools.benchmarks.exchange.REPETITIONS", 2)
    asked = config | {"exchange": {"rows": [11, 37], "widths": [5]}}
    as_ranks(2, lambda world: exchange(asked, str(tmp_path), world))
    cases = json.loads((tmp_path / "figures.json").read_text())["cases"]
    assert list(cases) == ["11 rows of 5", "37 rows of 5"]
    for u, case in zip((11, 37), cases.values(), strict=True):
        # Of 74 rows rank 0 owns the first half; each row of the other rank is 20 bytes there and 20 back.
        wanted = [np.random.default_rng([rank, u]).choice(74, u, replace=False) for rank in (0, 1)]
        of_others = sum(wanted[0] >= 37) + sum(wanted[1] < 37)
        assert case["bytes_a_step"] == pytest.approx(2 * of_others * 20 / 2)
        assert case["gather"]["bytes"] == case["update"]["bytes"]
        assert min(case["plan_ms"], case["latency_ms"], case["gather"]["plain_ms"], case["update"]["ms"]) > 0


@pytest.fixture
def in_threads(monkeypatch, tmp_path):
    """Trainers are threads of this process; each has one pass timed, once."""

    def apart(measured, config, worker):
        assert worker == "kgexp.tools.benchmarks.trainers.passes"
        as_ranks(config["sharding"]["ranks"], lambda world: trainers.passes(config, str(tmp_path), world))
        return json.loads((tmp_path / "figures.json").read_text())

    monkeypatch.setattr(trainers, "apart", apart)
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
