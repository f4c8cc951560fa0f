"""Ranks as processes of this machine, and how they end."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kgexp.errors import DataError, RankError
from kgexp.explain import explain
from kgexp.ranks import spawned
from kgexp.ranks import start as start_run
from kgexp.ranks.spawned import spawn
from kgexp.threads import physical_cores
from kgexp.train.signals import StopSignal

pytestmark = pytest.mark.timeout(60)


#: A world that needs no torch, which takes longer to import than all else here.
PLAIN = "plain_world.PlainWorld"
STORE = "kgexp.ranks.child.store_world"


def start(worker: str, folder: Path, ranks: int = 2, timeout: float = 60.0, world: str = PLAIN) -> float | None:
    with StopSignal() as stop:
        return spawn({"sharding": {"timeout": timeout}}, str(folder), None, ranks, stop, f"workers.{worker}", world)


def gone(pid: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.glob("rank*"))]


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.fixture
def short_grace(monkeypatch):
    """The ranks that are left have less time to report."""
    monkeypatch.setattr(spawned, "_GRACE", 0.5)


def test_rank_0_gives_the_value_and_the_log(tmp_path, monkeypatch):
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "log")}
    job_logging = {"version": 1, "handlers": {"file": handler}, "root": {"handlers": ["file"], "level": "INFO"}}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with StopSignal() as stop:
        value = spawn({"sharding": {}}, str(tmp_path), job_logging, 2, stop, "workers.success", PLAIN)
    assert value == 0.5
    assert (tmp_path / "log").read_text().splitlines() == ["rank 0 works"]
    threads = str(max(1, physical_cores() // 2))
    assert [(tmp_path / f"env{rank}").read_text() for rank in range(2)] == [threads] * 2
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert all(gone(pid) for pid in pids(tmp_path))
    assert not (tmp_path / "result.json").exists()  # for rank 0 to write


def test_an_error_for_people_keeps_its_class_whichever_rank_raised_it(tmp_path):
    with pytest.raises(DataError, match=r"^train.txt, line 3: no tail\.$"):
        start("refuses", tmp_path)
    assert result(tmp_path) == {"status": "failed", "error": "train.txt, line 3: no tail."}


def test_a_crash_comes_with_the_traceback_of_its_rank(tmp_path, caplog):
    with pytest.raises(KeyError) as crash:
        start("crashes", tmp_path)
    assert explain(crash.value) == ("KeyError: 'the row'", 1)
    logging.getLogger("kgexp").error("it crashed", exc_info=crash.value)
    assert "rank 1 (process" in caplog.text and "workers.py" in caplog.text and "in crashes" in caplog.text
    assert result(tmp_path) == {"status": "failed", "error": "KeyError: 'the row'"}


def test_a_crash_that_cannot_travel_is_told(tmp_path):
    with pytest.raises(RuntimeError, match="Local: nobody knows my class"):
        start("unpicklable", tmp_path, ranks=1)


def test_a_killed_rank_is_named_and_no_other_is_left(tmp_path, short_grace):
    with pytest.raises(RankError, match=r"^rank 1 \(process \d+\) was killed by signal 9 \(SIGKILL\)"):
        start("killed", tmp_path)
    assert all(gone(pid) for pid in pids(tmp_path))
    assert result(tmp_path)["error"].startswith("rank 1 (process")


def test_a_rank_that_falls_silent_is_named(tmp_path):
    with pytest.raises(RankError, match=r"for rank 1 in vain: rank 1 \(process \d+ on .+\): train, step 57, heard "):
        start("silent", tmp_path, timeout=2, world=STORE)
    assert all(gone(pid) for pid in pids(tmp_path))


def test_a_rank_that_nothing_reaches_is_killed_when_another_fails(tmp_path, short_grace):
    with pytest.raises(DataError, match="has enough"):
        start("deaf", tmp_path)
    assert all(gone(pid) for pid in pids(tmp_path))


class Parent:
    """A process that spawns two ranks."""

    def __init__(self, worker: str, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("workers.py")), worker, str(folder)],
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def wait_for_ranks(self) -> list[int]:
        deadline = time.monotonic() + 50
        while len(list(self.folder.glob("rank*"))) < 2:
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.02)
        time.sleep(0.1)
        return pids(self.folder)

    def stops(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("stopped*"))]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGUSR2, 140), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_to_the_job_stops_all_ranks_at_one_step(tmp_path, signum, code):
    parent = Parent("trains", tmp_path)
    ranks = parent.wait_for_ranks()
    if signum == signal.SIGINT:
        os.killpg(parent.process.pid, signum)  # as a terminal does
    else:
        parent.process.send_signal(signum)
    _, error = parent.process.communicate(timeout=30)
    assert parent.process.returncode == code, error
    first, second = parent.stops()
    assert first == second and first.endswith("SIGTERM")
    assert all(gone(pid) for pid in ranks)


def test_a_signal_that_comes_while_the_ranks_start_is_not_lost(tmp_path):
    parent = Parent("trains", tmp_path)
    deadline = time.monotonic() + 30
    children = Path(f"/proc/{parent.process.pid}/task/{parent.process.pid}/children")
    while len(children.read_text().split()) < 3:  # the ranks, and the tracker of multiprocessing
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(0.1)
    os.killpg(parent.process.pid, signal.SIGTERM)
    assert parent.process.wait(timeout=40) == 143
    assert len(set(parent.stops())) == 1


def test_ranks_do_not_outlive_a_killed_parent(tmp_path):
    parent = Parent("trains", tmp_path)
    parent.process.stderr.close()
    ranks = parent.wait_for_ranks()
    parent.process.kill()
    parent.process.wait()
    assert all(gone(pid, 3) for pid in ranks)


def test_one_rank_runs_in_this_process():
    for sharding in ({}, {"ranks": 1}):
        assert start_run({"sharding": sharding}, "run", None, "workers.alone") == os.getpid()


@pytest.mark.parametrize(("given", "gpus", "ranks"), [(3, 0, 3), ("auto", 0, 2), ("auto", 4, 4)])
def test_the_number_of_ranks(monkeypatch, given, gpus, ranks):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr(spawned, "spawn", lambda config, folder, job_logging, ranks, stop, worker: ranks)
    for device, expected in (("auto", ranks), ("cpu", 2 if given == "auto" else ranks)):
        assert start_run({"sharding": {"ranks": given}, "train": {"device": device}}, "run", None) == expected
