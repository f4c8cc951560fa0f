"""The loop of a sweep over a pool that only pretends: what is handed to it, what a stop leaves behind."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from kgexp.sweep.job import Ended
from kgexp.sweep.runner import Runner
from kgexp.sweep.trials import SweepFolder, open_sweep
from kgexp.train.note import Note
from kgexp.train.record import Record


class FakePool:
    """Runs nothing: `become` says what each job comes to, by number; others run until they are stopped.

    Args:
        become: statuses with objectives.
        scheduler: whether jobs belong to one, and go on without the sweep.
        room: jobs that begin; others wait.
    """

    quiet = False

    def __init__(self, become=None, scheduler=False, room=2, stop=None):
        self.become, self.scheduler, self.room, self._stop = become or {}, scheduler, room, stop
        self.jobs, self.closed, self._open = [], False, {}

    def submit(self, jobs):
        self.jobs += jobs
        self._open |= {job.number: job for job in jobs}
        return {job.number: f"queue:{100 + job.number}" for job in jobs} if self.scheduler else {}

    def wait(self, seconds):
        for number, job in self._open.items():
            if number in self.become:
                del self._open[number]
                return [self._end(job, *self.become[number])]
        assert self._stop is not None, "nothing would ever end"
        self._stop.requested = signal.SIGTERM
        return []

    def stop(self):
        begun = list(self._open)[: self.room]
        for number in begun if not self.scheduler else ():
            self.become[number] = ("stopped", None)
        dropped = [number for number in self._open if self.scheduler or number not in begun]
        for number in dropped:
            del self._open[number]
        return dropped

    def close(self):
        self.closed = True

    def _end(self, job, status, objective, error=None):
        if status is not None:
            Record(job.folder).update(status=status, objective=objective)
        return Ended(job.number, error)


class Listed:
    """Some trials, all at once."""

    wants_values = True

    def __init__(self, sweep, *labels):
        self.trials = [sweep.add([label], [label]) for label in labels]
        self.total, self.told, self._sweep = len(labels), [], sweep
        self.planned = list(self.trials)

    def next(self, room):
        trials, self.trials = self.trials, []
        return trials

    def note(self, trial):
        return Note(self._sweep.name, trial.label, trial.number)

    def tell(self, trial):
        self.told.append((trial.number, trial.status, trial.values))


class Ready:
    """Composes nothing: every trial has a run in its folder already, which needs no check."""

    def __init__(self, sweep: SweepFolder, config) -> None:
        self._sweep, self._config = sweep, config

    def compose(self, number, overrides):
        config = self._config.copy()
        OmegaConf.set_readonly(config, False)
        OmegaConf.set_readonly(config.hydra, False)
        config.hydra.sweep.subdir = f"{number}-x"
        (self._sweep.path / f"{number}-x").mkdir(exist_ok=True)
        (self._sweep.path / f"{number}-x" / "config.yaml").touch()
        return config


@pytest.fixture(scope="module")
def config(composed):
    return composed(return_hydra_config=True)


@pytest.fixture
def run(tmp_path, config):
    """Starts the sweep in the test's folder with a pool; returns what was said, and the source."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)

    def start(pool, *labels):
        said = []
        stop = pool._stop or SimpleNamespace(requested=None)
        with open_sweep(tmp_path / "s", {"objective": "maximize"}) as sweep:
            source = Listed(sweep, *labels)
            Runner(sweep, Ready(sweep, config), pool, stop, said.append).run(source)
        assert pool.closed
        return said, source

    yield start
    HydraConfig.instance().cfg = before


def kept(folder: Path, key: str) -> list:
    return [trial[key] for trial in json.loads((folder / "s" / "sweep.json").read_text())["trials"]]


def test_trials_are_told_and_said_as_they_end(run, tmp_path):
    pool = FakePool({0: ("finished", 0.5), 2: ("pruned", 0.25), 1: (None, None, "killed by signal 9.")})
    said, source = run(pool, "a=1", "a=2", "a=3")
    assert sorted(source.told) == [(0, "finished", [0.5]), (1, "failed", None), (2, "pruned", [0.25])]
    assert kept(tmp_path, "status") == ["finished", "failed", "pruned"]
    assert json.loads((tmp_path / "s" / "1-x" / "result.json").read_text())["error"] == "killed by signal 9."
    assert said[0].startswith("trial 0 (a=1) finished: 0.5000  [1 of 3, ETA ") and said[-1].endswith("  [3 of 3]")
    assert [Note.read(job.folder).label for job in pool.jobs] == ["a=1", "a=2", "a=3"]


def test_a_result_outweighs_what_a_pool_knows_to_have_gone_wrong_after_it(run, tmp_path):
    run(
        FakePool({0: ("finished", 0.5, "it crashed at its end."), 1: ("stopped", None, "it was preempted.")}),
        "a=1",
        "a=2",
    )
    assert kept(tmp_path, "status") == ["finished", "stopped"] and kept(tmp_path, "error") == [None, None]


def test_a_stopped_sweep_goes_on_with_what_had_stopped_and_what_waited(run, tmp_path):
    stop = SimpleNamespace(requested=None)
    said, source = run(FakePool({0: ("finished", 0.5)}, stop=stop), "a=1", "a=2", "a=3", "a=4")
    assert kept(tmp_path, "status") == ["finished", "stopped", "stopped", "waiting"]
    assert [status for _, status, _ in source.told] == ["finished", "stopped", "stopped"]
    assert "goes on with the same command" in said[-1] and f"hydra.sweep.dir={tmp_path / 's'}" in said[-1]
    again = FakePool({number: ("finished", number / 4) for number in (1, 2, 3)})
    said, source = run(again, "a=1", "a=2", "a=3", "a=4")
    assert [job.number for job in again.jobs] == [1, 2, 3] and kept(tmp_path, "status") == ["finished"] * 4
    assert [job.folder.name for job in again.jobs] == ["1-x", "2-x", "3-x"]
    assert source.told[0] == (0, "finished", [0.5])


def test_jobs_of_a_scheduler_go_on_and_are_found_again(run, tmp_path):
    stop = SimpleNamespace(requested=None)
    pool = FakePool({0: ("finished", 0.5)}, scheduler=True, room=None, stop=stop)
    said, _ = run(pool, "a=1", "a=2", "a=3")
    assert kept(tmp_path, "job") == [None, "queue:101", "queue:102"]
    assert kept(tmp_path, "status") == ["finished", "running", "running"]
    assert "2 trials go on by themselves: queue:101, queue:102" in said
    Record(tmp_path / "s" / "1-x").update(status="finished", objective=0.75)  # while nobody led the sweep
    again = FakePool({2: ("finished", 0.25)}, scheduler=True, room=None)
    _, source = run(again, "a=1", "a=2", "a=3")
    assert [(job.number, job.handle) for job in again.jobs] == [(2, "queue:102")]
    assert sorted(source.told) == [(0, "finished", [0.5]), (1, "finished", [0.75]), (2, "finished", [0.25])]
    assert kept(tmp_path, "job") == [None] * 3
