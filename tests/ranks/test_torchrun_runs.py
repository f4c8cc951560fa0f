"""Whole runs of the command by torchrun, as `launchers/torchrun.sh` starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLES = {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
STEPS = 40
RUN = (
    *("dataset=files", "dataset.path=graph.tsv", "dataset.cache=cache", "tracking=none", "train.device=cpu"),
    *("model.dim=6", "train.batch_size=50", f"train.steps={STEPS}", "checkpoint.every_steps=3", "scoring=negatives"),
)


def start(folder: Path, *command: str) -> subprocess.Popen:
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | VARIABLES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ranks_of(torchrun: subprocess.Popen) -> list[int]:
    """Process ids of the ranks, the first one's first."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return sorted(int(child) for child in children)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_a_rank_that_dies_costs_a_torchrun_job_nothing_but_time(tmp_path):
    lines = [f"e{i}\tr{k}\te{(i + 7 * k + 1) % 83}\n" for i in range(83) for k in range(5)]
    (tmp_path / "graph.tsv").write_text("".join(lines))
    alone = start(tmp_path, sys.executable, "-m", "kgexp", *RUN, "hydra.run.dir=alone")
    said, _ = alone.communicate(timeout=100)
    assert alone.returncode == 0, said

    script = str(ROOT / "launchers" / "torchrun.sh")
    torchrun = start(tmp_path, script, "--nproc-per-node=2", "--monitor-interval=0.1", *RUN, "sharding=rowwise")
    deadline = time.monotonic() + 100
    while not (found := list(tmp_path.glob("outputs/runs/*/*/checkpoints/step_*6"))):
        assert torchrun.poll() is None and time.monotonic() < deadline, torchrun.stdout.read()
        time.sleep(0.002)
    os.kill(ranks_of(torchrun)[1], signal.SIGKILL)
    said, _ = torchrun.communicate(timeout=100)
    assert torchrun.returncode == 0, said
    (folder,) = tmp_path.glob("outputs/runs/*/*")
    assert folder == found[0].parents[1] and "resuming after step" in said
    one, two = (json.loads((path / "result.json").read_text()) for path in (tmp_path / "alone", folder))
    assert (one["ranks"], two["ranks"], two["step"], two["status"]) == (1, 2, STEPS, "finished")
    assert two["metrics"] == one["metrics"] and two["best_step"] == one["best_step"]
