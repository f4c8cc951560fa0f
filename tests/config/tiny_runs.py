"""Whole runs in this process on a graph of twelve entities, and all that can be told of them afterwards."""

import contextlib
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rank_threads import as_ranks

from kgexp import environment
from kgexp.check import check
from kgexp.checkpoint.checkpoint import Checkpoint
from kgexp.config import config_dir
from kgexp.errors import KgexpError
from kgexp.models.complex import ComplEx
from kgexp.run import run
from kgexp.schemas import SCHEMAS
from kgexp.sharding import distributed, partitioned
from kgexp.sharding.groups import gloo_group
from kgexp.sharding.locks import Locks

#: What makes a run small and quiet; `{home}` is the folder of its files.
SMALL = {
    "model.dim": 8,
    "model.init_scale": 0.5,
    "train.batch_size": 7,
    "train.steps": 4,
    "train.threads": 1,
    "train.device": "cpu",
    "tracking.mode": "disabled",
    "tracking.progress": "none",
    "tracking.every_steps": 1,
    "dataset.path": "{graphs}/ring",
    "dataset.cache": "{graphs}/cache",
}
#: Facts of `result.json` that are the same in every repetition.
STABLE = ("status", "seed", "step", "best_step", "objective_name", "threads", "ranks", "memory_estimate", "data")
#: What tells the files of rows of several processes apart.
_RANDOM = re.compile(r"-[0-9a-f]{8}(?=\.safetensors)")
WANDB = ("mode", "project", "entity", "group", "name", "tags", "notes")


class Mine(ComplEx):
    """A model of another package."""


@cache
def _text(group: str, choice: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(Path(config_dir(), group, f"{choice}.yaml")))


def choice_node(group: str, choice: str) -> dict[str, Any]:
    """What the file of a choice holds, interpolations as they stand there."""
    return deepcopy(_text(group, choice))


def write_graphs(folder: Path) -> None:
    """A graph in three files, the same triples in one, one without a validation split, and weights of relations;
    and a graph of two types, which a file says."""
    lines = [f"e{h}\tr{k}\te{(h * (k + 2) + k) % 12}\n" for h in range(12) for k in range(3)]
    parts = {"train": lines[::4] + lines[1::4], "valid": lines[2::4], "test": lines[3::4]}
    for name, splits in (("ring", parts), ("alone", {"train": lines})):
        (folder / name).mkdir()
        for split, part in splits.items():
            (folder / name / f"{split}.txt").write_text("".join(part))
    (folder / "whole.tsv").write_text("".join(lines))
    (folder / "weights.tsv").write_text("r1\t3\n")
    (folder / "typed").mkdir()
    typed = [f"u{h}\tlikes\ti{(h * k + k) % 5}\n" for h in range(8) for k in range(1, 4)]
    typed += [f"i{i}\tlike\ti{(i + 2) % 5}\n" for i in range(5)]
    for split, part in (("train", typed[::2] + typed[1::4]), ("valid", typed[3::8]), ("test", typed[7::8])):
        (folder / "typed" / f"{split}.txt").write_text("".join(part))
    (folder / "types.tsv").write_text("likes\tuser\titem\nlike\titem\titem\n")


