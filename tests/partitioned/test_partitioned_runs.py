"""Whole runs in this process: resumed in the middle of a pass, with several workers, on graphs of a few entities."""

import json
import os
import signal
import threading
import time
from collections import Counter

import pytest
import torch
from trained import assert_equal, cut, saved

import kgexp.train.trainer as trainer_module
from kgexp.checkpoint.store import CheckpointStore
from kgexp.run import run

QUIET = ("tracking.mode=disabled", "tracking.progress=none", "train.threads=1", "tracking.every_steps=1")
OPTIONS = ("scoring=negatives", *QUIET, "checkpoint.every_steps=5")


@pytest.fixture(scope="module")
def train(configured):
    """Runs a configuration in a folder: its result, rows of metrics and newest checkpoint."""

    def train(folder, *overrides, resume=None):
        folder.mkdir(exist_ok=True)
        run(configured(*OPTIONS, *overrides) | {"resume": resume}, str(folder))
        result = json.loads((folder / "result.json").read_text())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return result, rows, CheckpointStore(folder / "checkpoints", 9).newest()

    return train


def without_times(rows):
    times = ("visit/triples_per_second", "visit/waited", "pass/waited", "visit/loads", "pass/loads", "train/seconds")
    return [{key: value for key, value in row.items() if key not in times} for row in rows]


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("storage", ["local", "memory"])
def test_a_run_that_stops_in_a_pass_goes_on_with_the_same_bits(train, storage, prefetch, tmp_path):
    overrides = (*cut(4, 2, slices=2, prefetch=prefetch, chunks=2), f"storage={storage}", "evaluation.every_steps=16")
    _, rows, straight = train(tmp_path / "straight", *overrides, "train.steps=48")
    for steps in (13, 14, 30, 48):  # each of them in the middle of a pass, one after another
        result, others, resumed = train(tmp_path / "resumed", *overrides, f"train.steps={steps}", resume="auto")
    assert result["step"] == 48 and without_times(others)[-1] == without_times(rows)[-1]
    assert_equal(saved(resumed, ("weight", "sum")), saved(straight, ("weight", "sum")))
    losses = [[row["train/loss"] for row in some if "train/loss" in row] for some in (rows, others)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("partitions", [cut(4, 2, slices=2), cut(1, 1)], ids=["four", "one"])
def test_workers_train_every_step_once_and_rest_while_others_work(train, partitions, tmp_path, monkeypatch):
    begun, running, most, busy = [], Counter(), [0], []
    step, save, evaluate = (trainer_module.run_step, trainer_module.check_finite, trainer_module.Trainer._evaluate)

    def slow(objective, entity, relation, work, factor):
        begun.append(work.batch.step)
        running[threading.get_ident()] += 1
        most[0] = max(most[0], sum(running.values()))
        time.sleep(0.002)
        loss = step(objective, entity, relation, work, factor)
        running[threading.get_ident()] -= 1
        return loss

    def alone(function):
        def call(*args, **options):
            busy.append(sum(running.values()))
            return function(*args, **options)

        return call

    monkeypatch.setattr(trainer_module, "run_step", slow)
    monkeypatch.setattr(trainer_module, "check_finite", alone(save))
    monkeypatch.setattr(trainer_module.Trainer, "_evaluate", alone(evaluate))
    overrides = (*partitions, "train.epochs=4", "evaluation.every_steps=7", "checkpoint.every_epochs=1")
    single, one, _ = train(tmp_path / "one", *overrides)
    assert sorted(begun) == list(range(single["step"])) and most[0] == 1
    begun.clear()
    result, several, checkpoint = train(tmp_path / "three", *overrides, "sharding.workers=3")
    assert sorted(begun) == list(range(result["step"])) and result["step"] == single["step"] == checkpoint.step
    assert most[0] == 3 and not any(busy) and len(busy) > 10
    steps = [[(row["step"], sorted(row)) for row in rows] for rows in (one, several)]
    assert steps[0] == steps[1], "epochs, visits and evaluations are where they are with one worker"
    ends = [[row["train/epoch_loss"] for row in rows if "train/epoch_loss" in row] for rows in (one, several)]
    assert len(ends[0]) == len(ends[1]) == 4
    falls = [losses[0] - losses[-1] for losses in ends]
    assert falls[0] > 0.1 and falls[1] == pytest.approx(falls[0], rel=0.2)


def test_an_error_of_a_worker_ends_the_run(train, tmp_path, monkeypatch):
    step = trainer_module.run_step

    def broken(objective, entity, relation, work, factor):
        if work.batch.step == 17:
            raise ZeroDivisionError("of worker")
        return step(objective, entity, relation, work, factor)

    monkeypatch.setattr(trainer_module, "run_step", broken)
    with pytest.raises(ZeroDivisionError, match="of worker"):
        train(tmp_path / "run", *cut(4, 2, workers=3), "train.epochs=4", "evaluation=none")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed" and "of worker" in result["error"]
    assert CheckpointStore(tmp_path / "run" / "checkpoints", 9).newest().step == 15
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker")]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stop_signal_lets_steps_end_that_are_under_way(train, workers, tmp_path, monkeypatch):
    step, begun = trainer_module.run_step, []

    def stopping(objective, entity, relation, work, factor):
        begun.append(work.batch.step)
        if work.batch.step == 17:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.002)
        return step(objective, entity, relation, work, factor)

    monkeypatch.setattr(trainer_module, "run_step", stopping)
    overrides = (*cut(4, 2, workers=workers), "train.epochs=4", "evaluation=none")
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", *overrides)
    assert ended.value.code == 128 + signal.SIGTERM
    checkpoint = CheckpointStore(tmp_path / "run" / "checkpoints", 9).newest()
    assert 18 <= checkpoint.step == len(begun) <= 18 + 6 * workers and sorted(begun) == list(range(checkpoint.step))
    monkeypatch.setattr(trainer_module, "run_step", step)
    result, _, _ = train(tmp_path / "run", *overrides, resume="auto")
    assert result["status"] == "finished"


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """A graph of five entities, of which one pair has all triples."""
    folder = tmp_path_factory.mktemp("five")
    lines = [f"e{h}\tr\te{t}\n" for h, t in ((0, 1), (1, 0), (2, 0), (3, 4), (4, 4), (1, 2), (0, 0))]
    for name, part in (("train", lines[:5]), ("valid", lines[5:6]), ("test", lines[6:])):
        (folder / f"{name}.txt").write_text("".join(part))
    return f"dataset.path={folder}"


@pytest.mark.parametrize(
    ("scoring", "storage", "sharding"),
    [
        ("negatives", "local", cut(4, 2)),
        ("onevsall", "memory", cut(4, 2, slices=2)),
        ("onevssample", "local", cut(5, 2, mix=False, spread=False, order="random")),
        ("onevsall", "local", cut(16, 4, slices=4)),
        ("negatives", "memory", cut(9, 3, holdout=0.5)),
        ("negatives", "local", cut(3, 2, slices=3, chunks=5)),
        ("kvsall", "local", cut(7, 7)),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else value,
)
def test_partitions_may_be_empty_or_one_entity(train, five, sharding, scoring, storage, tmp_path):
    overrides = (five, f"scoring={scoring}", *sharding, f"storage={storage}", "train.batch_size=2", "train.epochs=3")
    result, _, checkpoint = train(tmp_path / "run", *overrides)
    assert result["status"] == "finished" and result["metrics"]
    before = checkpoint.tensor("entity", "weight").read(0, 5)
    assert before.isfinite().all()
    _, _, resumed = train(tmp_path / "run", *overrides, "train.epochs=4", resume="auto")
    assert resumed.step > checkpoint.step
    assert not torch.equal(resumed.tensor("entity", "weight").read(0, 5), before)
