"""Trials that share a machine take their parts of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgexp.errors import KgexpError
from kgexp.sweep import slots
from kgexp.sweep.slots import part, settle

ROOT = Path(__file__).parents[2]

HOLD = """
import json, os, sys
from pathlib import Path
from kgexp.sweep.slots import settle
folder = Path(sys.argv[1])
slot = settle(folder, 2), settle(folder, 2)
print(json.dumps([slot, sorted(os.sched_getaffinity(0)), os.environ["CUDA_VISIBLE_DEVICES"]]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("count_of_slots", range(1, 6))
def test_parts_are_equal_and_leave_nothing_out(count, count_of_slots):
    things = list(range(count))
    parts = [part(things, slot, count_of_slots) for slot in range(count_of_slots)]
    if count >= count_of_slots:
        assert [thing for one in parts for thing in one] == things
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert parts == [[things[slot % count]] if things else [] for slot in range(count_of_slots)]


def holder(folder: Path) -> tuple[subprocess.Popen, list]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0,1,2,GPU-3,4"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    return process, json.loads(line) if line else []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_processes_take_different_slots_and_leave_them_when_they_die(tmp_path, monkeypatch):
    processes = []
    try:
        first, (slot, cpus, gpus) = holder(tmp_path)
        processes.append(first)
        second, (other, other_cpus, other_gpus) = holder(tmp_path)
        processes.append(second)
        assert (slot, other) == ([0, 0], [1, 1])  # a process keeps the one that it has
        assert (gpus, other_gpus) == ("0,1", "2,GPU-3,4")
        mine = [cpu for core in slots.cores() for cpu in core]
        if len(slots.cores()) > 1:
            assert sorted(cpus + other_cpus) == sorted(mine)
        else:
            assert cpus == other_cpus == sorted(mine)
        monkeypatch.setattr(slots, "_held", None)
        with pytest.raises(KgexpError, match="all 2 places"):
            settle(tmp_path, 2)
        first.kill()
        first.wait(10)
        third, (slot, *_) = holder(tmp_path)
        processes.append(third)
        assert slot == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=10)


def test_one_trial_at_a_time_has_the_whole_machine(tmp_path):
    before = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    assert settle(tmp_path, 1) == 0 and list(tmp_path.iterdir()) == []
    assert before is None or sorted(os.sched_getaffinity(0)) == before
