"""Starts of the command that are killed at a chosen moment: when the n-th file is begun, renamed, synced, deleted, …

Run as a program it imports the command once and forks for every start that it is asked for, so that a test can afford
many of them. A fork is killed by itself, from inside the calls of the system: no other process is fast enough.
"""

import builtins
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import ENVIRONMENT, Command

#: What files belong to, by their paths.
_KINDS = {"rows": r"/rows/", "checkpoint": r"/step_\d+", "buckets": r"/buckets-"}


@dataclass(frozen=True)
class Moment:
    """When to kill.

    Attributes:
        event: such as `rename rows`, or `time` alone.
        count: at which of these events, counted from 1; at `time`, after how many seconds.
        after: once the call has had its effect, or before it.
    """

    event: str
    count: float
    after: bool = True

    def __str__(self) -> str:
        if self.event == "time":
            return f"{self.count:.2f} s after the start"
        return f"{'after' if self.after else 'before'} '{self.event}' no. {self.count:.0f}"


@dataclass(frozen=True)
class End:
    """How a start has ended.

    Attributes:
        code: its exit code, or minus the signal that killed it.
        said: on stdout and stderr.
        events: how often each has happened, by name; none where it was killed.
        seconds: that it took.
    """

    code: int
    said: str
    events: dict[str, int]
    seconds: float


class Starter:
    """Starts the command in forks; a context."""

    def __enter__(self) -> "Starter":
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def run(self, command: Command, *overrides: str, kill: Moment | None = None) -> End:
        """The end of a start, killed at a moment if that comes."""
        log, events = command.home / "log", command.home / "events"
        events.unlink(missing_ok=True)
        job = {
            "arguments": [*command.arguments, *overrides],
            "home": str(command.home),
            "log": str(log),
            "events": str(events),
            "kill": None if kill is None else [kill.event, kill.count, kill.after],
        }
        process, began = self._process, time.monotonic()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        code = json.loads(process.stdout.readline())
        met = json.loads(events.read_text()) if events.exists() else {}
        return End(code, log.read_text(), met, time.monotonic() - began)


class _Watch:
    """Counts what is done to files, and ends the process when it is time."""

    def __init__(self, kill: Moment | None) -> None:
        self.counts: Counter[str] = Counter()
        self._kill, self._lock = kill, threading.Lock()
        if kill is not None and kill.event == "time":
            threading.Thread(target=lambda: (time.sleep(kill.count), _die()), daemon=True).start()

    def install(self) -> None:
        """Replaces the functions by which files are changed."""
        for verb, name, place in (
            ("rename", "rename", 1),
            ("rename", "replace", 1),
            ("delete", "unlink", 0),
            ("sync", "fsync", 0),
            ("read", "preadv", 0),
        ):
            setattr(os, name, self._watched(verb, getattr(os, name), place))
        builtins.open = io.open = self._opening(io.open)

    def _watched(self, verb: str, function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            due = self._due(verb, _path(args[place], options.get("dir_fd")))
            if due and self._kill is not None and not self._kill.after:
                _die()
            result = function(*args, **options)
            if due:
                _die()
            return result

        return call

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            result = function(file, mode, *args, **options)
            if mode[0] in "xw" and self._due("begin", _path(file)):
                os.write(result.fileno(), b"\x10\0\0\0 half")
                _die()
            return result

        return call

    def _due(self, verb: str, path: str) -> bool:
        if verb == "delete" and path.endswith(".tmp"):
            return False  # names that are not there any more
        for kind, pattern in _KINDS.items():
            if re.search(pattern, path):
                with self._lock:
                    self.counts[f"{verb} {kind}"] += 1
                    now = self.counts[f"{verb} {kind}"]
                kill = self._kill
                return kill is not None and (kill.event, kill.count) == (f"{verb} {kind}", now)
        return False


def _path(file: Any, folder: int | None = None) -> str:
    """Of a path, or of something that is open."""
    if isinstance(file, int):
        return os.readlink(f"/proc/self/fd/{file}")
    return os.fspath(file) if folder is None else os.path.join(_path(folder), os.fspath(file))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _start(job: dict[str, Any]) -> None:
    """In a fork: the command, as `python -m kgexp` would run it."""
    from kgexp.cli import main

    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.chdir(job["home"])
    sys.argv = ["kgexp", *job["arguments"]]
    watch, code = _Watch(None if job["kill"] is None else Moment(*job["kill"])), 0
    watch.install()
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    Path(job["events"]).write_text(json.dumps(watch.counts))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve() -> None:
    """Forks for every line of standard input, and answers with the exit code."""
    import kgexp.cli
    import kgexp.run  # noqa: F401  # once for all

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _start(json.loads(line))
            finally:
                os._exit(70)
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    _serve()
