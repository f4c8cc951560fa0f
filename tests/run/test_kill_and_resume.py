"""Killed at any moment and resumed, a run ends with the same bits as one that was never stopped."""

import os
import signal

import numpy as np
import pytest
import torch
from conftest import kills

KILLS = kills(1)
OVERRIDES = (
    "train.epochs=14",
    "checkpoint.every_steps=7",
    "checkpoint.every_epochs=0",
    "evaluation.every_steps=20",
    "evaluation.every_epochs=3",
    "schedule=plateau",
    "schedule.patience=0",
)
asked_for = pytest.mark.skipif("KGEXP_TEST_KILLS" not in os.environ, reason="KGEXP_TEST_KILLS=N asks for N kills")
#: What it took, in rows of metrics: of no two runs the same.
COSTS = {"visit/triples_per_second", "visit/waited", "visit/loads", "pass/loads", "pass/loads_planned", "pass/waited"}
COSTS |= {"pass/busy", "pass/sharing", "pass/received_mb", "train/seconds"}


def found(command):
    """The rows of metrics without the costs."""
    return [{key: value for key, value in row.items() if key not in COSTS} for row in command.rows()]


def same_end(one, two):
    """Whether two runs ended with the same bits, metrics and choice of the best."""
    left, right = one.tensors(), two.tensors()
    return (
        left.keys() == right.keys()
        and all(torch.equal(left[name], right[name]) for name in left)
        and found(one) == found(two)
        and one.result["metrics"] == two.result["metrics"]
        and one.result["best_step"] == two.result["best_step"]
    )


@pytest.mark.slow
@pytest.mark.timeout(60 + 40 * KILLS)
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("scoring=onevsall",), marks=asked_for),
        (
            *("scoring=negatives", "train.threads=2", "model.dim=512"),
            *("train.table_dtype=bfloat16", "train.state_dtype=bfloat16"),
        ),
        pytest.param(
            ("scoring=negatives", "optimizer=adam", "optimizer.lr=0.01", "schedule.warmup=40", "averaging.start=0.3"),
            marks=asked_for,
        ),
    ],
    ids=["all entities, one thread", "negatives, two threads, bfloat16", "Adam, warm-up, averaged weights"],
)
def test_a_killed_run_ends_with_the_same_bits(make_command, overrides):
    overrides = (*OVERRIDES, *overrides)
    straight = make_command("straight")
    done = straight.run(*overrides)
    assert done.returncode == 0, done.stderr
    steps = straight.result["step"]
    for i, step in enumerate(np.random.default_rng(len(overrides)).integers(1, steps, KILLS)):
        killed = make_command(f"killed-{i}")
        process = killed.start(*overrides)
        killed.wait_for_step(process, int(step))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
        resumed = killed.run(*overrides, "resume=auto")
        assert resumed.returncode == 0, resumed.stderr
        assert same_end(straight, killed), f"killed at step {step}"
        print(f"{overrides[-1]}: killed at step {step} of {steps}, resumed: the same bits")


@asked_for
@pytest.mark.slow
def test_a_run_that_is_made_longer_is_the_longer_run(make_command):
    overrides = ("evaluation.every_epochs=3", "schedule=plateau", "schedule.patience=0", "optimizer.lr=0.5")
    straight, extended = make_command("straight"), make_command("extended")
    for command, epochs, more in ((straight, 24, ()), (extended, 13, ()), (extended, 24, ("resume=auto",))):
        done = command.run(*overrides, f"train.epochs={epochs}", *more)
        assert done.returncode == 0, done.stderr
        evaluated = [row["step"] for row in command.rows() if "valid/triples" in row]
        assert evaluated[-1] == epochs * 11  # at the end in any case
    assert any(row.get("train/lr_factor", 1.0) < 1.0 for row in straight.rows())
    assert same_end(straight, extended)


@pytest.mark.slow
def test_a_stop_in_the_middle_of_an_evaluation_puts_it_off(make_command):
    # One query and a few entities at a time: the ranking takes long enough to be hit.
    overrides = ("train.epochs=4", "evaluation.every_steps=20", "evaluation.every_epochs=0", "evaluation.queries=1")
    straight, stopped = make_command("straight"), make_command("stopped")
    assert straight.run(*overrides).returncode == 0
    process = stopped.start(*overrides, "evaluation.block=8")
    stopped.wait_for_step(process, 40)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert stopped.result["status"] == "stopped" and stopped.result["step"] == 40
    assert [row["step"] for row in stopped.rows() if "valid/triples" in row] == [20]
    resumed = stopped.run(*overrides, "resume=auto")
    assert resumed.returncode == 0, resumed.stderr
    assert same_end(straight, stopped)
