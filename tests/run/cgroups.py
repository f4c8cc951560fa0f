"""Memory control groups below the one of the tests, where the machine lets them make some."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Group:
    """A control group with a limit; its processes are killed by the system when they go beyond what can be reclaimed.

    Args:
        folder: of the group in the file system of control groups.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def limit(self, size: int) -> None:
        (self.folder / "memory.limit_in_bytes").write_text(str(size))

    def enter(self) -> None:
        """Puts the calling process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def groups(count: int) -> Iterator[list[Group]]:
    """New groups below the own one, so that what holds for that one holds for them too; none where that is refused.

    They need version 1 of control groups: version 2 has no processes beside groups that share the memory out.
    """
    made: list[Group] = []
    try:
        own = _own()
        for i in range(count if own else 0):
            folder = own / f"kgexp-test-{os.getpid()}-{i}"
            try:
                folder.mkdir()
                made.append(Group(folder))
                made[-1].limit(1 << 40)
            except OSError:
                break
        yield made if len(made) == count else []
    finally:
        for group in made:
            for _ in range(50):
                with suppress(OSError):
                    group.folder.rmdir()
                    break
                time.sleep(0.1)  # processes that have ended leave it in their own time


def _own() -> Path | None:
    """The memory group of this process, of version 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        folder = Path("/sys/fs/cgroup/memory", path.lstrip("/"))
        if "memory" in controllers.split(",") and folder.is_dir():
            return folder
    return None
