"""`metrics.jsonl`: one JSON object a line, each a row of metrics at a step."""

import json
import math
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TextIO


class MetricsFile:
    """Appends rows to a file that needs no library to read, and takes rows back when a run resumes.

    JSON has no NaN: non-finite numbers are the strings "NaN", "Infinity", "-Infinity", which `float` reads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self.count = 0  # rows of this run: those that were kept, and those written since

    def write(self, step: int, row: Mapping[str, float | int | str]) -> None:
        """Appends `{"step": step, **row}`; it is in the file, whatever happens to this process, on return."""
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        values = {"step": step} | {key: _finite(value) for key, value in row.items()}
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()
        self.count += 1

    def keep(self, count: int) -> None:
        """Drops all but the first `count` rows, and a line that a killed process left unfinished; atomic."""
        self.close()
        self.count = 0
        if not self._path.exists():
            return
        scratch = self._path.with_name(f"{self._path.name}.tmp")
        with self._path.open("rb") as old, scratch.open("wb") as new:
            for line in islice(old, count):
                if line.endswith(b"\n"):
                    new.write(line)
                    self.count += 1
            new.flush()
            os.fsync(new.fileno())
        scratch.replace(self._path)

    def close(self) -> None:
        """Closes the file; a later `write` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _finite(value: float | int | str) -> float | int | str:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
