"""Runs by the scripts in launchers/, as jobs of a real Slurm."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from kgexp.checkpoint.checkpoint import Checkpoint

pytestmark = pytest.mark.slow
everything = pytest.mark.skipif(
    os.environ.get("KGEXP_TEST_SLURM") != "everything", reason="KGEXP_TEST_SLURM=everything asks for it"
)
LAUNCHERS = Path(__file__).parents[2] / "launchers"
STEPS = 200
#: Losses are compared row by row, so every step leaves one.
RUN = (
    *("dataset=files", "model.dim=8", "model.init_scale=0.5", "optimizer.lr=0.05"),
    *("scoring=negatives", "tracking=none", "tracking.every_steps=1", "evaluation.every_epochs=5"),
    *(f"train.steps={STEPS}", "train.batch_size=101", "train.dtype=float64", "train.threads=1", "train.device=cpu"),
)
#: Of sbatch: small enough that the runs of several tests go on at the same time, and so do their waits.
SMALL = ("--cpus-per-task=2", "--mem=2G")
BOTH_SCRIPTS = pytest.mark.parametrize("script", ["slurm.sbatch", pytest.param("multinode.sbatch", marks=everything)])
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
PREEMPTIBLE = ("--partition=preempt",)


class Run:
    """A run by a script of launchers/, in a folder of its own.

    Args:
        options: of sbatch.
        overrides: of kgexp.
    """

    def __init__(self, slurm, home, graph, *overrides, options=(), script="slurm.sbatch"):
        self.slurm = slurm
        home.mkdir()
        data = (f"dataset.path={graph}", f"dataset.cache={home.parent / 'cache'}")
        self.number = slurm.submit(*SMALL, *options, str(LAUNCHERS / script), *RUN, *data, *overrides, cwd=home)
        self.folder = home / f"outputs/runs/slurm-{self.number}"

    def rows(self):
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [{key: value for key, value in row.items() if key != "train/seconds"} for row in rows]

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    def wait_for_step(self, step, seconds=100):
        what = f"step {step} of job {self.number}"
        self.slurm.wait_until(lambda: (rows := self.rows()) and rows[-1]["step"] >= step, what, seconds)

    def put_back(self):
        """As an operator would; waits until it is in the queue again, for which it has to have saved."""
        self.slurm.call("scontrol", "requeue", self.number)
        facts = {"Restarts": "1", "JobState": "PENDING"}
        what = f"job {self.number} to be back in the queue"
        self.slurm.wait_until(lambda: facts.items() <= self.slurm.job(self.number).items(), what, 60)
        assert self.result["status"] == "stopped", self.slurm.report()

    def finish(self, seconds=150):
        """Waits for the job's end, which has to be a good one; returns how often it was put back into the queue."""
        state = self.slurm.end(self.number, seconds)
        assert state == "COMPLETED" and self.result["status"] == "finished", self.slurm.report()
        return int(self.slurm.job(self.number)["Restarts"])

    def tables(self):
        checkpoint = Checkpoint(max((self.folder / "checkpoints").glob("step_*")))
        index = json.loads((checkpoint.path / "index.json").read_text())
        readers = [checkpoint.tensor(table, key) for table, keys in index["tables"].items() for key in keys]
        return {reader.name: reader.read(0, reader.shape[0]) for reader in readers}


def same_end(one, two):
    """Whether two runs ended with the same bits, rows of metrics and results."""
    left, right = one.tables(), two.tables()
    return (
        left.keys() == right.keys()
        and all(torch.equal(left[name], right[name]) for name in left)
        and one.rows() == two.rows()
        and one.result["metrics"] == two.result["metrics"]
        and one.result["best_step"] == two.result["best_step"]
    )


def processes(**variables):
    """Ids of the processes whose environment has all of these."""
    wanted, found = {f"{name}={value}".encode() for name, value in variables.items()}, []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def alone(slurm, home, graph_folder):
    """A run of one process that nobody disturbs; it may still be on its way."""
    return Run(slurm, home / "alone", graph_folder)


