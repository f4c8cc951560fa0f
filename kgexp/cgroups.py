"""How much memory a Linux process may still take: what the machine has free, and what its control groups allow."""

from collections.abc import Iterator
from pathlib import Path

#: Of each version: limit, usage, and what of the usage the kernel gives back when it is needed.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory(root: Path) -> dict[str, int]:
    """Bytes that each thing which bounds the process leaves: the machine and every control group around it, by their
    names; nothing where the system does not tell.

    Args:
        root: of the file system that holds `proc` and `sys`.
    """
    free = {}
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free["machine"] = int(fields["MemAvailable"].split()[0]) * 1024
    return free | dict(_groups(root))


def _groups(root: Path) -> Iterator[tuple[str, int]]:
    """The name of each control group around the process, from its own up to the topmost, and what it leaves."""
    membership = root / "proc/self/cgroup"
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path is the host's, and the group itself is mounted at the top.
        own = Path(path.lstrip("/"))
        for part in (own, *own.parents):
            if (left := _left(top / part, *names)) is not None:
                yield str(part), left


def _left(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Limit less usage of one group; None where it has no limit."""
    try:
        text = (folder / limit).read_text().strip()
        if text == "max":
            return None
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(text) - int((folder / usage).read_text()) + int(stat.get(reclaimable, 0))
    except OSError:
        return None
