"""A job of several ranks ends whole, whatever happens to one of them, and loses nothing that it had saved."""

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import kills
from jobs import Job
from test_kill_and_resume import same_end

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")]

KILLS = kills(1)
asked_for = pytest.mark.skipif("KGEXP_TEST_KILLS" not in os.environ, reason="KGEXP_TEST_KILLS=N asks for N kills")
STEPS = 40
RANKS = ("sharding=rowwise", "sharding.ranks=3")
RUN = (
    *("scoring=negatives", f"train.steps={STEPS}", "checkpoint.every_steps=4", "checkpoint.every_epochs=0"),
    *("evaluation.every_steps=7", "evaluation.every_epochs=0", "schedule=plateau", "schedule.patience=0"),
)
MOMENTS = ("checkpoint", "start", "evaluation", "step")


@contextmanager
def job(command, *overrides: str, **environment: str) -> Iterator[Job]:
    started = Job(command, *overrides, **environment)
    try:
        yield started
    finally:
        started.clear()


def finish(command, *overrides: str, **environment: str) -> None:
    with job(command, *overrides, **environment) as started:
        err, _ = started.end(120)
        assert started.process.returncode == 0, err


def wait_for(started: Job, moment: str, chance: random.Random) -> str:
    """Until the job is in such a moment; says which it was."""
    command, process = started.command, started.process
    started.wait_for_ranks(3)
    if moment == "start":
        pause = chance.uniform(0, 6)
        time.sleep(pause)
        return f"{pause:.2f} s after the start"
    if moment == "checkpoint":
        step = 4 * chance.randrange(1, STEPS // 4)
        part = command.folder / "checkpoints" / f"step_{step:010d}.tmp"
        while not part.exists() and not part.with_suffix("").exists():
            assert process.poll() is None
            time.sleep(0.0005)
        pause = chance.uniform(0, 0.01)
    else:
        step = 7 * chance.randrange(1, STEPS // 7) if moment == "evaluation" else chance.randrange(1, STEPS)
        command.wait_for_step(process, step)
        pause = chance.uniform(0, 0.03)
    time.sleep(pause)
    return f"{1000 * pause:.1f} ms into the {moment} of step {step}"


def same_rows(one, two) -> None:
    """Both runs logged the same losses, to what float32 rounds."""
    left, right = one.rows(), two.rows()
    assert [row["step"] for row in left] == [row["step"] for row in right]
    for expected, row in zip(left, right, strict=True):
        if "train/loss" in expected:
            assert row["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-4), row["step"]


@pytest.mark.timeout(120 + 60 * KILLS)
def test_a_killed_rank_ends_the_job_and_the_next_start_ends_with_the_same_bits(make_command, chance):
    straight = make_command("straight")
    finish(straight, *RUN, *RANKS)
    for i in range(KILLS):
        moment = MOMENTS[i % len(MOMENTS)]
        killed = make_command(f"killed-{i}")
        with job(killed, *RUN, *RANKS) as started:
            when = wait_for(started, moment, chance)
            ranks = started.ranks()
            rank = chance.randrange(len(ranks))
            os.kill(ranks[rank], signal.SIGKILL)
            err, took = started.end(60)
            sentence = f"rank {rank} (process {ranks[rank]}) was killed by signal 9 (SIGKILL)"
            assert started.process.returncode == 1 and f"error: {sentence}" in err, (when, err)
            assert took < 20
            assert not list(started.scratch.glob("kgexp-ranks-*"))
        assert killed.result["status"] == "failed" and killed.result["error"].startswith(sentence)
        left = [int(path.name[5:]) for path in killed.checkpoints() if path.suffix != ".tmp"]
        finish(killed, *RUN, *RANKS, "resume=auto")
        assert same_end(straight, killed), f"killed {when}"
        print(f"rank {rank} killed {when}: over in {took:.1f} s, resumed after step {max(left, default=0)}: same bits")


@asked_for
@pytest.mark.timeout(180)
def test_ranks_end_with_their_parent_and_the_next_start_goes_on(make_command):
    straight, killed = make_command("straight"), make_command("killed")
    finish(straight, *RUN, *RANKS)
    with job(killed, *RUN, *RANKS) as started:
        killed.wait_for_step(started.process, 20)
        os.kill(started.process.pid, signal.SIGKILL)
        began = time.monotonic()
        assert started.gone(10), "ranks outlive their parent"
        print(f"the parent killed: its ranks were gone {time.monotonic() - began:.2f} s later")
    finish(killed, *RUN, *RANKS, "resume=auto")
    assert same_end(straight, killed)


@pytest.mark.timeout(240)
def test_a_stopped_job_goes_on_with_other_numbers_of_ranks(make_command):
    straight, moved = make_command("straight"), make_command("moved")
    finish(straight, *RUN)
    resume: tuple[str, ...] = ()
    for after, sharding in ((8, ("sharding=rowwise", "sharding.ranks=2")), (20, RANKS)):
        with job(moved, *RUN, *sharding, *resume) as started:
            moved.wait_for_step(started.process, after)
            os.kill(started.process.pid, signal.SIGTERM)
            err, took = started.end(60)
            assert started.process.returncode == 128 + signal.SIGTERM, err
        step = moved.result["step"]
        assert moved.result["status"] == "stopped" and moved.checkpoints()[-1].name == f"step_{step:010d}"
        assert after <= step < STEPS and moved.rows()[-1]["step"] == step
        print(f"SIGTERM with {sharding[1]}: all ranks saved at step {step}, {took:.1f} s later")
        resume = ("resume=auto",)
    finish(moved, *RUN, *resume, "sharding=none")
    assert moved.result["ranks"] == 1 and moved.result["step"] == STEPS
    same_rows(straight, moved)
    print("gone on with 2 ranks, 3 and unsharded: the losses of a run that was never sharded")


PLUGIN = '''
import multiprocessing

from kgexp.scoring.negatives import NegativeSampling


class Fragile(NegativeSampling):
    """Breaks on rank 1."""

    def loss(self, model, loss, batch, rows, entity):
        if batch.step == 5 and multiprocessing.current_process().name == "rank 1":
            raise ZeroDivisionError("a number of rank 1")
        return super().loss(model, loss, batch, rows, entity)
'''


@pytest.mark.timeout(120)
def test_an_error_of_one_rank_ends_the_job_with_its_traceback(command):
    (command.home / "fragile.py").write_text(PLUGIN)
    plugin = ("plugins=[fragile]", "scoring._target_=fragile.Fragile")
    with job(command, *RUN, *RANKS, *plugin, PYTHONPATH=_with(command.home)) as started:
        err, took = started.end(60)
    assert started.process.returncode == 1
    assert err.strip().splitlines()[-1].startswith("error: ZeroDivisionError: a number of rank 1 (")
    assert command.result["status"] == "failed"
    log = next(command.folder.glob("*.log")).read_text()
    assert re.search(r"rank 1 \(process \d+\):\nTraceback", log) and "fragile.py" in log and "in loss" in log
    print(f"an error of rank 1 alone: its traceback is in the log; the command ended in {took:.1f} s, start and all")


@pytest.mark.timeout(120)
def test_a_rank_that_stands_still_ends_the_job_and_is_named(command):
    timeout = 4
    with job(command, *RUN, *RANKS, f"sharding.timeout={timeout}") as started:
        command.wait_for_step(started.process, 8)
        frozen = started.ranks()[1]
        os.kill(frozen, signal.SIGSTOP)
        err, took = started.end(60)
    assert started.process.returncode == 1
    assert f"rank 1 (process {frozen} " in err.strip().splitlines()[-1], err
    assert took < timeout + 10
    assert command.result["status"] == "failed"
    print(f"rank 1 stopped, sharding.timeout={timeout}: over in {took:.1f} s; {command.result['error']}")


def _with(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
