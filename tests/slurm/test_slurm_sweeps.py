"""Sweeps whose trials are jobs of a real Slurm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
everything = pytest.mark.skipif(
    os.environ.get("KGEXP_TEST_SLURM") != "everything", reason="KGEXP_TEST_SLURM=everything asks for it"
)
pytest.importorskip("submitit")
LAUNCHERS = Path(__file__).parents[2] / "launchers"
RUN = (
    *("dataset=files", "model.dim=8", "model.init_scale=0.5", "optimizer.lr=0.05", "scoring=negatives"),
    *("tracking=none", "tracking.every_steps=1", "evaluation.every_epochs=5", "train.batch_size=101"),
    *("train.steps=200", "train.dtype=float64", "train.threads=1", "train.device=cpu"),
)
SMALL = ("hydra.launcher.cpus_per_task=2", "hydra.launcher.mem_gb=2")
TWO_TASKS = ("sharding=rowwise", "hydra.launcher.tasks_per_node=2")


class Sweep:
    """A sweep in a folder of its own: what became of its trials, and their metrics without what they cost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def trials(self) -> list[dict]:
        path = self.folder / "sweep.json"
        return json.loads(path.read_text())["trials"] if path.is_file() else []

    def step(self, number: int) -> int:
        rows = self.rows(number)
        return rows[-1]["step"] if rows else 0

    def rows(self, number: int) -> list[dict]:
        paths = list(self.folder.glob(f"{number}-*/metrics.jsonl"))
        lines = paths[0].read_text().splitlines(keepends=True) if paths else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [{key: value for key, value in row.items() if key != "train/seconds"} for row in rows]

    @property
    def statuses(self) -> list[str]:
        return [trial["status"] for trial in self.trials]

    @property
    def metrics(self) -> list[dict]:
        paths = sorted(self.folder.glob("*/result.json"), key=lambda path: int(path.parent.name.partition("-")[0]))
        return [json.loads(path.read_text())["metrics"] for path in paths]


@pytest.fixture
def arguments(tmp_path, graph_folder):
    return (*RUN, f"dataset.path={graph_folder}", f"dataset.cache={tmp_path / 'cache'}")


def command(sweep: Sweep, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "kgexp", "-m", f"hydra.sweep.dir={sweep.folder}", *arguments]


def led(slurm, process: subprocess.Popen, seconds: float) -> str:
    """What a sweep printed until its good end."""
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the sweep took longer than {seconds} s\n{slurm.report()}")
    assert process.returncode == 0, out + slurm.report()
    return out


def started(slurm, sweep: Sweep, *arguments: str) -> subprocess.Popen:
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    words = command(sweep, "hydra/launcher=slurm", *SMALL, *arguments, "seed=1,2")
    return subprocess.Popen(words, env=slurm.env, **out)


def undisturbed(slurm, tmp_path, *arguments: str) -> Sweep:
    """A sweep of the second trial alone, here."""
    sweep = Sweep(tmp_path / "undisturbed")
    second = command(sweep, *arguments, "seed=2")
    led(slurm, subprocess.Popen(second, env=slurm.env, stdout=subprocess.PIPE, text=True), 200)
    return sweep


@pytest.mark.parametrize("how", ["USR2", pytest.param("requeue", marks=everything)])
@pytest.mark.parametrize("tasks", [TWO_TASKS, pytest.param((), marks=everything)], ids=["two_tasks", "one_task"])
def test_a_trial_that_is_put_back_is_no_failure_and_ends_the_same(slurm, tmp_path, arguments, tasks, how):
    """An array of two trials, one of which is disturbed. Two tasks of a trial are its ranks."""
    sweep = Sweep(tmp_path / "sweep")
    process = started(slurm, sweep, *arguments, *tasks)
    try:
        slurm.wait_until(lambda: sweep.step(1) >= 20, "step 20 of trial 1", 120)
        job = sweep.trials[1]["job"].removeprefix("slurm:")
        assert job.endswith("_1")
        slurm.call("scancel", "--signal=USR2", job) if how == "USR2" else slurm.call("scontrol", "requeue", job)
        words = led(slurm, process, 150)
    finally:
        process.kill()
    assert "2 finished" in words and sweep.statuses == ["finished", "finished"]
    assert int(slurm.job(job)["Restarts"]) == 1
    ranks = ("sharding=rowwise", "sharding.ranks=2") if tasks else ()
    alone = undisturbed(slurm, tmp_path, *arguments, *ranks)
    assert sweep.metrics[1:] == alone.metrics and sweep.rows(1) == alone.rows(0)


@everything
def test_a_trial_whose_time_is_up_goes_on(slurm, tmp_path, arguments):
    long = [a for a in arguments if not a.startswith("train.steps")] + ["train.steps=3000"]
    sweep = Sweep(tmp_path / "sweep")
    words = led(
        slurm, started(slurm, sweep, *long, "hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=30"), 280
    )
    assert "2 finished" in words
    assert sweep.metrics[1:] == undisturbed(slurm, tmp_path, *long).metrics


@everything
def test_a_trial_that_is_cancelled_is_started_again_by_the_same_command(slurm, tmp_path, arguments):
    """Without accounting: that a job is gone shows in the queue alone, and how far it came in its folder."""
    sweep = Sweep(tmp_path / "sweep")
    process = started(slurm, sweep, *arguments)
    slurm.wait_until(lambda: sweep.step(1) >= 20, "step 20 of trial 1", 120)
    slurm.call("scancel", sweep.trials[1]["job"].removeprefix("slurm:"))
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 4 and "1 of 2 trials were stopped: the same command goes on" in out, out
    assert sweep.statuses == ["finished", "stopped"]  # Slurm tells a job before it kills it
    led(slurm, started(slurm, sweep, *arguments), 150)
    assert sweep.statuses == ["finished", "finished"]
    assert sweep.metrics[1:] == undisturbed(slurm, tmp_path, *arguments).metrics


@everything
def test_the_job_that_leads_a_sweep_finds_its_trials_again(slurm, tmp_path, arguments):
    given = ("-m", *arguments, "seed=1,2", *SMALL)
    number = slurm.submit("--mem=1G", str(LAUNCHERS / "slurm_sweep.sbatch"), *given, cwd=tmp_path)
    sweep = Sweep(tmp_path / f"outputs/sweeps/slurm-{number}")
    slurm.wait_until(lambda: sweep.step(1) >= 20, "step 20 of trial 1", 120)
    jobs = [trial["job"] for trial in sweep.trials]
    slurm.call("scancel", "--signal=USR2", number)
    slurm.wait_until(lambda: slurm.job(number)["Restarts"] == "1", "the sweep's job to come back", 60)
    slurm.wait_until(lambda: slurm.job(number)["JobState"] == "RUNNING", "the sweep's job to run again", 60)
    assert [trial["job"] for trial in sweep.trials] == jobs
    assert slurm.end(number, 200) == "COMPLETED", slurm.report()
    assert sweep.statuses == ["finished", "finished"]
    numbers = {trial: slurm.job(job.removeprefix("slurm:"))["Restarts"] for trial, job in enumerate(jobs)}
    assert numbers == {0: "0", 1: "0"}
