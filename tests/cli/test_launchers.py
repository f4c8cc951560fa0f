"""The scripts in launchers/, with stand-ins for the commands that they call."""

import os
import subprocess
import time
from pathlib import Path

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"


def stand_in(folder: Path, name: str, code: int = 0) -> Path:
    """A command that notes its arguments and leaves with `code`."""
    calls = folder / f"{name}.calls"
    path = folder / name
    note = f'printf "%s\\n" "$@" >"{calls}.part" && mv "{calls}.part" "{calls}"'
    path.write_text(f"#!/usr/bin/env bash\n{note}\nexit {code}\n")
    path.chmod(0o755)
    return calls


def launch(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    variables.pop("PYTHON", None)
    command = ["bash", str(LAUNCHERS / script), *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (2, False), (140, True)])
def test_a_slurm_job_comes_back_to_its_folder_when_its_time_was_up(tmp_path, code, requeued):
    srun, scontrol = stand_in(tmp_path, "srun", code), stand_in(tmp_path, "scontrol")
    result = launch(tmp_path, "slurm.sbatch", "experiment=umls_complex", "name=a b")
    assert result.returncode == code
    assert srun.read_text().splitlines() == [
        *("python", "-m", "kgexp", "hydra.run.dir=outputs/runs/slurm-77", "resume=auto"),
        *("experiment=umls_complex", "name=a b"),
    ]
    assert scontrol.exists() == requeued
    if requeued:
        assert scontrol.read_text().split() == ["requeue", "77"]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (["--nproc-per-node=2"], ["--standalone", "--nproc-per-node=2"]),
        (
            ["--nnodes=1:2", "--rdzv-endpoint=a:1"],
            ["--rdzv-backend=c10d", "--nnodes=1:2", "--rdzv-endpoint=a:1"],
        ),
        ([], ["--standalone"]),
    ],
)
def test_options_of_torchrun_come_first_and_the_rest_is_for_kgexp(tmp_path, given, chosen):
    python = stand_in(tmp_path, "python", 3)
    assert launch(tmp_path, "torchrun.sh", *given, "sharding=rowwise", "name=a b", "--config-dir=c").returncode == 3
    arguments = python.read_text().splitlines()
    assert arguments[:2] == ["-m", "torch.distributed.run"]
    assert arguments[-len(chosen) - 5 :] == [*chosen, "-m", "kgexp", "sharding=rowwise", "name=a b", "--config-dir=c"]


@pytest.mark.parametrize("given", [(), ("FOLDER",)])
def test_a_sweep_runs_in_the_background(tmp_path, monkeypatch, given):
    for name in given:
        monkeypatch.setenv(name, "outputs/sweeps/mine")
    python = stand_in(tmp_path, "python")
    result = launch(tmp_path, "sweep.sh", "sweep=models", "seed=3")
    assert result.returncode == 0 and "outputs/sweeps/" in result.stdout
    deadline = time.monotonic() + 30
    while not python.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    arguments = python.read_text().splitlines()
    assert arguments[:2] == ["-m", "kgexp"] and arguments[3:] == ["sweep=models", "seed=3"]
    folder = tmp_path / arguments[2].removeprefix("hydra.sweep.dir=")
    assert (folder / "console.txt").is_file() and (folder.name == "mine") == bool(given)


def test_a_sweep_of_nothing_is_refused(tmp_path):
    result = launch(tmp_path, "sweep.sh")
    assert result.returncode == 2 and result.stderr.startswith("error: name what to sweep")
