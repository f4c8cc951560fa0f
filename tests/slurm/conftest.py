"""Jobs on a real Slurm of two virtual nodes, which a session of tests starts once."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster import Cluster, missing
from small_graph import graph_folder  # noqa: F401  # a fixture

ROOT = Path(__file__).parents[2]
#: States of jobs that Slurm is through with. One that waits to start again is none of them.
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"}


class Slurm:
    """What tests do with the cluster.

    Its nodes claim 8 CPUs and 32 GB each; partition `main` takes nodes from `preempt`; there is no accounting, so no
    `sacct`; a job that is requeued starts again some 6 s later.

    Attributes:
        env: for processes that are to use it (`subprocess.run(..., env=slurm.env)`): the whole environment, with this
            checkout's kgexp, this Python as `PYTHON` and one thread each.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        own = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.env |= own | variables

    def call(self, *command: str, cwd: Path | None = None) -> str:
        """What one of Slurm's commands prints; fails the test where it fails."""
        done = subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, *arguments: str, cwd: Path) -> str:
        """The number of a new job: of `sbatch ARGUMENTS` in a folder, where its output lies too."""
        return self.call("sbatch", "--parsable", *arguments, cwd=cwd).strip()

    def queue(self) -> str:
        """The jobs that wait, run or are ending, as people see them; empty where there are none."""
        return self.call("squeue", "-h")

    def job(self, number: str) -> dict[str, str]:
        """The facts of a job, also of one that has ended: JobState, Restarts, ExitCode, StdOut, …"""
        words = self.call("scontrol", "-o", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_until(self, condition: Callable[[], object], what: str, seconds: float) -> None:
        """Fails with what it waited for, the queue and the jobs' output when the time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds:.0f} s for {what}\n{self.report()}")
            time.sleep(0.05)

    def wait_until_idle(self, seconds: float) -> None:
        """Until no job is left."""
        self.wait_until(lambda: not self.queue(), "an empty queue", seconds)

    def end(self, number: str, seconds: float) -> str:
        """The state in which a job is at its end, which it has to reach in time."""
        self.wait_until(lambda: self.job(number)["JobState"] in OVER, f"the end of job {number}", seconds)
        return self.job(number)["JobState"]

    def report(self) -> str:
        """The queue, and the ends of the outputs of all jobs that are there or have been."""
        lines = ["squeue:", self.queue()]
        for line in self.call("scontrol", "-o", "show", "job").splitlines():
            facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "StdOut" in facts and Path(facts["StdOut"]).is_file():
                lines += [f"{facts['StdOut']} ({facts['JobState']}):", Path(facts["StdOut"]).read_text()[-3000:]]
        return "\n".join(lines)


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(Cluster(tmp_path_factory.mktemp("slurm")))
        except RuntimeError as error:
            pytest.skip(f"Slurm does not start: {error}")
        yield cluster


@pytest.fixture(scope="session")
def slurm(_cluster: Cluster) -> Slurm:
    """A `Slurm` of two nodes, which the first test that asks for it starts; skips where there can be none."""
    return Slurm(_cluster.env)