@pytest.fixture(scope="module")
def two_nodes(slurm, home, graph_folder):
    """A run on two nodes that nobody disturbs; it may still be on its way."""
    return Run(slurm, home / "two_nodes", graph_folder, "sharding=rowwise", options=TWO_NODES)


@everything
def test_a_job_put_back_into_the_queue_goes_on_where_it_was(slurm, tmp_path, graph_folder, alone):
    run = Run(slurm, tmp_path / "run", graph_folder)
    run.wait_for_step(20)
    run.put_back()
    assert (run.finish(), alone.finish()) == (1, 0)
    assert same_end(alone, run)


@everything
@BOTH_SCRIPTS
def test_a_job_of_two_nodes_told_to_stop_goes_on_where_it_was(slurm, tmp_path, graph_folder, two_nodes, script):
    run = Run(slurm, tmp_path / "run", graph_folder, "sharding=rowwise", options=TWO_NODES, script=script)
    run.wait_for_step(20)
    slurm.call("scancel", "--signal=USR2", run.number)
    assert (run.finish(), two_nodes.finish()) == (1, 0)
    assert same_end(two_nodes, run)


@everything
def test_two_nodes_give_the_numbers_of_one_process(alone, two_nodes):
    assert (alone.finish(), two_nodes.finish()) == (0, 0)
    assert (alone.result["ranks"], two_nodes.result["ranks"]) == (1, 2)
    assert two_nodes.result["metrics"] == pytest.approx(alone.result["metrics"], rel=1e-6)
    for one, two in zip(alone.rows(), two_nodes.rows(), strict=True):
        assert two == pytest.approx(one, rel=1e-6)


@everything
@BOTH_SCRIPTS
def test_a_job_of_two_nodes_put_back_goes_on_where_it_was(slurm, tmp_path, graph_folder, two_nodes, script):
    run = Run(slurm, tmp_path / "run", graph_folder, "sharding=rowwise", options=TWO_NODES, script=script)
    run.wait_for_step(20)
    run.put_back()
    assert (run.finish(), two_nodes.finish()) == (1, 0)
    assert same_end(two_nodes, run)


@everything
@BOTH_SCRIPTS
def test_a_job_gives_way_to_another_and_goes_on_afterwards(slurm, tmp_path, graph_folder, two_nodes, script):
    options = (*TWO_NODES, *PREEMPTIBLE)
    run = Run(slurm, tmp_path / "run", graph_folder, "sharding=rowwise", options=options, script=script)
    run.wait_for_step(20)
    urgent = slurm.submit("--nodes=2", "--exclusive", "--wrap=sleep 1", cwd=tmp_path)
    assert slurm.end(urgent, 60) == "COMPLETED" and run.result["status"] == "stopped"
    assert (run.finish(), two_nodes.finish()) == (1, 0)
    assert same_end(two_nodes, run)


@everything
def test_a_job_goes_on_when_its_time_is_up(slurm, tmp_path, graph_folder):
    steps = "train.steps=3000"
    straight = Run(slurm, tmp_path / "straight", graph_folder, steps)
    run = Run(slurm, tmp_path / "run", graph_folder, steps, options=("--time=1", "--signal=USR2@30"))
    assert straight.finish(200) == 0
    assert run.finish(250) >= 1
    assert same_end(straight, run)


@everything
def test_torchrun_starts_a_dead_rank_again_in_the_same_job(slurm, tmp_path, graph_folder, two_nodes):
    arguments = ("sharding=rowwise", "checkpoint.every_steps=20")
    run = Run(slurm, tmp_path / "run", graph_folder, *arguments, options=TWO_NODES, script="multinode.sbatch")
    run.wait_for_step(50)
    (rank,) = processes(SLURM_JOB_ID=run.number, RANK="1", SLURM_CONF=slurm.env["SLURM_CONF"])
    os.kill(rank, signal.SIGKILL)
    assert (run.finish(), two_nodes.finish()) == (0, 0)
    assert same_end(two_nodes, run)
