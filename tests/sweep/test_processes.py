"""Sweeps whose trials are processes: what one of them does to itself or suffers, the others do not feel."""

import json
import os
import signal
from pathlib import Path

import pytest
from offline_run import read_offline_runs
from sweeps import Sweeps, trials

from kgexp.train.pruning import storage

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")]

TWO = ("hydra.launcher.n_jobs=2",)
FATES = "model._target_=strange.Slow,strange.Killed,strange.Diverging,elsewhere.Mine,kgexp.models.complex.ComplEx"


asked_for = pytest.mark.skipif("KGEXP_TEST_SWEEPS" not in os.environ, reason="KGEXP_TEST_SWEEPS=everything asks for it")


@pytest.fixture
def sweeps(tmp_path):
    made = Sweeps(tmp_path)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def metrics(sweeps: Sweeps, number: int) -> dict:
    result = sweeps.result(number)
    assert result["status"] == "finished" and sweeps.steps(number)[-1] == 40
    return result["metrics"]


def test_each_trial_has_its_own_fate(sweeps):
    pytest.importorskip("wandb")
    first = sweeps.run(*TWO, FATES)
    assert first.returncode == 4, first.err
    statuses = ["finished", "failed", "failed", "failed", "finished"]
    known = trials(sweeps.folder)
    assert [trial["status"] for trial in known] == statuses
    for trial, why in zip(known[1:4], ("killed by signal 9 (SIGKILL)", "nan", "plugins=[elsewhere]"), strict=True):
        assert why in trial["error"].lower() or why in trial["error"], trial
        assert f"failed: trial {trial['number']} ({trial['swept'][0]}): {trial['error']}" in first.stdout
    assert first.stderr.splitlines()[-1].startswith("error: 3 of 5 trials failed, the first with: ")
    assert "Traceback" not in first.stdout + first.stderr
    assert "sweep of 5 trials: 3 failed, 2 finished" in first.stdout and "best: trial" in first.stdout
    for number in (0, 1, 2, 4):
        result = sweeps.result(number)
        assert (result["status"], result["error"]) == (statuses[number], None) or result["error"]
        assert (sweeps.place(number) / "console.txt").is_file()
    assert "run folder:" in (sweeps.place(0) / "console.txt").read_text()
    assert "not finite" in (sweeps.place(2) / "console.txt").read_text() or sweeps.result(2)["error"]
    assert known[0]["values"] == [sweeps.result(0)["objective"]] and known[1]["values"] is None
    check_wandb(sweeps, known)

    files = [sweeps.place(number) / "result.json" for number in range(5) if number != 3]
    before = [file.stat().st_mtime_ns for file in files]
    again = sweeps.run(*TWO, FATES)
    assert again.returncode == 4 and "error: 2 of 5 trials failed" in again.stderr
    assert [trial["status"] for trial in trials(sweeps.folder)] == [*statuses[:1], "finished", *statuses[2:]]
    same = [file.stat().st_mtime_ns == time for file, time in zip(files, before, strict=True)]
    assert same == [True, False, False, True]
    assert metrics(sweeps, 1) == metrics(sweeps, 0) == metrics(sweeps, 4)  # one model, by three names
    assert sweeps.gone(20)


def check_wandb(sweeps: Sweeps, known: list[dict]) -> None:
    """A run for each trial that began, and one of the sweep with a table of all."""
    group = f"{sweeps.home.name}/s"
    for number, code in ((0, 0), (2, 1), (4, 0)):
        [run] = read_offline_runs(sweeps.place(number))
        assert (run.group, run.name, run.job_type) == (group, known[number]["swept"][0], "train")
        assert run.exit_code == code and run.id == sweeps.result(number)["wandb_id"]
        assert run.config["model"]["_target_"] == known[number]["swept"][0].partition("=")[2]
    assert not list(sweeps.folder.glob("3-*/wandb"))
    [run] = read_offline_runs(sweeps.folder)
    assert (run.group, run.job_type, run.exit_code) == (group, "sweep", 0)
    assert run.id == json.loads((sweeps.folder / "sweep.json").read_text())["wandb_id"]
    assert (run.summary["sweep/failed"], run.summary["sweep/finished"]) == (3, 2)
    [file] = sweeps.folder.glob("wandb/offline-run-*/files/media/table/sweep/*.json")
    table = json.loads(file.read_text())
    assert table["columns"][:3] == ["trial", "status", "model._target_"]
    assert [row[1] for row in table["data"]] == [trial["status"] for trial in known]
    assert table["data"][0][table["columns"].index("objective")] == sweeps.result(0)["objective"]


