"""Hydra's launchers as a sweep uses them."""

from types import SimpleNamespace

import pytest
from hydra.core.utils import JobReturn, JobStatus

from kgexp.errors import ConfigError, KgexpError
from kgexp.sweep.job import Ended, Job
from kgexp.sweep.launching import Batches, pool_of
from kgexp.sweep.processes import LocalLauncher
from kgexp.threads import usable_cpus
from kgexp.train.record import Record


class BasicLauncher:
    """Goes by the name of Hydra's."""


@pytest.fixture
def jobs(tmp_path):
    made = [Job(number, [f"seed={number}"], None, tmp_path / str(number)) for number in (0, 1, 2, 5)]
    for job in made:
        job.folder.mkdir()
    return made


def returned(value):
    status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
    job = JobReturn(status=status)
    job.return_value = value
    return job


def test_jobs_go_to_a_launcher_by_successive_numbers(jobs):
    calls = []

    def launch(overrides, first):
        calls.append((overrides, first))
        return [returned(ConfigError("no.") if override == ["seed=1"] else 0.5) for override in overrides]

    pool = Batches(SimpleNamespace(launch=launch), None)
    assert pool.submit(jobs) == {}
    assert pool.wait(0) == [Ended(0), Ended(1, "no."), Ended(2)]
    assert pool.wait(0) == [Ended(5)] and pool.wait(0) == []
    assert calls == [([["seed=0"], ["seed=1"], ["seed=2"]], 0), ([["seed=5"]], 5)]
    pool.submit(jobs[:2])
    assert pool.stop() == [0, 1] and pool.wait(0) == []


def test_a_launcher_that_dies_loses_only_what_was_running(jobs):
    """A worker of joblib that is killed takes the whole batch with it."""
    for job in jobs[1:3]:
        Record(job.folder).update(status="failed", error="of an earlier start")

    def launch(overrides, first):
        if first == 0:
            Record(jobs[0].folder).update(status="finished", objective=0.5)
            Record(jobs[1].folder).update(status="running")
            raise RuntimeError("a worker was killed")
        return [returned(0.5) for _ in overrides]

    pool = Batches(SimpleNamespace(launch=launch), None)
    pool.submit(jobs[:3])
    assert pool.wait(0) == [Ended(0), Ended(1, "the launcher lost it (RuntimeError: a worker was killed).")]
    assert pool.wait(0) == [Ended(2)]  # had not begun, so it had another turn


def test_a_launcher_that_starts_nothing_ends_the_sweep(jobs):
    def launch(overrides, first):
        raise OSError("no such cluster")

    pool = Batches(SimpleNamespace(launch=launch), None)
    pool.submit(jobs)
    with pytest.raises(KgexpError, match=r"cannot start trials .OSError: no such cluster"):
        pool.wait(0)


@pytest.mark.parametrize(
    ("launcher", "given", "room"),
    [
        (BasicLauncher(), None, 1),
        (SimpleNamespace(joblib={"n_jobs": 3}), None, 3),
        (SimpleNamespace(joblib={"n_jobs": -1}), None, len(usable_cpus())),
        (SimpleNamespace(joblib={"n_jobs": 3}), 5, 5),
        (SimpleNamespace(), None, None),
    ],
)
def test_how_many_trials_a_launcher_runs_at_a_time(launcher, given, room):
    assert pool_of(launcher, given).room == room


@pytest.mark.parametrize("n_jobs", [0, -1, "two", 1.5, None])
def test_trials_at_a_time_are_a_number(n_jobs):
    with pytest.raises(ConfigError, match=f"hydra.launcher.n_jobs is {n_jobs}"):
        LocalLauncher(n_jobs)
