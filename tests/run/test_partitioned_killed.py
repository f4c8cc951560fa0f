"""Killed at any moment, a run whose rows are mostly in storage loses nothing that was saved, and leaves nothing behind.

Rows are written back, fetched and removed by another thread all the time, while checkpoints name some of the files.
"""

import os
import random
from pathlib import Path

import pytest
from conftest import kills
from killing import End, Moment, Starter
from test_kill_and_resume import same_end

from kgexp.checkpoint.checkpoint import Checkpoint

KILLS = kills(5)
asked_for = pytest.mark.skipif("KGEXP_TEST_KILLS" not in os.environ, reason="KGEXP_TEST_KILLS=N asks for N kills")
#: Kills of one run before it may come to its end.
_OF_A_RUN = 5
RUN = (
    *("sharding=partitioned", "sharding.partitions=6", "sharding.buffer=2", "sharding.slices=2", "storage=local"),
    *("scoring=negatives", "train.epochs=2", "checkpoint.every_steps=7", "checkpoint.every_epochs=0"),
    *("evaluation.every_steps=20", "evaluation.every_epochs=0", "sharding.holdout=0.1", "train.batch_size=16"),
    *("tracking.mode=disabled", "tracking.progress=none"),
)
#: The first run is killed at these; all others at random ones.
FIRST = ("rename buckets", "begin rows", "sync checkpoint", "rename checkpoint", "time")

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")


def committed(command) -> list[Path]:
    return [path for path in command.checkpoints() if path.suffix != ".tmp"]


def unnamed(command) -> set[Path]:
    """Files of rows that no checkpoint names, and whatever was not finished."""
    folder = command.folder / "checkpoints"
    named = {folder / name for path in committed(command) for name in Checkpoint(path).files}
    return {path for path in folder.glob("rows/*") if path not in named} | set(folder.glob("*.tmp"))


def moment(start: int, straight: End, share: float, chance: random.Random, first: bool) -> Moment:
    """For a start of a run that has such a share of its steps to go."""
    known = [event for event in sorted(straight.events) if start == 0 or "buckets" not in event]
    event = FIRST[start] if first else chance.choice([*known, "time", "time"])
    if event == "time":
        return Moment(event, chance.uniform(0, straight.seconds * share))
    count = chance.randint(1, max(1, int(0.8 * share * straight.events[event])))
    return Moment(event, count, event.startswith("begin") or chance.random() < 0.5)


@asked_for
@pytest.mark.timeout(120 + 20 * KILLS)
def test_a_killed_run_ends_with_the_same_bits_and_leaves_nothing_behind(make_command, chance):
    done, runs = 0, 0
    with Starter() as starter:
        straight = make_command("straight")
        end = starter.run(straight, *RUN)
        assert end.code == 0, end.said
        assert not unnamed(straight)
        steps = straight.result["step"]
        while done < KILLS:
            killed, when = make_command(f"killed-{runs}"), []
            for start in range(_OF_A_RUN + 1):
                before, saved = unnamed(killed), committed(killed)
                share = 1 - (int(saved[-1].name[5:]) / steps if saved else 0)
                last = start == _OF_A_RUN or done == KILLS
                kill = None if last else moment(start, end, share, chance, runs == 0)
                now = starter.run(killed, *RUN, *(("resume=auto",) if start else ()), kill=kill)
                if saved and "resuming" in now.said:
                    step = int(saved[-1].name[5:])
                    assert f"resuming after step {step}, from {saved[-1]}" in now.said, now.said
                    # A folder of the same name has been begun anew.
                    assert not {path for path in before & unnamed(killed) if path.parent.name == "rows"}, (when, kill)
                if now.code == 0:
                    break
                assert now.code == -9, now.said
                when.append(f"{kill} (after step {int(saved[-1].name[5:]) if saved else 0})")
                done += 1
            assert now.code == 0, now.said
            assert same_end(straight, killed), when
            assert not unnamed(killed), when
            runs += 1
            print(f"killed {'; '.join(when) or 'never, as the moment did not come'}: the same bits after {steps} steps")
    print(f"{done} kills of {runs} runs")


@pytest.mark.parametrize("commit", [1, 2])
def test_the_next_start_removes_at_once_what_was_not_committed(command, commit):
    with Starter() as starter:
        end = starter.run(command, *RUN, kill=Moment("rename checkpoint", commit, after=False))
        assert end.code == -9 and len(committed(command)) == commit - 1
        left = unnamed(command)
        assert len([path for path in left if path.parent.name == "rows"]) > 3
        assert [path.suffix for path in left if path.name.startswith("step_")] == [".tmp"]
        end = starter.run(command, *RUN, "resume=auto", kill=Moment("begin rows", 1))
    assert end.code == -9
    assert [path.suffix for path in unnamed(command)] == [".tmp"], "only what it had just begun to write"
    assert not left & unnamed(command)
