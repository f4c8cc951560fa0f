"""The parts of the loop: batches, the meter, the best, the plan."""

import math

import numpy as np
import pytest
import torch

from kgexp.data.graph import Split
from kgexp.errors import ConfigError, NonFiniteError
from kgexp.train.batches import Batches
from kgexp.train.best import Best
from kgexp.train.calendar import Regular
from kgexp.train.memory import Estimate
from kgexp.train.meter import LossMeter
from kgexp.train.plan import Cadence, Plan


def batches(n=501, size=40, seed=0, weights=True):
    triples = np.arange(3 * n, dtype=np.int32).reshape(n, 3)
    split = Split("train", triples, np.arange(n) / 2 if weights else None)
    return Batches(split, size, seed, torch.float32)


def test_an_epoch_holds_every_triple_once():
    make = batches()
    assert make.calendar.steps(1) == 13
    for epoch in range(2):
        epoch_batches = [make(13 * epoch + i) for i in range(13)]
        assert [len(b) for b in epoch_batches] == [40] * 12 + [21]
        heads = torch.cat([b.triples[:, 0] for b in epoch_batches])
        assert sorted(heads.tolist()) == list(range(0, 3 * 501, 3))


def test_weights_go_with_their_triples():
    batch = batches()(3)
    assert torch.equal(batch.weights, batch.triples[:, 0].float() / 6)
    assert batches(weights=False)(3).weights is None


def test_a_batch_depends_on_its_step_alone(monkeypatch):
    in_order = [batches()(i).triples for i in range(30)]
    assert torch.equal(batches()(17).triples, in_order[17])
    monkeypatch.setattr("kgexp.train.batches._POSITIONS", 100)  # the order is computed in pieces
    pieces = batches()
    assert all(torch.equal(pieces(i).triples, in_order[i]) for i in [*range(30), 5, 4])
    assert not torch.equal(batches(seed=1)(0).triples, in_order[0])
    assert not torch.equal(in_order[0], in_order[13])  # the next epoch


def test_the_meter_gives_means_by_triple():
    meter = LossMeter(str)
    meter.add(0, 10, torch.tensor(1.0))
    meter.add(1, 30, torch.tensor(2.0))
    assert meter.mean("steps") == 70 / 40
    meter.add(2, 10, torch.tensor(5.0))
    assert meter.mean("steps") == 5.0 and meter.mean("epoch") == 120 / 50
    assert math.isnan(meter.mean("epoch"))


@pytest.mark.parametrize("pending", [1, 64])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_meter_names_the_first_bad_step(pending, bad):
    meter = LossMeter(lambda step: f"batch {step}", pending)
    with pytest.raises(NonFiniteError, match=r"step 2 is (nan|inf) \(batch 1\)"):
        meter.add(0, 10, torch.tensor(1.0))
        meter.add(1, 10, torch.tensor(bad))
        meter.add(2, 10, torch.tensor(math.nan))
        meter.state_dict()


def test_the_meter_goes_on_from_its_state():
    one = LossMeter(str)
    one.add(0, 3, torch.tensor(0.1))
    two = LossMeter(str)
    two.load_state_dict(one.state_dict())
    for meter in (one, two):
        meter.add(1, 5, torch.tensor(0.7))
    assert one.mean("epoch") == two.mean("epoch")


def test_patience_counts_evaluations_without_improvement():
    best = Best(patience=2, min_delta=0.1)
    assert [best.update(step, value) for step, value in enumerate([0.5, 0.55, 0.7, 0.75])] == [1, 0, 1, 0]
    assert not best.exhausted and best.step == 2
    other = Best(patience=2, min_delta=0.1)
    other.load_state_dict(best.state_dict())
    assert not other.update(4, 0.79) and other.exhausted
    assert not Best(None).exhausted


def test_cadences():
    assert [s for s in range(1, 31) if Cadence(2, 0).due(s, Regular(5))] == [10, 20, 30]
    assert [s for s in range(1, 11) if Cadence(0, 4).due(s, Regular(5))] == [4, 8]
    assert [s for s in range(1, 11) if Cadence(1, 4).due(s, Regular(5))] == [4, 5, 8, 10]
    assert not any(Cadence(0, 0).due(s, Regular(5)) for s in range(1, 11))


@pytest.mark.parametrize("cadence", [Cadence(2, 0), Cadence(0, 4), Cadence(3, 4), Cadence(1, 1), Cadence(0, 0)])
@pytest.mark.parametrize("total", [0, 7, 30])
def test_cadences_are_counted_as_they_fall_due(cadence, total):
    steps = sum(cadence.due(step, Regular(5)) for step in range(1, total + 1))
    assert cadence.count(total, Regular(5)) == steps
    plan = Plan(total, cadence, cadence, cadence, 1)
    assert plan.evaluations(Regular(5)) == steps + (not cadence.due(total, Regular(5)))


def test_a_run_that_cannot_fit_is_refused_with_what_would():
    estimate = Estimate({"entity table": 8_000_000_000, "a step": 500_000_000})
    estimate.check(None, 200)
    estimate.check(8_500_000_000, 200)
    with pytest.raises(
        ConfigError, match=r"needs 8\.5 GB of memory and 4 GB are free: model\.dim=84 would fit, or storage=local"
    ):
        estimate.check(4_000_000_000, 200)
    assert "entity table 8 GB" in estimate.line()


def test_state_that_does_not_fit_its_device_is_refused():
    estimate = Estimate({"entity table": 4_000_000_000}, state=8_000_000_000)
    estimate.check(4_000_000_000, 200, 8_000_000_000)
    with pytest.raises(ConfigError, match=r"state needs 8 GB of memory on sharding\.state_device and 7 GB are free"):
        estimate.check(4_000_000_000, 200, 7_000_000_000)
    assert "memory: 4 GB (entity table 4 GB) and 8 GB of optimizer state on another device" in estimate.line()
