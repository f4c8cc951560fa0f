"""Schedules against hand-computed numbers and torch's own."""

import pytest
import torch

from kgexp.optim.schedule import Constant, Cosine, Plateau, Step

SCHEDULES = [Constant, Cosine, Step, Plateau]


def test_plateau_waits_then_decays_and_remembers():
    schedule = Plateau(factor=0.5, patience=1, min_factor=0.2)
    for value in [0.1, 0.2, 0.2, 0.15]:  # the second failure in a row is one too many
        assert schedule.factor(0, 10) == 1.0
        schedule.observe(value)
    assert schedule.factor(0, 10) == 0.5
    other = Plateau(factor=0.5, patience=1, min_factor=0.2)
    other.load_state_dict(schedule.state_dict())
    for s in (schedule, other):
        for value in [0.1, 0.1, 0.1, 0.1]:
            s.observe(value)
        assert s.factor(0, 10) == 0.2


def test_constant_is():
    assert Constant().factor(3, 10) == 1.0


def test_cosine_is_torchs():
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=37, eta_min=0.1)
    schedule = Cosine(min_factor=0.1)
    for step in range(37):
        assert schedule.factor(step, 37) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()
    assert schedule.factor(37, 37) == pytest.approx(0.1)


def test_cosine_begins_after_the_warm_up():
    schedule = Cosine(warmup=10)
    assert schedule.factor(9, 30) == schedule.factor(10, 30) == 1.0
    assert schedule.factor(20, 30) == pytest.approx(0.5)
    assert schedule.factor(15, 30) == pytest.approx((1 + 0.5**0.5) / 2)


def test_step_is_the_decay_of_rotate():
    schedule = Step()
    assert [schedule.factor(step, 10) for step in range(10)] == [1.0] * 5 + [0.1] * 5
    assert schedule.factor(0, 1) == 0.1  # half of one step is none


def test_step_multiplies_at_every_fraction():
    schedule = Step(factor=0.5, at=[0.8, 0.3])
    assert [schedule.factor(step, 10) for step in range(10)] == [1.0] * 3 + [0.5] * 5 + [0.25] * 2
    assert Step(at=[]).factor(9, 10) == 1.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_schedule_warms_up(schedule):
    cold, warm = schedule(), schedule(warmup=4)
    assert [warm.factor(step, 100) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert cold.factor(0, 100) == 1.0
    assert warm.factor(70, 100) == warm.decay(70, 100)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("total", [0, 1, 3])
def test_a_warm_up_may_be_longer_than_the_run(schedule, total):
    warm = schedule(warmup=3)
    assert all(0 < warm.factor(step, total) <= 1 for step in range(total))