@asked_for
def test_numbers_do_not_depend_on_the_launcher_nor_on_stops_and_kills(sweeps, tmp_path_factory):
    arguments = ("tracking=none", "tracking.every_steps=1", "model._target_=strange.Slow", "seed=1,2")
    stopped = sweeps.start(*TWO, *arguments, PAUSE="0.1")
    sweeps.wait_for_steps(stopped, 3, 0, 1)
    stopped.send_signal(signal.SIGTERM)
    out, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 143, err
    assert [trial["status"] for trial in trials(sweeps.folder)] == ["stopped"] * 2
    assert "the sweep has stopped" in out and err == ""
    assert sweeps.gone(5)
    for number in (0, 1):
        assert sweeps.result(number)["status"] == "stopped"
        assert "saved; go on with resume=" in (sweeps.place(number) / "console.txt").read_text()
    reached = [max(sweeps.steps(number)) for number in (0, 1)]

    killed = sweeps.start(*TWO, *arguments, PAUSE="0.1")
    sweeps.wait_for_steps(killed, max(reached) + 3, 0, 1)
    killed.kill()
    killed.communicate(timeout=60)
    assert sweeps.gone(5), "trials outlive their sweep"
    assert [trial["status"] for trial in trials(sweeps.folder)] == ["running"] * 2

    finished = sweeps.run(*arguments)  # one at a time
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("resuming after step") == 2
    for number in (0, 1):
        assert sweeps.steps(number) == sorted(sweeps.steps(number))

    for launcher, seeds in (("basic", "1,2"), ("joblib", "1")):
        if launcher == "joblib":
            pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
        other = Sweeps(tmp_path_factory.mktemp(launcher))
        done = other.run(*arguments[:-1], f"seed={seeds}", f"hydra/launcher={launcher}")
        assert done.returncode == 0, done.stderr
        for number, seed in enumerate(seeds.split(",")):
            assert metrics(other, number) == metrics(sweeps, int(seed) - 1), launcher
            assert rows(other, number) == rows(sweeps, int(seed) - 1), launcher


def rows(sweeps: Sweeps, number: int) -> list[dict]:
    """What a trial logged, but for the time that it took."""
    lines = (sweeps.place(number) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "seconds" not in k and k != "time"} for line in lines]


@asked_for
def test_a_search_that_was_killed_goes_on_and_its_trials_prune_each_other(sweeps):
    optuna = pytest.importorskip("optuna")
    settings = ("n_trials=4", "startup_trials=1", "warmup_epochs=0", "sampler=random")
    arguments = (
        *(*TWO, "hydra/sweeper=optuna", *(f"hydra.sweeper.{setting}" for setting in settings), "tracking=none"),
        *("optimizer.lr=tag(log,interval(1e-6,1))", "model._target_=strange.Slow"),
    )
    killed = sweeps.start(*arguments, PAUSE="0.1")
    sweeps.wait_for_steps(killed, 12, 0, 1)
    killed.kill()
    killed.communicate(timeout=60)
    assert sweeps.gone(5)
    before = [trial["swept"] for trial in trials(sweeps.folder)]
    done = sweeps.run(*arguments)
    assert done.returncode == 0, done.stderr
    known = trials(sweeps.folder)
    assert len(known) == 4 and [trial["swept"] for trial in known[:2]] == before
    study = optuna.load_study(study_name="kgexp", storage=storage(sweeps.folder / "study.journal"))
    states = {"finished": "COMPLETE", "pruned": "PRUNED"}
    assert [trial.state.name for trial in study.trials] == [states[trial["status"]] for trial in known]
    assert [f"optimizer.lr={trial.params['optimizer.lr']}" for trial in study.trials] == [t["swept"][0] for t in known]
    assert study.trials[0].params == {"optimizer.lr": 0.1} and known[0]["values"] == [sweeps.result(0)["objective"]]
    for trial, found in zip(study.trials, map(sweeps.result, range(4)), strict=True):
        assert max(trial.intermediate_values) <= round(100 * found["epoch"]) and found["best_step"] in (10, 20, 30, 40)
        assert (found["step"] == 40) == (found["status"] == "finished")


@asked_for
def test_an_interrupt_from_the_terminal_reaches_trials_twice_and_stops_them_once(sweeps):
    started = sweeps.start("tracking=none", "model._target_=strange.Slow", PAUSE="0.1")
    sweeps.wait_for_steps(started, 2, 0)
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130 and "interrupted: saving, then stopping" in err
    assert trials(sweeps.folder)[0]["status"] == sweeps.result(0)["status"] == "stopped"
    assert "trial 0 (nothing changed) stopped" in out and sweeps.gone(5)


@asked_for
def test_a_trial_may_have_ranks(sweeps):
    done = sweeps.run("tracking=none", "sharding=rowwise", "sharding.ranks=2", "train.steps=8")
    assert done.returncode == 0, done.stderr
    assert sweeps.result(0)["ranks"] == 2 and trials(sweeps.folder)[0]["status"] == "finished"
    assert sweeps.gone(5)
