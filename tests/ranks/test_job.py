"""Ranks that were launched: rank 0 leads, the others follow."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kgexp.errors import ConfigError
from kgexp.ranks.job import restart_arguments

pytestmark = pytest.mark.timeout(120)
ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent


def variables(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "OMP_NUM_THREADS": "1"} | more


def start(folder: Path, *command: str, size: int = 2) -> Iterator[subprocess.Popen[str]]:
    """Starts the ranks, the last one first, as a launcher without a store of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for rank in reversed(range(size)):
        yield subprocess.Popen(
            [sys.executable, *command],
            env=variables(RANK=str(rank), LOCAL_RANK=str(rank), **shared),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def ends(ranks: Iterable[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of the ranks, rank 0 first."""
    said = [(rank, *rank.communicate(timeout=100)) for rank in list(ranks)]
    return [(rank.returncode, out, err) for rank, out, err in reversed(said)]


def test_the_others_follow_rank_0_through_the_runs_of_a_sweep_though_one_fails(tmp_path):
    first, second = ends(start(tmp_path, str(HERE / "command.py"), "sometimes", str(tmp_path), "2"))
    assert first == (0, "['rank 1 failed: the first run is refused.', 1.0]\n", "")
    assert second == (0, "", "error: rank 1: the first run is refused.\n")
    (folder,) = tmp_path.iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["done1-0", "done1-1", "log"]
    assert (folder / "log").read_text() == "rank 1: the first run is refused.\n"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the signals that are held back in /proc")
def test_a_rank_that_is_told_to_save_before_the_run_listens_goes_on_to_it(tmp_path):
    (rank,) = start(tmp_path, str(HERE / "command.py"), "alone", str(tmp_path), "1", size=1)
    usr2, deadline = 1 << (signal.SIGUSR2 - 1), time.monotonic() + 60
    while not int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{rank.pid}/status").read_text())[1], 16) & usr2:
        assert rank.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    rank.send_signal(signal.SIGUSR2)
    assert ends([rank]) == [(0, f"[{rank.pid}.0]\n", "")]


def test_ranks_that_the_sharding_cannot_use_are_refused_once(tmp_path):
    first, second = ends(start(tmp_path, "-m", "kgexp", "hydra.run.dir=run"))
    assert first[0] == 2 and first[2].startswith("error: 2 ranks were launched, but this sharding runs in one process")
    assert second == (2, "", "")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


PLACE = "hydra.run.dir='/runs/a b'"


@pytest.mark.parametrize(
    ("given", "place", "arguments"),
    [
        (["model=complex"], PLACE, ["model=complex", PLACE, "resume=auto"]),
        ([], PLACE, [PLACE, "resume=auto"]),
        (["hydra.run.dir=x"], PLACE, ["hydra.run.dir=x", "resume=auto"]),
        (["hydra.run.dir=x", "resume=auto"], None, ["hydra.run.dir=x", "resume=auto"]),
        (["resume=auto", "seed=1"], PLACE, ["resume=auto", "seed=1", PLACE]),
        (["resume=runs/x"], PLACE, ["resume=runs/x"]),
        (["seed=1,2", "-m"], "hydra.sweep.dir='s'", ["seed=1,2", "hydra.sweep.dir='s'", "resume=auto", "-m"]),
        (["-m", "seed=1,2", "--config-dir", "c"], PLACE, ["-m", "seed=1,2", PLACE, "resume=auto", "--config-dir", "c"]),
    ],
)
def test_what_a_restart_adds_to_the_command_line(given, place, arguments):
    assert restart_arguments(given, place) == arguments


@pytest.mark.parametrize("given", [[], ["resume=auto"], ["seed=1"]])
def test_a_restart_that_lost_its_folder_says_what_to_give(given):
    with pytest.raises(ConfigError, match=r"give hydra\.run\.dir=FOLDER and resume=auto"):
        restart_arguments(given, None)
