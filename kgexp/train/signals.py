"""Stop signals: the run is asked to end, saves at the next step, and then ends the way the signal meant.

Slurm sends SIGTERM before it takes a job away, submitit SIGUSR2 before the time is up, a person SIGINT.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)

_STRENGTH = {0: 0, signal.SIGINT: 1, signal.SIGTERM: 2, signal.SIGUSR2: 3}

_Handler = Callable[[int, FrameType | None], object] | int | None


def strongest(codes: Iterable[int]) -> int:
    """The signal that ranks stop for, out of what each of them noted (0 for nothing); 0 where none did.

    SIGUSR2 wins over SIGTERM, and SIGTERM over SIGINT: a job that is to come back must not end as one that is over.
    """
    return max(codes, key=_STRENGTH.__getitem__, default=0)


class StopRequested(Exception):
    """Raised by `StopSignal.check` to leave work that can be done again later, such as an evaluation."""


class StopSignal:
    """Notes stop signals while the context lasts; the loop looks at `requested`, saves and calls `finish`.

    A second SIGINT raises KeyboardInterrupt at once. Outside the main thread, where Python cannot install
    handlers, the context does nothing. Children forked meanwhile ignore these signals: it is for the process
    that owns the run to save and to end them.

    Args:
        shared: several ranks stop at one step: what this process was sent is only `noted`, and `requested` is what
            the ranks agreed to `adopt`. A signal that the rank was started to ignore stays ignored.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._noted: signal.Signals | None = None
        self._adopted: signal.Signals | None = None
        self._interrupted = False
        self._previous: dict[signal.Signals, _Handler] = {}
        self._pid = os.getpid()

    @property
    def noted(self) -> signal.Signals | None:
        """The signal that this process was sent, or None. SIGUSR2 wins over one that came before it: it alone
        makes submitit queue the job again, and Slurm may send both."""
        return self._noted

    @property
    def requested(self) -> signal.Signals | None:
        """The signal that asks the run to stop, or None."""
        return self._adopted if self._shared else self._noted

    def adopt(self, signum: int) -> None:
        """Takes over what the ranks agreed on, the `strongest` of what they noted; 0 for none."""
        self._adopted = signal.Signals(signum) if signum else None

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for signum in STOP_SIGNALS:
                if not (self._shared and signal.getsignal(signum) is signal.SIG_IGN):
                    self._previous[signum] = signal.signal(signum, self._note)
            # Whoever starts ranks holds the signals back until somebody listens: those that came arrive here.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
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
        if self.requested is not None:
            raise StopRequested

    def finish(self) -> None:
        """Ends the process as the signal asked; call it after saving. Returns where no stop was requested.

        The handler that was there before (submitit's queues the job again) is called first.

        Raises:
            SystemExit: with code 128 + signal number, as shells have it, unless that handler raises itself.
        """
        if self.requested is None:
            return
        previous = self._previous.get(self.requested)
        if callable(previous):
            # Slurm ends all processes of a job that is put back, among them the one that submitit's handler starts to
            # ask for it: it must not take that for a failure.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            try:
                previous(self.requested, None)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        raise SystemExit(128 + self.requested)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        if signum == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            # Not print: the handler may run in the middle of another print.
            os.write(2, b"\ninterrupted: saving, then stopping; once more stops at once\n")
        if self._noted is None or signum == signal.SIGUSR2:
            self._noted = signal.Signals(signum)
