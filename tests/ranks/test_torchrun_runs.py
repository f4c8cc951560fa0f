"""Whole runs of the command by torchrun, as `launchers/torchrun.sh` starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgexp.check import check, resolved
from kgexp.run import run

ROOT = Path(__file__).parents[2]
VARIABLES = {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
STEPS = 40
RUN = (
    *("dataset=files", "dataset.path=graph.tsv", "dataset.cache=cache", "tracking=none", "checkpoint.every_steps=3"),
    *("train.device=cpu", "train.threads=1", "train.dtype=float64", "train.batch_size=50", f"train.steps={STEPS}"),
    *("scoring=negatives", "model.dim=6"),
)


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    """torchrun with two ranks; its output and errors in one stream."""
    return subprocess.Popen(
        [str(ROOT / "launchers" / "torchrun.sh"), "--nproc-per-node=2", "--monitor-interval=0.1", *arguments],
        cwd=folder,
        env=os.environ | VARIABLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks_of(torchrun: subprocess.Popen) -> list[int]:
    """Process ids of the ranks, the first one's first."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return sorted(int(child) for child in children)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_a_rank_that_dies_costs_a_run_nothing_but_time(tmp_path, monkeypatch, composed):
    monkeypatch.chdir(tmp_path)
    lines = [f"e{i}\tr{k}\te{(i + 7 * k + 1) % 83}\n" for i in range(83) for k in range(5)]
    Path("graph.tsv").write_text("".join(lines))
    torchrun = start(tmp_path, *RUN, "sharding=rowwise")
    deadline = time.monotonic() + 100
    while not (found := list(tmp_path.glob("outputs/runs/*/*/checkpoints/step_*6"))):
        assert torchrun.poll() is None and time.monotonic() < deadline, torchrun.stdout.read()
        time.sleep(0.002)
    os.kill(ranks_of(torchrun)[1], signal.SIGKILL)
    said, _ = torchrun.communicate(timeout=100)
    assert torchrun.returncode == 0, said
    Path("alone").mkdir()
    run(check(resolved(composed(*RUN))), str(tmp_path / "alone"))
    (folder,) = tmp_path.glob("outputs/runs/*/*")
    assert folder == found[0].parents[1] and "resuming after step" in said
    one, two = (json.loads((path / "result.json").read_text()) for path in (tmp_path / "alone", folder))
    assert (one["ranks"], two["ranks"], two["step"], two["status"]) == (1, 2, STEPS, "finished")
    assert two["metrics"] == one["metrics"] and two["best_step"] == one["best_step"]
