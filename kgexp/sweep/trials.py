"""The trials of a sweep, and `sweep.json`, which remembers them from one start of the sweep to the next."""

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kgexp.errors import ConfigError
from kgexp.train.lock import run_lock

#: Arguments that change nothing in a trial's numbers: another start of the sweep may have others.
_NO_MATTER = (
    *("tracking", "checkpoint.", "resume=", "hydra.", "hydra/", "train.threads=", "train.device=", "dataset.cache="),
    *("evaluation.queries=", "evaluation.block=", "sharding.timeout="),
)
_LONG_NUMBER = re.compile(r"(?<==)-?\d+\.\d{5,}(e-?\d+)?$")
#: Of a trial that needs no further start.
OVER = ("finished", "pruned")


@dataclass
class Trial:
    """One run of a sweep.

    Attributes:
        number: its place; the folder's name begins with it.
        overrides: its command-line arguments, swept ones and those that all trials share.
        swept: the former.
        folder: its name below the sweep's; None before its configuration could be composed.
        status: waiting, running, finished, pruned, stopped (it goes on when the sweep is started again), failed.
        error: first line of what went wrong.
        values: the objectives.
        job: where a scheduler has it: `slurm:1234_0`.
    """

    number: int
    overrides: list[str]
    swept: list[str] = field(default_factory=list)
    folder: str | None = None
    status: str = "waiting"
    error: str | None = None
    values: list[float] | None = None
    job: str | None = None

    @property
    def label(self) -> str:
        """What tells it from the others; long numbers are shortened."""
        return " ".join(_LONG_NUMBER.sub(lambda number: f"{float(number[0]):.4g}", one) for one in self.swept)

    @property
    def identity(self) -> tuple[str, ...]:
        """What its numbers depend on."""
        return tuple(sorted(o for o in self.overrides if o in self.swept or not o.startswith(_NO_MATTER)))

    def fixed(self, swept: Collection[str]) -> set[str]:
        """Those of its arguments that all trials share and their numbers depend on, but for these keys."""
        shared = {o for o in self.overrides if o not in self.swept and not o.startswith(_NO_MATTER)}
        return {argument for argument in shared if argument.partition("=")[0] not in swept}


@dataclass
class SweepFolder:
    """The folder of a sweep with its trials; `open_sweep` makes one.

    Attributes:
        path: absolute.
        objectives: dotted keys of `result.json` to their directions, maximize or minimize.
        trials: by number.
        wandb_id: of the run at Weights & Biases that has the sweep's table.
    """

    path: Path
    objectives: dict[str, str]
    trials: dict[int, Trial] = field(default_factory=dict)
    wandb_id: str | None = None
    _numbers: dict[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the sweep, in Weights & Biases too: the last two parts of its folder, a date and a time by default."""
        return "/".join(self.path.parts[-2:])

    def place(self, trial: Trial) -> Path:
        """The folder of a trial that has one."""
        assert trial.folder is not None
        return self.path / trial.folder

    def claim(self, trial: Trial, name: str) -> Path:
        """Gives a trial that has no folder the one of this name. Raises ConfigError where that is another trial's."""
        if trial.folder not in (None, name):
            raise ConfigError(f"its folder was {trial.folder} so far, not {name}: leave hydra.sweep.subdir as it was.")
        if trial.folder is None:
            for other in self.trials.values():
                if other.folder == name:
                    raise ConfigError(
                        f"its folder {name} is that of trial {other.number}: give hydra.sweep.subdir what tells trials "
                        "apart, such as ${hydra.job.num}."
                    )
            trial.folder = name
        return self.place(trial)

    def add(self, overrides: Sequence[str], swept: Sequence[str]) -> Trial:
        """The trial with these arguments: the one of an earlier start, or a new one with the next number."""
        if not self._numbers:
            self._numbers = {trial.identity: number for number, trial in self.trials.items()}
        identity = Trial(-1, list(overrides), list(swept)).identity
        number = self._numbers.setdefault(identity, max(self.trials, default=-1) + 1)
        return self.put(number, overrides, swept)

    def put(self, number: int, overrides: Sequence[str], swept: Sequence[str]) -> Trial:
        """The trial with this number: that of an earlier start, or a new one; now with these arguments."""
        trial = self.trials.setdefault(number, Trial(number, []))
        trial.overrides, trial.swept = list(overrides), list(swept)
        return trial

    def save(self) -> None:
        """Writes `sweep.json`, which appears whole."""
        content = {
            "name": self.name,
            "objectives": self.objectives,
            "wandb_id": self.wandb_id,
            "trials": [asdict(trial) for trial in self.trials.values()],
        }
        part = self.path / "sweep.json.tmp"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path / "sweep.json")

    def result(self, trial: Trial) -> dict[str, Any]:
        """What the trial's `result.json` says; nothing where there is none."""
        path = self.path / (trial.folder or "") / "result.json"
        if trial.folder is None or not path.is_file():
            return {}
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def objective_values(self, result: Mapping[str, Any]) -> list[float] | None:
        """The objectives in a result; None where one is missing or not finite."""
        values = [_pick(result, key) for key in self.objectives]
        return [value for value in values if value is not None] if None not in values else None

    @property
    def counts(self) -> dict[str, int]:
        """How many trials there are of each status."""
        counts: dict[str, int] = {}
        for trial in self.trials.values():
            counts[trial.status] = counts.get(trial.status, 0) + 1
        return counts


@contextmanager
def open_sweep(path: Path, objectives: Mapping[str, str]) -> Iterator[SweepFolder]:
    """The sweep in a folder, with the trials of earlier starts; nobody else leads it meanwhile.

    Raises:
        ConfigError: another process leads it, or it was begun with other objectives.
    """
    path.mkdir(parents=True, exist_ok=True)
    with run_lock(path):
        sweep = SweepFolder(path.absolute(), dict(objectives))
        file = path / "sweep.json"
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["objectives"] != sweep.objectives:
                raise ConfigError(
                    f"{path} holds a sweep with other objectives ({content['objectives']}): choose another "
                    "hydra.sweep.dir, or the same hydra.sweeper.objectives."
                )
            sweep.wandb_id = content["wandb_id"]
            sweep.trials = {entry["number"]: Trial(**entry) for entry in content["trials"]}
        yield sweep


def _pick(result: Mapping[str, Any], key: str) -> float | None:
    """A number below a dotted key, such as `seconds.train`."""
    node: Any = result
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return float(node) if isinstance(node, (int, float)) and math.isfinite(node) else None
