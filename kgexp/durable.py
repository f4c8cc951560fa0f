"""Files that survive a power cut."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Returns once a file's bytes, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
