"""Reads the trials of a sweep from its folder, at any moment of its life.

Files may be half written, missing, or left behind by a process that was killed: whatever can be read counts.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kgexp.errors import ConfigError
from kgexp.protocol import LOWER_IS_BETTER
from kgexp.resume import flat

STATUSES = ("finished", "pruned", "running", "waiting", "stopped", "failed")

#: What a trial's objective is called where no result says which metric it is.
OBJECTIVE = "objective"

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a sweep.

    Attributes:
        sweep: the name of its sweep.
        number: in its sweep.
        folder: the run's; None where it has none yet.
        status: of `STATUSES`.
        overrides: the arguments that made it, the swept ones where the sweep has told them apart.
        config: the resolved configuration; empty where there is none.
        result: what `result.json` holds; empty where there is none.
        error: what went wrong, in a sentence or more.
        values: what the sweep was told of it, by objective.
        minimized: the objectives of which the sweep wants small values.
    """

    sweep: str
    number: int
    folder: Path | None
    status: str
    overrides: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    minimized: frozenset[str] = frozenset()

    @property
    def finished(self) -> bool:
        """Whether it came to its end: the numbers of others are of another length of training."""
        return self.status == "finished"

    @property
    def model(self) -> str:
        """The name of the model's class; empty where no configuration is known."""
        return str(self.values_by_key.get("model._target_") or "").rpartition(".")[2]

    @cached_property
    def values_by_key(self) -> dict[str, Any]:
        """The configuration's values by dotted key."""
        return flat(self.config)

    @property
    def seed(self) -> Any:
        """Its seed, as its configuration or its arguments say; None where neither does."""
        given = [override.partition("=")[2] for override in self.overrides if override.startswith("seed=")]
        return self.config.get("seed", given[-1] if given else None)

    @property
    def arguments(self) -> str:
        """What made it, but for its seed."""
        return " ".join(override for override in self.overrides if not override.startswith("seed="))

    @property
    def objective_name(self) -> str:
        """The metric that decides, by its full name."""
        return str(self.result.get("objective_name") or OBJECTIVE)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every number by its full name, the objectives among them."""
        metrics = {name: value for name, value in self.values.items() if name != OBJECTIVE}
        metrics |= numbers(self.result.get("metrics"))
        objective = self.result.get(OBJECTIVE, self.values.get(OBJECTIVE))
        return metrics | numbers({self.objective_name: objective})

    @property
    def objective(self) -> float | None:
        """The best value of the metric that decides."""
        return self.metrics.get(self.objective_name)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Wall seconds by stage."""
        return numbers(self.result.get("seconds"))

    @cached_property
    def epochs_to_best(self) -> float | None:
        """The epoch of the best validation."""
        best = self.result.get("best_step")
        found = [epoch for row in self.validations if row["step"] == best and (epoch := self.epoch_of(row)) is not None]
        return found[-1] if found else self.epoch_of({"step": best})

    @cached_property
    def validations(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl` that a validation wrote, by step; a line that is not whole is left out."""
        rows = []
        try:
            lines = (self.folder / "metrics.jsonl").read_text("utf-8", "replace").splitlines() if self.folder else []
        except OSError:
            lines = []
        for line in lines:
            row = _parsed(line) if '"valid/' in line else {}
            if isinstance(row.get("step"), int):
                rows.append(row)
        return rows

    def epoch_of(self, row: Mapping[str, Any]) -> float | None:
        """The epoch at which a row was written: what it says itself, else by its step."""
        said = numbers(row)
        if "train/epoch" in said:
            return said["train/epoch"]
        total = numbers(self.result)
        if "step" in said and "epoch" in total and total.get("step"):
            return total["epoch"] * said["step"] / total["step"]
        return None

    @property
    def first_line(self) -> str:
        """Of its error; empty without one."""
        return ((self.error or "").strip().splitlines() or [""])[0]


@dataclass(frozen=True)
class Sweep:
    """A folder with trials directly below it.

    Attributes:
        name: as its sweeper calls it, else the folder's.
        folder: as it was given.
        trials: by number.
    """

    name: str
    folder: Path
    trials: tuple[Trial, ...]


def read(folder: Path, name: str | None = None) -> Sweep:
    """The trials of a folder: those that its `sweep.json` names, else every folder below it that holds a result.

    Args:
        folder: the sweep's.
        name: what to call it; None for its own name.

    Raises:
        ConfigError: there is no such folder, or no trial in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder: give that of a sweep, such as outputs/sweeps/DATE/TIME.")
    said = _json(folder / "sweep.json")
    name = name or str(said.get("name") or folder.resolve().name)
    entries = said.get("trials")
    trials = _listed(name, folder, said, entries) if isinstance(entries, list) else _found(name, folder)
    if trials:
        return Sweep(name, folder, tuple(sorted(trials, key=lambda trial: trial.number)))
    if (folder / "result.json").exists():
        raise ConfigError(f"{folder} is the folder of a single run: give the folder that it lies in.")
    raise ConfigError(f"{folder} holds no trials: give a folder whose runs lie directly below it.")


def lower_is_better(metric: str, trials: Sequence[Trial]) -> bool:
    """Whether small values of a metric are the good ones, by its name or by what its sweep wants."""
    return metric.rpartition("/")[2] in LOWER_IS_BETTER or any(metric in trial.minimized for trial in trials)


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A key for sorting: 2-x before 10-x."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text)]


def numbers(values: Any) -> dict[str, float]:
    """What is a finite number in a mapping, as a float; JSON's strings for the others are left out."""
    found = {}
    for key, value in _mapping(values).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[str(key)] = float(value)
    return found


def _listed(name: str, folder: Path, said: Mapping[str, Any], entries: Sequence[Any]) -> list[Trial]:
    """The trials that a `sweep.json` names."""
    directions = {str(key): value for key, value in _mapping(said.get("objectives")).items()}
    minimized = frozenset(key for key, direction in directions.items() if direction == "minimize")
    trials = []
    for position, entry in enumerate(map(_mapping, entries)):
        number = entry.get("number")
        values = entry.get("values")
        told = dict(zip(directions, values, strict=False)) if isinstance(values, list) else {}
        overrides = entry.get("swept") or entry.get("overrides")
        trials.append(
            _trial(
                name,
                number if isinstance(number, int) else position,
                folder / str(entry["folder"]) if entry.get("folder") else None,
                str(entry.get("status") or "waiting"),
                overrides=tuple(map(str, overrides)) if isinstance(overrides, list) else (),
                error=str(entry["error"]) if entry.get("error") else None,
                values=numbers(told),
                minimized=minimized,
            )
        )
    return trials


def _found(name: str, folder: Path) -> list[Trial]:
    """The folders that hold a result, by name: numbered as a sweep numbers them where all are, else by order."""
    folders = sorted((path.parent for path in folder.glob("*/result.json")), key=lambda path: natural(path.name))
    heads = [int(match[1]) for path in folders if (match := re.match(r"(\d+)-\D", path.name))]
    order = heads if len(set(heads)) == len(folders) else range(len(folders))
    return [_trial(name, number, path, "running") for number, path in zip(order, folders, strict=True)]


def _trial(sweep: str, number: int, folder: Path | None, status: str, **known: Any) -> Trial:
    """A trial with what its folder holds. Its result is the truth, except where it says that the run goes on and the
    sweep has seen the end: a process that was killed leaves such a result."""
    folder = folder if folder is not None and folder.is_dir() else None
    result = _json(folder / "result.json") if folder else {}
    ended = status in ("failed", "pruned", "stopped")
    if result.get("status") and not (result["status"] == "running" and ended):
        status = str(result["status"])
        known["error"] = str(result["error"]) if result.get("error") else known.get("error")
    config = _yaml(folder / "config.yaml") if folder else {}
    return Trial(sweep, number, folder, status, config=config, result=result, **known)


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where the file is missing or not whole."""
    try:
        return _parsed(path.read_text("utf-8", "replace"))
    except OSError:
        return {}


def _parsed(text: str) -> dict[str, Any]:
    try:
        return _mapping(json.loads(text))
    except ValueError:
        return {}


def _yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty where the file is missing or not whole."""
    try:
        return _mapping(yaml.load(path.read_text("utf-8", "replace"), Loader=_Loader))
    except (OSError, yaml.YAMLError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
