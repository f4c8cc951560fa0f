"""How many threads, and how idle ones wait: set before torch is imported, so nothing here may import it."""

import os
from pathlib import Path


def usable_cpus() -> list[int]:
    """The processors that this process may run on, in order."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cores() -> list[list[int]]:
    """Physical cores that this process may run on, each as its processors."""
    cores: dict[str, list[int]] = {}
    for cpu in usable_cpus():
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text().strip() if siblings.is_file() else str(cpu), []).append(cpu)
    return list(cores.values())


def physical_cores() -> int:
    """How many they are (hyper-threads of one core slow matrix products down)."""
    return max(1, len(cores()))


def thread_count(threads: int | str, ranks: int = 1) -> int:
    """Threads of a process out of `train.threads`; `auto` shares the physical cores among `ranks`."""
    return max(1, physical_cores() // ranks) if threads == "auto" else int(threads)


def let_idle_threads_sleep() -> None:
    """Makes OpenMP threads that wait for work give their core back after some microseconds.

    Left alone they spin for milliseconds, as if the core were theirs. Where other processes want it, every operation
    then waits for a thread that is not running, and all goes ten times slower. The few hundred turns that they may
    spin here keep nearly all of the speed on a quiet machine. The environment's own settings win.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "300")
