"""The settings of a benchmark: values separated by commas make a grid, as in sweeps; each has a process of its own."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from kgexp.errors import ConfigError, KgexpError
from kgexp.sweep.arguments import combinations
from kgexp.tools.measuring import apart, measured

#: The figures of every setting, by its name.
Settings = dict[str, dict[str, Any]]

#: From arguments of a run to its configuration.
Compose = Callable[[Sequence[str]], dict[str, Any]]


def settings(arguments: Sequence[str], compose: Compose) -> dict[str, dict[str, Any]]:
    """The configurations of a grid by their names: the arguments that tell them apart.

    Raises:
        ConfigError: an argument has an interval of values, or a configuration cannot be run.
    """
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ConfigError(
                f"a benchmark cannot try all {override.input_line}: list values, as in model.dim=100,200."
            )
    return {", ".join(own) or "as given": compose(given) for given, own in combinations(overrides)}


def over_grid(*workers: str, compose: Compose) -> Callable[[Sequence[str]], Settings]:
    """The suite that has each rank of every setting call the functions with these paths, one after the other.

    Of what they leave, the figures of a setting; where they leave `cases`, each of these is a setting.
    """
    return partial(_measure, workers, compose)


def _measure(workers: Sequence[str], compose: Compose, arguments: Sequence[str]) -> Settings:
    return measure(settings(arguments, compose), *workers)


def measure(configs: Mapping[str, dict[str, Any]], *workers: str) -> Settings:
    """The figures of configurations by name: see `over_grid`. Of one that fails, `error` is the sentence; where all do,
    the last one's is raised."""
    found: Settings = {}
    for name, config in configs.items():
        figures: dict[str, Any] = {}
        try:
            for worker in workers:
                figures |= apart(measured, config, worker)
        except KgexpError as error:
            figures = {"error": str(error)}
            if name == list(configs)[-1] and all("error" in others for others in found.values()):
                raise
        for case, own in figures.pop("cases", {"": {}}).items():
            label = ", ".join(part for part in (name if len(configs) > 1 or not case else "", case) if part)
            found[label] = figures | own
    return found
