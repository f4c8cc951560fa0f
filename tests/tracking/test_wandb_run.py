import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest
from offline_run import OfflineRun, read_offline_runs

from kgexp.errors import KgexpError
from kgexp.tracking.tracker import Tracker

wandb = pytest.importorskip("wandb")

CONFIG = {
    "mode": "offline",
    "project": "kgexp-tests",
    "entity": None,
    "group": "umls sweep",
    "name": "complex-none",
    "tags": ["complex", "umls"],
    "notes": "two ranks",
}


@pytest.fixture(autouse=True)
def wandb_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-home"))


def only_run(folder: Path) -> OfflineRun:
    (run,) = read_offline_runs(folder)
    return run


def test_an_offline_run_reads_back(tmp_path: Path) -> None:
    run_config: dict[str, Any] = {
        "seed": 0,
        "model": {"dim": 501, "_target_": "kgexp.models.complex.ComplEx"},
    }
    with Tracker(CONFIG, tmp_path / "a run", run_config, job_type="evaluate") as tracker:
        tracker.log(100, {"train/loss": 0.5, "split": "valid"})
        tracker.log(200, {"train/loss": math.nan})
        tracker.summary({"test/mrr": 0.3})
        wandb_id, command = tracker.wandb_id, tracker.sync_command
    run = only_run(tmp_path / "a run")
    assert (run.id, run.name, run.project) == (wandb_id, "complex-none", "kgexp-tests")
    assert (run.group, run.job_type, run.notes) == ("umls sweep", "evaluate", "two ranks")
    assert run.tags == ["complex", "umls"]
    assert {key: run.config[key] for key in run_config} == run_config
    first, second = run.history
    assert (first["step"], first["train/loss"], first["split"]) == (100, 0.5, "valid")
    assert second["step"] == 200
    assert math.isnan(float(second["train/loss"]))
    assert run.summary["test/mrr"] == 0.3
    assert run.step_metrics["*"] == "step"
    assert run.exit_code == 0
    assert command == f"wandb sync --yes '{tmp_path}/a run/wandb'/offline-run-*"
    assert len((tmp_path / "a run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_an_exception_marks_the_run_as_failed_and_the_next_job_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Tracker(CONFIG, tmp_path / "0", {"seed": 0}) as tracker:
        tracker.log(1, {"train/loss": 1.0})
        _ = 1 / 0
    with Tracker(CONFIG | {"name": "second"}, tmp_path / "1", {"seed": 1}) as tracker:
        tracker.log(1, {"train/loss": 2.0})
    first, second = only_run(tmp_path / "0"), only_run(tmp_path / "1")
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert first.id != second.id
    assert (first.name, second.name) == ("complex-none", "second")
    assert (first.config["seed"], second.config["seed"]) == (0, 1)
    assert [row["train/loss"] for row in first.history] == [1.0]
    assert [row["train/loss"] for row in second.history] == [2.0]


def test_a_run_that_others_left_open_is_not_written_into(tmp_path: Path) -> None:
    other = wandb.init(project="others", mode="offline", dir=tmp_path)
    with Tracker(CONFIG, tmp_path / "mine", {}) as tracker:
        tracker.log(1, {"train/loss": 1.0})
        assert tracker.wandb_id != other.id
    assert len(only_run(tmp_path / "mine").history) == 1
    assert only_run(tmp_path).history == []


def test_a_resumed_run_keeps_its_id_and_every_row(tmp_path: Path) -> None:
    with Tracker(CONFIG, tmp_path, {}) as tracker:
        for step in (100, 200, 300):
            tracker.log(step, {"train/loss": step / 7})
        wandb_id = tracker.wandb_id
    time.sleep(1.1)  # W&B names folders by id and second: the same name would be the same file
    with Tracker(CONFIG, tmp_path, {}, wandb_id=wandb_id) as tracker:
        tracker.keep(1)
        for step in (200, 300):
            tracker.log(step, {"train/loss": step / 7})
        tracker.log(100, {"test/mrr": 0.5})  # even a step that goes back
    before, after = read_offline_runs(tmp_path)
    assert before.id == after.id == wandb_id
    assert [row["step"] for row in before.history] == [100, 200, 300]
    assert [row["step"] for row in after.history] == [200, 300, 100]


def test_a_failure_to_log_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError("the service is gone\nat line 3")

    with caplog.at_level(logging.WARNING, "kgexp"), Tracker(CONFIG, tmp_path, {}) as tracker:
        with monkeypatch.context() as patch:
            patch.setattr(wandb.Run, "log", fail)
            tracker.log(1, {"train/loss": 1.0})
            tracker.log(2, {"train/loss": 2.0})
        tracker.log(3, {"train/loss": 3.0})
    assert [record.getMessage() for record in caplog.records] == [
        "Weights & Biases failed (the service is gone): the run goes on, metrics.jsonl has every row."
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    run = only_run(tmp_path)
    assert [row["step"] for row in run.history] == [3]
    assert run.exit_code == 0


def test_a_run_that_cannot_start_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with (
        pytest.raises(KgexpError, match=r"^Weights & Biases did not start in mode online \(.+\): run `wandb") as error,
        Tracker(CONFIG | {"mode": "online"}, tmp_path, {}),
    ):
        pytest.fail("the run started")
    assert "\n" not in str(error.value)
