"""Progress of training and evaluation: a bar on a terminal, plain lines in a log file."""

import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import ClassVar, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

from kgexp.errors import ConfigError

MODES = ("auto", "bar", "lines", "none")

#: Seconds between two lines, where no further tenth of the work is done before.
_INTERVAL = 10.0

#: Seconds between two lines at the least: short work is told in one line, its last.
_SHORTEST = 1.0


class Progress:
    """Shows how much of `total` is done, how fast (in the last 10 to 20 s) and when it ends (at mean speed).

    Args:
        mode: `bar`, `lines`, `none`, or `auto`: a bar where `stream` is a terminal, lines elsewhere.
        total: units to do.
        unit: what is counted, in the plural.
        description: what goes first, such as `train  epoch 3/30`; may be assigned anew while it runs.
        stream: where to show it; None is standard error.
        done: units that were done before, by the run that this one resumes; they do not count in the speed.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        mode: str,
        total: int,
        unit: str = "triples",
        description: str = "",
        stream: TextIO | None = None,
        *,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"tracking.progress is one of {', '.join(MODES)}, not {mode!r}.")
        self.description = description
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._clock = clock
        self._done = self._first = done
        self._start = self._told = clock()
        self._marks = deque([(self._start, done)], maxlen=2)
        self._fields: dict[str, float | int | str] = {}
        self._bar = self._make_bar(mode)
        self._lines = mode != "none" and self._bar is None

    def advance(self, n: int, **fields: float | int | str) -> None:
        """`n` more units are done; `fields` are shown at the end of the line, until they get new values."""
        tenth = self._tenths()
        self._done += n
        self._fields |= fields
        now = self._clock()
        if self._bar is not None:
            self._bar.show(self.description, self._done, "  ".join([self._pace(now), *self._shown_fields()]))
        elif self._lines and self._done < self._total:  # the last line is told at the end
            waited = now - self._told
            if waited >= _INTERVAL or (waited >= _SHORTEST and self._tenths() > tenth):
                self._print(self._pace(now))
                self._told = now
        if now - self._marks[-1][0] >= _INTERVAL:
            self._marks.append((now, self._done))

    def close(self) -> None:
        """Takes the bar away and says in one line what was done; may be called twice."""
        shown = self._lines or self._bar is not None
        if self._bar is not None:
            self._bar.close()
        self._bar, self._lines = None, False
        if shown and self._done > self._first:
            elapsed = self._clock() - self._start
            self._print(f"{self._rate(elapsed, self._done - self._first)}  took {_duration(elapsed)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_bar(self, mode: str) -> "_Bar | None":
        if mode not in ("auto", "bar"):
            return None
        console = Console(file=self._stream, force_terminal=True if mode == "bar" else None)
        if mode == "auto" and (not console.is_terminal or console.is_dumb_terminal):
            return None
        return _Bar(console, self._total, self.description, self._done)

    def _tenths(self) -> int:
        return 10 * self._done // max(1, self._total)

    def _pace(self, now: float) -> str:
        """`61,234 triples/s  ETA 0:01:12`."""
        before, done = self._marks[0]
        speed = (self._done - self._first) / max(now - self._start, 1e-9)
        left = max(0, self._total - self._done) / speed if speed > 0 else None
        return f"{self._rate(now - before, self._done - done)}  ETA {_duration(left)}"

    def _rate(self, seconds: float, units: int) -> str:
        rate = units / max(seconds, 1e-9)
        return f"{rate:,.0f} {self._unit}/s" if rate >= 10 else f"{rate:.2g} {self._unit}/s"

    def _print(self, pace: str) -> None:
        percent = min(100, 100 * self._done // max(1, self._total))
        parts = [self.description, f"{percent} %", pace, *self._shown_fields()]
        print("  ".join(part for part in parts if part), file=self._stream, flush=True)

    def _shown_fields(self) -> list[str]:
        return [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in self._fields.items()]


class _Bar:
    """A bar of rich. A terminal shows one at a time: the bar that opened last, until it closes."""

    _open: ClassVar[list["_Bar"]] = []

    def __init__(self, console: Console, total: int, description: str, done: int) -> None:
        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            console=console,
            transient=True,
            # What is printed meanwhile goes above the bar, unless it goes to a file.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(description, total=total, completed=done, status="")
        if self._open:
            self._open[-1]._bar.stop()
        self._open.append(self)
        self._bar.start()

    def show(self, description: str, done: int, status: str) -> None:
        self._bar.update(self._task, description=description, completed=done, status=status)

    def close(self) -> None:
        self._bar.stop()
        self._open.remove(self)
        if self._open:
            self._open[-1]._bar.start()


def _duration(seconds: float | None) -> str:
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
