"""One process at a time in a run folder."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kgexp.errors import ConfigError


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Holds `<folder>/.lock` while the body runs; the lock of a process that dies goes with it.

    Raises:
        ConfigError: another process holds it; names that process.
    """
    with open(folder / ".lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{folder} is in use by {file.read().strip() or 'another process'}: wait until it ends, or choose "
                "another folder."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
