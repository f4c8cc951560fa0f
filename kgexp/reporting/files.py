"""`trials.csv`: everything that is known of every trial, for other programs."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgexp.reporting import keys as naming
from kgexp.reporting.trials import Trial, numbers


def write_csv(path: Path, trials: Sequence[Trial]) -> None:
    """Writes a line a trial, numbers in full precision, seconds in wall seconds and memory in bytes; what is not known
    is an empty field."""
    keys = naming.varying(trials)
    metrics = list(dict.fromkeys(name for trial in trials for name in trial.metrics))
    stages = list(dict.fromkeys(name for trial in trials for name in trial.seconds))
    rows = [_row(trial, keys, metrics, stages) for trial in trials]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(trial: Trial, keys: Sequence[str], metrics: Sequence[str], stages: Sequence[str]) -> dict[str, Any]:
    known = numbers(trial.result)
    values = naming.values_of(trial, keys)
    return {
        "number": trial.number,
        "sweep": trial.sweep,
        "folder": "" if trial.folder is None else str(trial.folder),
        "status": trial.status,
        "model": trial.model,
        "seed": trial.seed,
        **{key: "" if value == naming.ABSENT else _field(value) for key, value in values.items()},
        "objective_name": trial.objective_name,
        "objective": trial.objective,
        **{name: trial.metrics.get(name) for name in metrics},
        **{f"seconds/{stage}": trial.seconds.get(stage) for stage in stages},
        "triples_per_second": known.get("triples_per_second"),
        "peak_rss": known.get("peak_rss"),
        "epoch": known.get("epoch"),
        "epochs_to_best": trial.epochs_to_best,
        "error": trial.first_line,
        "overrides": " ".join(trial.overrides),
    }


def _field(value: Any) -> Any:
    """A text or a number as it is, anything else as JSON."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number or isinstance(value, str) else json.dumps(value)
