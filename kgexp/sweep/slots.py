"""Trials that share a machine: each has its part of the cores and of the GPUs.

Nothing here imports torch, which looks at both when it starts.
"""

import fcntl
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from kgexp.errors import KgexpError
from kgexp.threads import cores, usable_cpus

_T = TypeVar("_T")

#: The slot of this process, held to its end: joblib gives a process several trials, which find torch as it began.
_held: tuple[int, int] | None = None


def settle(folder: Path, slots: int) -> int:
    """Takes a free slot of the machine's `slots` and leaves this process the cores and the GPUs that belong to it.

    Which one is free says a lock, so that any launcher may start trials in any order.

    Args:
        folder: of the sweep.
        slots: trials that run at a time; negative as joblib has it: -1 is one a processor, -2 one less.

    Returns:
        The slot, from 0.

    Raises:
        KgexpError: all are taken.
    """
    global _held
    slots = at_a_time(slots)
    if slots <= 1:
        return 0
    if _held is None:
        slot = _take(folder / ".slots", slots)
        _pin(part(cores(), slot, slots))
        if gpus := part(_gpus(), slot, slots):
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        _held = slot, slots
    return _held[0]


def at_a_time(jobs: int) -> int:
    """How many trials `n_jobs` of a launcher means; -1 is one a processor, as joblib has it."""
    return jobs if jobs > 0 else max(1, len(usable_cpus()) + 1 + jobs)


def part(things: Sequence[_T], slot: int, slots: int) -> list[_T]:
    """The things of a slot: an equal part, and where there are fewer than slots, one that several have in turn."""
    if len(things) < slots:
        return list(things[slot % len(things) :][:1]) if things else []
    first, last = (len(things) * bound // slots for bound in (slot, slot + 1))
    return list(things[first:last])


def _take(folder: Path, slots: int) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for slot in range(slots):
        file = os.open(folder / str(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return slot  # the file stays open as long as the process lives, and with it the lock
    raise KgexpError(f"all {slots} places of {folder.parent} are taken: do other processes run trials of this sweep?")


def _pin(mine: Sequence[Sequence[int]]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [cpu for core in mine for cpu in core])


def _gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in given.split(",") if name]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, line in enumerate(found.splitlines()) if line.startswith("GPU ")]
