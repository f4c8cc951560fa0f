"""What a run leaves behind, and how it ends when something is wrong."""

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file


def test_a_run_leaves_everything_that_is_promised(command):
    done = command.run("train.epochs=20", "evaluation.every_epochs=5", "tracking.mode=offline")
    assert done.returncode == 0, done.stderr
    result = command.result
    assert result["status"] == "finished" and result["error"] is None
    assert result["step"] == 220 and result["epoch"] == 20 and result["best_step"] in (55, 110, 165, 220)
    metrics = result["metrics"]
    assert metrics["test/filtered/realistic/both/mrr"] > 0.3  # chance is about .05
    assert result["objective"] == metrics["valid/filtered/realistic/both/mrr"]
    assert metrics["test/triples"] == 119
    for key in ("triples_per_second", "peak_rss", "fingerprint", "git_commit", "wandb_id", "memory_estimate"):
        assert key in result, key
    assert {"load", "train", "evaluate", "checkpoint", "test"} <= result["seconds"].keys()
    assert {"torch", "numpy", "kgexp", "python"} <= result["versions"].keys()
    assert str(command.folder) in done.stdout and "realistic" in done.stdout
    told = re.findall(
        r"^epoch (\S+), \d:\d\d:\d\d of training: valid/filtered/realistic/both/mrr (\S+) ", done.stdout, re.M
    )
    assert [epoch for epoch, _ in told] == ["5.0", "10.0", "15.0", "20.0"]
    assert f"{result['objective']:.4f}" in {value for _, value in told}
    assert list(command.folder.glob("wandb/offline-run-*"))

    rows = command.rows()
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 220 and losses[-1] < losses[0] / 2
    assert [row["step"] for row in rows if "valid/filtered/realistic/both/mrr" in row] == [55, 110, 165, 220]
    newest = command.checkpoints()[-1]
    assert newest.name == "step_0000000220"
    with safe_open(newest / "entity-00001-of-00001.safetensors", "pt") as file:
        assert file.get_slice("entity.weight").get_shape() == [97, 16]
        assert file.get_slice("entity.sum").get_shape() == [97, 16]
    assert json.loads((newest / "config.json").read_text())["model"]["dim"] == 16


@pytest.mark.parametrize(
    "overrides",
    [
        (
            *("model=rotate", "model.reciprocal=true", "model.margin=6", "scoring=negatives", "loss=logistic"),
            *("auxiliary=relation_prediction", "train.table_dtype=bfloat16"),
        ),
        (
            *("scoring=negatives", "scoring.negatives=20", "regularizer=none", "storage=local", "averaging.start=0.3"),
            *("optimizer=adam", "optimizer.lr=0.01", "optimizer.clip=1", "model.max_norm=5", "schedule=cosine"),
            "train.state_dtype=bfloat16",
        ),
        (
            *("evaluation=none", "model.reciprocal=false", "train.dtype=float64", "model.init=xavier_uniform"),
            *("optimizer=sgd", "optimizer.lr=30", "schedule=step", "schedule.warmup=5"),
        ),
        ("evaluation=sampled", "evaluation.candidates=20", "schedule=plateau", "early_stopping.patience=3"),
    ],
)
def test_other_choices_run_too(command, overrides):
    done = command.run("train.epochs=3", "evaluation.every_epochs=1", *overrides)
    assert done.returncode == 0, done.stderr
    metrics = command.result["metrics"]
    if "evaluation=none" in overrides:
        assert metrics == {} and command.result["objective"] is None
    elif "evaluation=sampled" in overrides:
        assert "test/sampled@20(uniform)/realistic/both/mrr" in metrics
        assert not any(name.startswith("test/filtered") for name in metrics)
    else:
        assert metrics["test/filtered/realistic/both/mrr"] > 0.04
    assert not (command.folder / "tables").exists()


def test_early_stopping_reports_the_best_checkpoint(command):
    done = command.run(
        "train.epochs=200",
        "optimizer.lr=0.5",
        "evaluation.every_epochs=2",
        "early_stopping.patience=2",
        "checkpoint.keep=1",
    )
    assert done.returncode == 0, done.stderr
    result, rows = command.result, command.rows()
    values = {r["step"]: r["valid/filtered/realistic/both/mrr"] for r in rows if len(r) > 20}
    assert result["best_step"] == max(values, key=values.get) < result["step"] < 200 * 11
    assert result["objective"] == max(values.values())
    assert f"testing the best checkpoint, of step {result['best_step']}" in done.stdout
    assert [int(path.name[5:]) for path in command.checkpoints()] == [result["best_step"], result["step"]]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_stop_signal_saves_and_the_run_goes_on_where_it_was(command, signum):
    process = command.start("train.epochs=5000", "checkpoint.every_epochs=0", "evaluation=none")
    command.wait_for_step(process, 5)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum, err
    assert "Traceback" not in err
    stopped = command.result
    assert stopped["status"] == "stopped" and stopped["step"] >= 5
    assert [path.name for path in command.checkpoints()] == [f"step_{stopped['step']:010d}"]
    if signum != signal.SIGTERM:  # what is saved does not know why
        return
    steps = stopped["step"] + 3
    done = command.run(
        "train.epochs=5000", f"train.steps={steps}", "checkpoint.every_epochs=0", "resume=auto", "evaluation=none"
    )
    assert done.returncode == 0, done.stderr
    assert f"resuming after step {stopped['step']}" in done.stdout
    assert command.result["status"] == "finished" and command.result["step"] == steps
    assert [row["step"] for row in command.rows() if "train/loss" in row] == list(range(1, steps + 1))


