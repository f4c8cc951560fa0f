import json
from pathlib import Path
from typing import Any

from stand_in_run import kgexp, run_module

__all__ = ["kgexp", "run_module"]


def trials(folder: Path) -> list[dict[str, Any]]:
    """What `sweep.json` says of each trial, by number."""
    found: list[dict[str, Any]] = json.loads((folder / "sweep.json").read_text())["trials"]
    assert [trial["number"] for trial in found] == list(range(len(found)))
    return found
