"""`result.json`: what became of a run, true at any moment of its life."""

import json
import math
import os
from pathlib import Path
from typing import Any


class Record:
    """The file `result.json` of a run folder, replaced as a whole whenever something is known.

    Args:
        folder: the run's; a record that is there already is continued.
        written: False on the ranks that only keep their values, as one process writes the file.
    """

    def __init__(self, folder: Path, *, written: bool = True) -> None:
        self._written = written
        self._path = folder / "result.json"
        self.values: dict[str, Any] = self.read()

    def read(self) -> dict[str, Any]:
        """What is in the file now; nothing where there is none."""
        if not self._path.is_file():
            return {}
        values: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        return values

    def update(self, **values: Any) -> None:
        """Sets values (JSON; NaN becomes null) and writes the file."""
        self.values |= values
        if not self._written:
            return
        temporary = self._path.with_suffix(".json.tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(_finite(self.values), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)


def _finite(value: Any) -> Any:
    """The value without the numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