def test_a_run_whose_loss_is_not_finite_fails_by_name(command):
    done = command.run("optimizer.lr=1e30", "train.epochs=30", "checkpoint.every_steps=1")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("error: the loss of step ")
    assert "which begins with the triple" in done.stderr and "Traceback" not in done.stderr
    assert command.result["status"] == "failed" and "the loss of step" in command.result["error"]
    for path in command.checkpoints():
        assert all(t.isfinite().all() for f in path.glob("*.safetensors") for t in load_file(f).values())


def test_state_that_is_not_finite_is_never_saved(command, tmp_path):
    """A gradient of 1e25 is finite in float32, its square is not: the row would never move again."""
    heavy = tmp_path / "heavy"
    heavy.mkdir()
    (heavy / "train.txt").write_text("a\tr\tb\t1\nb\tr\tc\t1e25\n")
    command.arguments[1] = f"dataset.path={heavy}"
    done = command.run("dataset.columns=[head,relation,tail,weight]", "model.init_scale=1", "train.epochs=1")
    assert done.returncode == 3 and "entity.sum holds NaN or infinity, so this step was not saved" in done.stderr
    assert command.checkpoints() == []


def test_a_run_of_no_steps_is_saved_and_evaluated(command):
    done = command.run("train.steps=0")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in command.checkpoints()] == ["step_0000000000"]
    assert command.result["objective"] > 0 and command.result["status"] == "finished"


def test_two_processes_do_not_share_a_folder(command):
    first = command.start("train.epochs=5000", "evaluation=none")
    command.wait_for_step(first, 3)
    second = command.run("train.epochs=5000", "evaluation=none", "resume=auto")
    assert second.returncode == 2 and f"is in use by process {first.pid}" in second.stderr
    assert command.result["status"] == "running"
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGTERM


def test_patience_needs_a_validation_split(command, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "train.txt").write_text("a\tr\tb\n")
    command.arguments[1] = f"dataset.path={alone}"
    done = command.run("early_stopping.patience=2")
    assert done.returncode == 2 and "alone has no validation triples" in done.stderr


def test_a_checkpoint_of_rows_that_are_not_finite_is_not_gone_on_from(command):
    first = command.run("train.steps=10", "evaluation=none")
    assert first.returncode == 0, first.stderr
    shard = command.checkpoints()[-1] / "entity-00001-of-00001.safetensors"
    tensor = torch.full((97, 16), float("nan"))
    data = shard.read_bytes()
    header = int.from_bytes(data[:8], "little") + 8
    shard.write_bytes(data[:header] + tensor.numpy().tobytes() + data[header + tensor.nbytes :])
    again = command.run("train.steps=10", "resume=auto", "evaluation.splits=[test]")
    assert again.returncode == 3 and "entity.weight holds NaN" in again.stderr
    assert command.result["status"] == "failed"


def test_other_data_cannot_be_slipped_in(command, tmp_path):
    assert command.run("train.steps=5", "evaluation=none").returncode == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    source = command.arguments[1].partition("=")[2]
    for name in ("train", "valid", "test"):
        text = Path(source, f"{name}.txt").read_text()
        (copy / f"{name}.txt").write_text(text + ("e0\tr0\te5\n" if name == "train" else ""))
    config = command.folder / "config.yaml"
    config.write_text(config.read_text().replace(source, str(copy)))
    command.arguments[1] = f"dataset.path={copy}"
    done = command.run("train.steps=9", "evaluation=none", "resume=auto", "dataset.name=ring0")
    assert done.returncode == 2 and "was trained on other data" in done.stderr


def test_a_used_folder_is_not_written_over(command):
    assert command.run("train.steps=5", "evaluation=none").returncode == 0
    before = command.result
    done = command.run("train.steps=6", "evaluation=none")
    assert done.returncode == 2 and "holds a run already" in done.stderr
    assert command.result == before
