"""Where a data set's files are: a folder with a file per split, one file to be split, or a packaged set."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from kgexp.errors import DataError

SPLITS = ("train", "valid", "test")
WHOLE = "whole"
"""The name of a file that holds all triples and is yet to be split."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_ENDINGS = [kind + packed for kind in (".txt", ".tsv") for packed in ("", *COMPRESSIONS)]
_PACKAGE = "package:"


@dataclass(frozen=True)
class Source:
    """The files of a data set.

    Attributes:
        path: the folder or the file.
        files: (role, file) pairs: the splits that are there, in the order of `SPLITS`, or `WHOLE` alone.
    """

    path: Path
    files: tuple[tuple[str, Path], ...]

    @property
    def whole(self) -> bool:
        """Whether one file holds all triples and is yet to be split."""
        return self.files[0][0] == WHOLE

    def with_file(self, role: str, path: Path) -> "Source":
        """The same with one file more."""
        return Source(self.path, (*self.files, (role, path)))


def find(path: str) -> Source:
    """The files behind `dataset.path`: a folder, a file, or `package:NAME` for a set that comes with kgexp.

    Raises:
        DataError: nothing is there, the folder has no train file, or two files claim the same split.
    """
    place = _inside_package(path.removeprefix(_PACKAGE)) if path.startswith(_PACKAGE) else Path(path).expanduser()
    if place.is_file():
        return Source(place, ((WHOLE, place),))
    if not place.is_dir():
        raise DataError(f"{place} does not exist: give dataset.path the folder or the file that holds the triples.")
    found = [(name, file) for name in SPLITS if (file := _split_file(place, name)) is not None]
    if not found or found[0][0] != "train":
        names = ", ".join(sorted(entry.name for entry in place.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{place} has no train file (it holds {names}): call the one to train on train.txt or train.tsv, "
            "plain or packed as .gz or .zst, or give dataset.path one file to be split."
        )
    return Source(place, tuple(found))


def fingerprint(parts: Iterable[object], source: Source) -> str:
    """A digest, 32 hexadecimal digits, of the files' bytes and of `parts`: whatever else decides the ids.

    Raises:
        DataError: a file cannot be read.
    """
    digest = hashlib.blake2b(repr(tuple(parts)).encode(), digest_size=16)
    for role, path in source.files:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, hashlib.blake2b).hexdigest()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): check the file and its permissions.") from error
        digest.update(f"{role} {content}\n".encode())
    return digest.hexdigest()


def _inside_package(name: str) -> Path:
    root = Path(str(resources.files("kgexp.data")))
    known = sorted(path.parent.name for path in root.glob("*/train.txt.gz"))
    if name not in known:
        raise DataError(f"{_PACKAGE}{name} does not come with kgexp: dataset.path can name {', '.join(known)}.")
    return root / name


def _split_file(folder: Path, split: str) -> Path | None:
    found = [path for ending in _ENDINGS if (path := folder / (split + ending)).is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise DataError(f"{folder} holds {names}, which both claim the {split} split: keep one of them.")
    return found[0] if found else None
