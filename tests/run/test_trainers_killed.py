"""Several trainers of partitions: whoever is killed or stopped, what counts is not lost, trained twice or undone."""

import os
import re
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command, kills
from jobs import Job
from test_kill_and_resume import same_end

from kgexp.checkpoint.checkpoint import Checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")]

KILLS = kills(1)
#: What takes longest is asked for.
asked_for = pytest.mark.skipif("KGEXP_TEST_KILLS" not in os.environ, reason="KGEXP_TEST_KILLS=N asks for N kills")
#: Kills of one run before it may come to its end.
_OF_A_RUN = 5
RANKS = 3
#: With Adam each row counts the steps that touched it.
RUN = (
    *("sharding=partitioned", f"sharding.ranks={RANKS}", "sharding.partitions=6", "sharding.buffer=2"),
    *("sharding.slices=2", "sharding.timeout=60", "scoring=negatives", "optimizer=adam", "checkpoint.keep=100"),
    *("tracking.mode=disabled", "tracking.progress=lines", "evaluation.every_epochs=0", "checkpoint.every_epochs=1"),
)
LEASES = ("sharding.scheduler=locks", "sharding.lease=2", "storage=local", "train.batch_size=16", "train.epochs=2")


@contextmanager
def started(command, *overrides: str):
    job = Job(command, *RUN, *overrides)
    try:
        yield job
    finally:
        job.clear()


def finish(command, *overrides: str) -> str:
    """The end of a run that nobody disturbs; what it has said."""
    with started(command, *overrides) as job:
        out, err = job.process.communicate(timeout=150)
        assert job.process.returncode == 0, err
        assert job.gone(3)
        return out


@pytest.fixture
def make_large(tmp_path: Path):
    """Runs on a graph whose passes take some seconds."""
    (tmp_path / "ring").mkdir()
    generator = np.random.default_rng(0)
    pairs = generator.permutation([(h, r) for h in range(2001) for r in range(5)]).tolist()
    lines = [f"e{h}\tr{r}\te{(h + r + 1) % 2001}\n" for h, r in pairs]
    for name, part in (("train", lines[:9_000]), ("valid", lines[9_000:9_020]), ("test", lines[9_020:9_040])):
        (tmp_path / "ring" / f"{name}.txt").write_text("".join(part))

    def make(name: str) -> Command:
        (tmp_path / name).mkdir()
        return Command(tmp_path / name, tmp_path / "ring")

    return make


def counts(command, step: int) -> torch.Tensor:
    """How often each entity row was trained before a step, which has a checkpoint."""
    reader = Checkpoint(command.folder / "checkpoints" / f"step_{step:010d}").tensor("entity", "step")
    return reader.read(0, reader.shape[0])


def steps(command) -> list[int]:
    return [int(path.name[5:]) for path in command.checkpoints() if path.suffix != ".tmp"]


def in_first_pass(job: Job, chance) -> list[int]:
    """The trainers, at a random moment of their first pass."""
    ranks = job.wait_for_ranks(RANKS)
    deadline = time.monotonic() + 60
    # Files of rows come with the first units that are trained.
    while not list(job.command.folder.glob("checkpoints/rows/*")):
        assert time.monotonic() < deadline and job.process.poll() is None
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.7))
    return ranks


@asked_for
@pytest.mark.timeout(120 + 30 * KILLS)
def test_killed_at_any_moment_trainers_of_a_tournament_end_with_the_same_bits(make_command, chance):
    run = ("train.epochs=12", "train.batch_size=16", "evaluation.every_epochs=5", "checkpoint.every_epochs=2")
    straight = make_command("straight")
    finish(straight, *run)
    done = runs = 0
    while done < KILLS:
        killed, said = make_command(f"killed-{runs}"), []
        for start in range(min(_OF_A_RUN, KILLS - done)):
            with started(killed, *run, *(("resume=auto",) if start else ())) as job:
                ranks = job.wait_for_ranks(RANKS)
                pause, rank = chance.uniform(1, 8), chance.randrange(RANKS)
                time.sleep(pause)
                if job.process.poll() is not None:
                    break
                os.kill(ranks[rank], signal.SIGKILL)
                err, took = job.end(30)
                if job.process.returncode == 0:
                    break  # it was at its end
                assert job.process.returncode == 1 and f"rank {rank}" in err, err
                saved = max(steps(killed), default=0)
                said.append(
                    f"rank {rank} killed after {pause:.1f} s, the job ended {took:.1f} s later, step {saved} saved"
                )
                done += 1
        finish(killed, *run, "resume=auto")
        print("\n".join([*said, "the same bits"]))
        assert same_end(straight, killed), said
        runs += 1


@pytest.mark.timeout(180 + 40 * KILLS)
def test_a_killed_trainer_with_a_lease_is_done_without(make_large, chance):
    straight = make_large("straight")
    finish(straight, *LEASES, "train.epochs=1")
    for kill in range(KILLS):
        killed = make_large(f"killed-{kill}")
        with started(killed, *LEASES) as job:
            ranks, rank = in_first_pass(job, chance), chance.randrange(1, RANKS)
            os.kill(ranks[rank], signal.SIGKILL)
            out, err = job.process.communicate(timeout=150)
            assert job.process.returncode == 0, err
            assert job.gone(3)
        assert f"rank {rank} is gone: the other 2 go on" in out, out
        saved = int(re.search(r"resuming after step (\d+)", out)[1])
        # By then all units of the pass have counted once, those of the one who was killed too.
        assert saved in steps(straight) and torch.equal(counts(killed, saved), counts(straight, saved))
        assert killed.result["status"] == "finished" and killed.result["ranks"] == 2
        print(
            f"rank {rank} killed before step {saved}: every row was trained as often as in a run that nobody disturbed"
        )


@asked_for
@pytest.mark.timeout(180 + 40 * KILLS)
def test_a_trainer_that_wakes_after_its_lease_undoes_nothing(make_large, chance):
    straight = make_large("straight")
    finish(straight, *LEASES)
    for stop in range(KILLS):
        stopped = make_large(f"stopped-{stop}")
        with started(stopped, *LEASES) as job:
            ranks, rank = in_first_pass(job, chance), chance.randrange(1, RANKS)
            os.kill(ranks[rank], signal.SIGSTOP)
            time.sleep(chance.uniform(2.5, 4))
            os.kill(ranks[rank], signal.SIGCONT)
            out, err = job.process.communicate(timeout=150)
            assert job.process.returncode == 0, err
            assert job.gone(3)
        gone = re.search(r"resuming after step (\d+)", out)
        for step in steps(stopped):
            if gone is None or step <= int(gone[1]):
                assert torch.equal(counts(stopped, step), counts(straight, step)), step
        print(f"rank {rank} slept past its lease and {'was given up' if gone else 'took part again'}")
