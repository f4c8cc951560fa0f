"""`trial.json`: what a sweep tells one of its trials, in the trial's folder before it starts.

A file reaches a trial wherever its launcher puts it, is there again when the trial is requeued, and is no part of the
configuration, on which the numbers depend.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_FILE = "trial.json"


@dataclass(frozen=True)
class Note:
    """What a trial has to know.

    Attributes:
        sweep: the sweep's name, the group of its runs at Weights & Biases.
        label: what tells the trial from the others: `model=complex seed=1`.
        number: of the trial, in its study too.
        study: file of the study that prunes trials, from the trial's folder; None: nobody prunes.
        pruner: name and settings of the pruner.
    """

    sweep: str
    label: str
    number: int
    study: str | None = None
    pruner: dict[str, Any] | None = None

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The note in a run's folder; None where the run is no trial."""
        path = folder / _FILE
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def write(self, folder: Path) -> None:
        """Leaves the note; it appears whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{_FILE}.tmp"
        part.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        os.replace(part, folder / _FILE)

    def applied(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with the trial's group and name at Weights & Biases, where the user gave none."""
        tracking = dict(config["tracking"])
        tracking["group"] = tracking.get("group") or self.sweep
        if tracking.get("name") == config["name"] and self.label:
            tracking["name"] = self.label
        return dict(config) | {"tracking": tracking}
