"""Which keys of the configuration tell the trials of a sweep apart, and how their values are shown."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kgexp.config import config_dir
from kgexp.reporting.trials import Trial
from kgexp.resume import flat

#: The value of a key that a configuration does not have, as that of another choice of its group.
ABSENT = "-"

#: What changes no number of a run, or has a column of its own.
_LEFT_OUT = ("name", "resume", "plugins", "seed", "model._target_", "dataset.cache")


def varying(trials: Sequence[Trial]) -> list[str]:
    """The keys whose values differ between the trials, in the order of their configurations, a group after the other.

    Left out are the seed and the model's class, which reports show by themselves; keys that say where a run is told of;
    and those that only follow the choice of their group, where every trial has the value of its choice's file.
    """
    configs = [trial.values_by_key for trial in trials if trial.config]
    groups = list(dict.fromkeys(key.partition(".")[0] for config in configs for key in config))
    keys = list(dict.fromkeys(key for config in configs for key in config))
    keys.sort(key=lambda key: groups.index(key.partition(".")[0]))
    found = []
    for key in keys:
        if key in _LEFT_OUT or key.startswith("tracking."):
            continue
        if len({_text(config.get(key, ABSENT)) for config in configs}) > 1 and not _follows(key, configs):
            found.append(key)
    if {"dataset.name", "dataset.path"} <= set(found):
        pairs = {(_text(config.get("dataset.name")), _text(config.get("dataset.path"))) for config in configs}
        if len(pairs) == len({name for name, _ in pairs}):
            found.remove("dataset.path")  # the name says it
    return found


def values_of(trial: Trial, keys: Sequence[str]) -> dict[str, Any]:
    """A trial's values of these keys; `ABSENT` for one that it lacks."""
    return {key: trial.values_by_key.get(key, ABSENT) for key in keys}


def identity(trial: Trial, keys: Sequence[str]) -> str:
    """Equal for trials that differ by their seeds alone; without a configuration their arguments are compared."""
    if trial.config:
        return json.dumps([trial.values_by_key.get("model._target_"), *map(_text, values_of(trial, keys).values())])
    return trial.arguments


def shown(value: Any, digits: int = 6) -> str:
    """A value for people; numbers to so many digits."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def value_of(key: str, value: Any) -> Any:
    """A key's value as a report gives it: a class by its name, else the value."""
    if key.endswith("._target_") and value != ABSENT:
        return "none" if value is None else str(value).rpartition(".")[2]
    return "null" if value is None else value


def title(key: str) -> str:
    """A key as a heading: `scoring` for the class that `scoring._target_` names."""
    return key.removesuffix("._target_")


def short_titles(keys: Sequence[str]) -> dict[str, str]:
    """The last word of each key, where no other key ends in it."""
    last = {key: title(key).rpartition(".")[2] for key in keys}
    often = Counter(last.values())
    return {key: word if often[word] == 1 else title(key) for key, word in last.items()}


def label(model: str, values: Mapping[str, Any], digits: int = 6) -> str:
    """A configuration in a line: `ComplEx dim=64 lr=0.1`."""
    names = short_titles(list(values))
    pairs = [f"{names[key]}={shown(value_of(key, value), digits)}" for key, value in values.items() if value != ABSENT]
    return " ".join([model, *pairs] if model else pairs)


def difference(trial: Trial, keys: Sequence[str]) -> str:
    """What sets a trial apart, its seed included: its values, or its arguments where it has no configuration."""
    text = label(trial.model, values_of(trial, keys)) if trial.config else trial.arguments
    return text if trial.seed is None else f"{text} seed={shown(trial.seed)}".lstrip()


def _follows(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every configuration has, of this key, what the file of its group's choice says."""
    group, _, rest = key.partition(".")
    target = f"{group}._target_"
    if not rest or key == target or len({config.get(target) for config in configs}) < 2:
        return False

    def said(target: Any) -> set[str]:
        return {_text(choice.get(rest, ABSENT)) for choice in _choices(group) if choice.get("_target_") == target}

    return all(_text(config.get(key, ABSENT)) in said(config.get(target)) for config in configs)


@cache
def _choices(group: str) -> list[dict[str, Any]]:
    """The flat values of every file of a group."""
    paths = sorted(Path(config_dir(), group).glob("*.yaml"))
    return [flat(loaded) for path in paths if isinstance(loaded := yaml.safe_load(path.read_text("utf-8")), dict)]


def _text(value: Any) -> str:
    """Equal for equal values, whatever they are."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return json.dumps(value, ensure_ascii=False, default=str)
