"""Folders that appear whole or not at all, and are known by the fingerprint of what they were made of."""

import atexit
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgexp.durable import sync
from kgexp.errors import DataError

INDEX = "graph.json"
_LEFTOVER_SECONDS = 24 * 3600.0

Writer = Callable[[Path], dict[str, Any]]
"""Fills an empty folder with files and returns what else the index should hold."""


def obtain(cache: Path | None, fingerprint: str, write: Writer) -> Path:
    """The folder of a fingerprint; written first if it is missing, incomplete or damaged.

    Without a cache it is a temporary folder that goes with the process. Several processes may write the same
    folder at once: the first to finish wins, and the others use its work.

    Raises:
        DataError: the cache cannot be written.
    """
    if cache is None:
        return _temporary(fingerprint, write)
    final = cache / fingerprint
    if is_whole(final):
        return final
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _clean(cache)
        _commit(_written(cache, fingerprint, write), final)
    except OSError as error:
        raise DataError(
            f"The cache {cache} cannot be written ({error.strerror or error}): "
            "give dataset.cache a folder with room, or null for a temporary one."
        ) from error
    return final


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a whole folder."""
    index: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return index


def is_whole(folder: Path) -> bool:
    """Whether the folder has an index, and every file that the index lists has its size."""
    try:
        sizes: dict[str, int] = read_index(folder)["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _written(parent: Path, fingerprint: str, write: Writer) -> Path:
    """A new folder beside the final one, complete and on the disk."""
    folder = parent / f"{fingerprint}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    folder.mkdir()
    try:
        content = write(folder)
        files = sorted(folder.iterdir())
        index = {**content, "files": {file.name: file.stat().st_size for file in files}}
        (folder / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False), encoding="utf-8")
        for path in (*files, folder / INDEX, folder):
            sync(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _commit(folder: Path, final: Path) -> None:
    """Gives the written folder its final name, unless a whole one got there first."""
    while not is_whole(final):
        try:
            folder.rename(final)
        except OSError:
            if not final.exists():
                raise
            if not is_whole(final):  # damaged: out of the way, under a name that is cleaned up
                damaged = final.with_name(f"{final.name}.{uuid.uuid4().hex[:8]}.tmp")
                final.rename(damaged)
                shutil.rmtree(damaged, ignore_errors=True)
        else:
            sync(final.parent)
            return
    shutil.rmtree(folder, ignore_errors=True)


def _clean(cache: Path) -> None:
    """Removes what writers left behind that were killed long ago."""
    for leftover in cache.glob("*.tmp"):
        try:
            old = time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS
        except FileNotFoundError:  # another process was faster
            continue
        if old:
            shutil.rmtree(leftover, ignore_errors=True)


def _temporary(fingerprint: str, write: Writer) -> Path:
    parent = Path(tempfile.mkdtemp(prefix="kgexp-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return _written(parent, fingerprint, write)
