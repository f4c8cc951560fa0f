"""Command lines of sweeps, made fit for how Hydra reads them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from kgexp.config import config_dir
from kgexp.schemas import SCHEMAS

_FLAGS = {"-m", "--multirun"}


def settled(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra has to have them: `-m` before all others, keys of swept groups as values to choose from.

    `-m model=transe,rotate model.norm=l1` makes sense for each of the runs, but Hydra composes the sweep as a whole
    first, without what is swept: with the default model, which may not have the key. A value to choose from, if only
    from one, waits until a run is composed.
    """
    given = sorted(arguments, key=lambda argument: argument not in _FLAGS)
    if not _FLAGS & set(given) and not any(argument.startswith("sweep=") for argument in given):
        return given
    parsed = {place: override for place, argument in enumerate(given) if (override := _parsed(argument)) is not None}
    groups = {o.key_or_group for o in parsed.values() if o.is_sweep_override()} | _of_files(parsed.values())
    for place, override in parsed.items():
        group, dot, _ = override.key_or_group.partition(".")
        value = None if override.is_sweep_override() else override.value()  # nor can null be chosen among values
        plain = value is not None and override.get_key_element() == override.key_or_group
        if dot and plain and group in groups & SCHEMAS.keys():
            given[place] = f"{override.key_or_group}=choice({override.get_value_element_as_str()})"
    return given


def chosen_among(override: Override) -> int:
    """How many values an argument has to choose from; 1 where it is not swept."""
    return sum(1 for _ in override.sweep_string_iterator()) if override.is_discrete_sweep() else 1


def combinations(overrides: Sequence[Override]) -> list[tuple[list[str], list[str]]]:
    """Every combination of the swept values, the last key's values changing first: its arguments, and those of them
    that tell it from the others. An interval cannot be swept so: whoever may be given one looks first."""
    swept = {override.get_key_element() for override in overrides if chosen_among(override) > 1}
    [every] = BasicSweeper.split_arguments(list(overrides), None)
    return [(given, [argument for argument in given if argument.partition("=")[0] in swept]) for given in every]


def _parsed(argument: str) -> Override | None:
    """An argument as Hydra reads it; None for a flag, and for what Hydra will refuse."""
    if argument.startswith("-") or "=" not in argument:
        return None
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def _of_files(overrides: Iterable[Override]) -> set[str]:
    """What the chosen file of `conf/sweep` sweeps over."""
    swept: set[str] = set()
    for override in overrides:
        file = Path(config_dir(), "sweep", f"{override.get_value_string()}.yaml")
        if override.key_or_group == "sweep" and file.is_file():
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
            swept |= set(((content.get("hydra") or {}).get("sweeper") or {}).get("params") or {})
    return swept
