"""How idle threads wait: set before torch is imported, so nothing here may import it."""

import os


def let_idle_threads_sleep() -> None:
    """Makes OpenMP threads that wait for work give their core back after some microseconds.

    Left alone they spin for milliseconds, as if the core were theirs. Where other processes want it, every operation
    then waits for a thread that is not running, and all goes ten times slower. The few hundred turns that they may
    spin here keep nearly all of the speed on a quiet machine. The environment's own settings win.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "300")
