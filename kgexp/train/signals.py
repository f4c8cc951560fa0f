"""Stop signals: the run is asked to end, saves at the next step, and then ends the way the signal meant.

Slurm sends SIGTERM before it takes a job away, submitit SIGUSR2 before the time is up, a person SIGINT.
"""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)

_Handler = Callable[[int, FrameType | None], object] | int | None


class StopRequested(Exception):
    """Raised by `StopSignal.check` to leave work that can be done again later, such as an evaluation."""


class StopSignal:
    """Notes stop signals while the context lasts; the loop looks at `requested`, saves and calls `finish`.

    A second SIGINT raises KeyboardInterrupt at once. Outside the main thread, where Python cannot install
    handlers, the context does nothing. Children forked meanwhile ignore these signals: it is for the process
    that owns the run to save and to end them.
    """

    def __init__(self) -> None:
        self._requested: signal.Signals | None = None
        self._interrupted = False
        self._previous: dict[signal.Signals, _Handler] = {}
        self._pid = os.getpid()

    @property
    def requested(self) -> signal.Signals | None:
        """The signal that asks the run to stop, or None. SIGUSR2 wins over one that came before it: it alone
        makes submitit queue the job again, and Slurm may send both."""
        return self._requested

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for signum in STOP_SIGNALS:
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            # None stands for a handler that was not set from Python: it cannot be set from here either.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def check(self) -> None:
        """Raises StopRequested where a stop was requested."""
        if self._requested is not None:
            raise StopRequested

    def finish(self) -> None:
        """Ends the process as the signal asked; call it after saving. Returns where no stop was requested.

        The handler that was there before (submitit's queues the job again) is called first.

        Raises:
            SystemExit: with code 128 + signal number, as shells have it, unless that handler raises itself.
        """
        if self._requested is None:
            return
        previous = self._previous.get(self._requested)
        if callable(previous):
            previous(self._requested, None)
        raise SystemExit(128 + self._requested)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        if signum == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            # Not print: the handler may run in the middle of another print.
            os.write(2, b"\ninterrupted: saving, then stopping; once more stops at once\n")
        if self._requested is None or signum == signal.SIGUSR2:
            self._requested = signal.Signals(signum)
