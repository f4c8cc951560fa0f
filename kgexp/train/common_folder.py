"""Whether the ranks of a run have one folder, or each machine its own."""

import os
import time
import uuid
from pathlib import Path

from kgexp.train.record import Record
from kgexp.world import World

#: Seconds until a file is seen by other machines: a network file system may remember for a while that it was not there.
_SECONDS = 40.0
#: File systems that nobody but this machine writes to: what is there is seen at once.
_OWN = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
_MOUNTS = Path("/proc/self/mountinfo")


def is_common(record: Record, folder: Path, world: World) -> bool:
    """Whether all ranks see what rank 0 writes into the run's folder, which is there for all of them.

    Args:
        record: in the folder; rank 0 writes it.
        folder: of the run.
        world: the ranks, which ask together.
    """
    nonce = world.broadcast("the start of the run", uuid.uuid4().hex)
    if world.rank == 0:
        record.update(start=nonce)
    world.barrier("the run's folder")
    deadline = time.monotonic() + (0.0 if world.one_machine or _file_system(folder) in _OWN else _SECONDS)
    while not (seen := record.read().get("start") == nonce) and time.monotonic() < deadline:
        time.sleep(0.5)
    return all(world.gather("the sight of the run's folder", seen))


def _file_system(folder: Path) -> str | None:
    """The type of the file system that a folder is on; None where that is not known."""
    if not _MOUNTS.exists():
        return None
    device = os.stat(folder).st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")  # "id parent MAJOR:MINOR root place options … - TYPE source options"
        if before.split()[2] == place:
            return after.split()[0]
    return None
