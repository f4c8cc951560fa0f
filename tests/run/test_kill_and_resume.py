"""Killed at any moment and resumed, a run ends with the same bits as one that was never stopped."""

import os
import signal

import numpy as np
import pytest
import torch

#: Kills in the test; the claim is about any of them, so more can be asked for.
KILLS = int(os.environ.get("KGEXP_TEST_KILLS", "2"))
OVERRIDES = (
    "train.epochs=14",
    "checkpoint.every_steps=7",
    "checkpoint.every_epochs=0",
    "evaluation.every_steps=20",
    "evaluation.every_epochs=3",
    "schedule=plateau",
    "schedule.patience=0",
)


def rows_by_step(command):
    """All metrics, without the clock."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in command.rows()]


@pytest.mark.slow
@pytest.mark.timeout(60 + 40 * KILLS)
@pytest.mark.parametrize("scoring", ["onevsall", "negatives"])
def test_a_killed_run_ends_with_the_same_bits(make_command, scoring):
    overrides = (*OVERRIDES, f"scoring={scoring}")
    straight = make_command("straight")
    done = straight.run(*overrides)
    assert done.returncode == 0, done.stderr
    steps = straight.result["step"]
    for i, step in enumerate(np.random.default_rng(len(scoring)).integers(1, steps, KILLS)):
        killed = make_command(f"killed-{i}")
        process = killed.start(*overrides)
        killed.wait_for_step(process, int(step))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
        resumed = killed.run(*overrides, "resume=auto")
        assert resumed.returncode == 0, resumed.stderr
        expected, got = straight.tensors(), killed.tensors()
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[name], got[name]) for name in expected), f"killed at step {step}"
        assert rows_by_step(killed) == rows_by_step(straight), f"killed at step {step}"
        assert killed.result["metrics"] == straight.result["metrics"]
        assert killed.result["best_step"] == straight.result["best_step"]
        print(f"{scoring}: killed at step {step} of {steps}, resumed: the same bits")
