"""The processes of a job that runs the command: found, killed, and looked for when nothing may be left."""

import os
import signal
import subprocess
import time
from pathlib import Path


class Job:
    """A start of the command with ranks; all its processes inherit a folder for temporary files of their own.

    Args:
        command: of `conftest`; its folder `tmp` becomes that folder.
    """

    def __init__(self, command, *overrides: str, **environment: str) -> None:
        self.command = command
        self.scratch = command.home / "tmp"
        self.scratch.mkdir(exist_ok=True)
        self.process: subprocess.Popen = command.start(*overrides, TMPDIR=str(self.scratch), **environment)

    def processes(self) -> list[int]:
        """Ids of all that live, of this start or another with the same folder for temporary files."""
        mark = f"TMPDIR={self.scratch}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):  # empty where nobody has yet waited for it
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def ranks(self) -> list[int]:
        """Ids of the rank's processes that live, rank 0 first."""
        children = [pid for pid in self.processes() if _parent(pid) == self.process.pid]
        # Beside them is the tracker of multiprocessing; torch may start others, of no interest here.
        return sorted((pid for pid in children if b"spawn_main" in _arguments(pid)), key=_began)

    def wait_for_ranks(self, count: int, seconds: float = 60) -> list[int]:
        deadline = time.monotonic() + seconds
        while len(ranks := self.ranks()) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, "the ranks did not start"
            time.sleep(0.01)
        return ranks

    def end(self, seconds: float) -> tuple[str, float]:
        """What the command has written to stderr at its end, and how long that took from now.

        It has to end within `seconds`, and nothing of the job may be left then."""
        began = time.monotonic()
        _, err = self.process.communicate(timeout=seconds)
        took = time.monotonic() - began
        assert self.gone(3), f"processes {self.processes()} outlive the command"
        return err, took

    def gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def clear(self) -> None:
        """Ends whatever a failed test has left."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the third on; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    return int(fields[1]) if (fields := _stat(pid)) else None


def _began(pid: int) -> tuple[int, int]:
    return (int(fields[19]) if (fields := _stat(pid)) else 0), pid


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