class Runs:
    """Runs configurations that differ from the defaults in a few settings, each of them once.

    Args:
        defaults: the composed configuration as plain containers, interpolations unresolved.
        home: an empty folder.
    """

    def __init__(self, defaults: dict[str, Any], home: Path) -> None:
        self._defaults, self._home = defaults, home
        self._known: dict[str, dict[str, Any]] = {}
        write_graphs(home)

    def __call__(self, settings: Mapping[str, Any], first: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a run did, by kind of trace; only `refusal` where it was refused.

        Args:
            settings: values of dotted keys, and choices of groups, on top of `SMALL`.
            first: the settings of a run that goes before it in the same folder.
        """
        name = json.dumps([settings, first])
        if name not in self._known:
            folder = self._home / f"run-{len(self._known)}"
            folder.mkdir()
            if first is not None:
                self._run(first, folder)
            self._known[name] = self._run(settings, folder)
        return self._known[name]

    def _run(self, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        spoken, spied = io.StringIO(), []
        with (
            _watched(spied) as (started, waits),
            contextlib.redirect_stdout(spoken),
            contextlib.redirect_stderr(spoken),
        ):
            try:
                config = check(OmegaConf.create(self._plain(settings, folder)))
                ranks = config["sharding"].get("ranks", 1)
                as_ranks(2 if ranks == "auto" else ranks, lambda world: run(config, str(folder), world))
            except KgexpError as error:
                return {"refusal": str(error)}
        return _traces(folder) | {
            "printed": spoken.getvalue().replace(str(folder), ""),
            "work": sorted(set(spied)),
            "waits": sorted(waits),
            "wandb": [{key: options[key] for key in WANDB} for options in started],
        }

    def value(self, settings: Mapping[str, Any], key: str) -> Any:
        """The value of a dotted key in a run with these settings."""
        node = self._plain(settings, self._home)
        for part in key.split("."):
            node = node[part]
        return node

    def _plain(self, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """The configuration, interpolations unresolved."""
        plain = deepcopy(self._defaults)
        for group in SCHEMAS.keys() & settings.keys():
            plain[group] = choice_node(group, settings[group])
        for key, value in (SMALL | settings).items():
            if key not in SCHEMAS:
                *parents, last = key.split(".")
                node = plain
                for parent in parents:
                    node = node[parent]
                node[last] = value.format(home=folder, graphs=self._home) if isinstance(value, str) else value
        return plain


def _traces(folder: Path) -> dict[str, Any]:
    """What the run's folder tells."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    tables = hashlib.sha256()
    checkpoints = folder / "checkpoints"
    for name in sorted(Checkpoint(max(checkpoints.glob("step_*"))).files):
        if name.endswith(".safetensors"):
            tables.update((checkpoints / name).read_bytes())
    return {
        "tables": tables.hexdigest(),
        "losses": [row["train/loss"] for row in rows if "train/loss" in row],
        "metrics": result["metrics"],
        "rows": [(row["step"], sorted(row)) for row in rows],
        "files": sorted(_RANDOM.sub("", str(path.relative_to(folder))) for path in folder.rglob("*")),
        "result": {key: result.get(key) for key in STABLE},
    }


@contextlib.contextmanager
def _watched(spied: list[tuple[Any, ...]]) -> Iterator[tuple[list[dict[str, Any]], list[float]]]:
    """Without waiting for disks and git, no GPU, a stand-in for wandb whose calls are yielded, and so are the seconds
    that ranks wait for each other; `spied` takes the shapes that ComplEx scores."""
    started: list[dict[str, Any]] = []
    waits: list[float] = []
    wandb = SimpleNamespace(id="0", define_metric=_nothing, log=_nothing, finish=_nothing, summary={})
    threads, score = torch.get_num_threads(), ComplEx.score

    def group(*arguments: Any) -> Any:
        waits.append(arguments[4])
        return gloo_group(*arguments)

    def locks(*arguments: Any) -> Locks:
        waits.append(arguments[3])
        return Locks(*arguments)

    def spy(model: ComplEx, queries: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        spied.append((*queries.shape, *candidates.shape))
        return score(model, queries, candidates)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _nothing)
        patch.setattr(environment, "git_commit", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: (started.append(options), wandb)[1]))
        patch.setattr(ComplEx, "score", spy)
        patch.setattr(distributed, "gloo_group", group)
        patch.setattr(partitioned, "gloo_group", group)
        patch.setattr(partitioned, "Locks", locks)
        yield started, waits
    torch.set_num_threads(threads)


def _nothing(*args: Any, **options: Any) -> None:
    pass
