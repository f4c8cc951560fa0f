"""The configuration that the command line would run, for tools that take the same arguments."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from kgexp.check import check, resolved, without_leftovers
from kgexp.config import config_dir
from kgexp.resume import given_keys


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """Arguments such as `["model=distmult", "seed=1"]` to a checked configuration of plain values.

    Raises:
        ConfigError: as for a run; what Hydra refuses, Hydra raises.
    """
    with initialize_config_dir(version_base="1.3", config_dir=config_dir()):
        # A run's name is made of what Hydra's own start-up knows; nothing here is named by it.
        cfg = compose("config", overrides=["name=tool", *overrides])
    return check(without_leftovers(resolved(cfg), given_keys(overrides)))


def composed_sharded(sharding: str, overrides: Sequence[str]) -> dict[str, Any]:
    """`composed`, with this choice of sharding unless an argument makes one."""
    chosen = any(override.startswith("sharding=") for override in overrides)
    return composed(overrides if chosen else [f"sharding={sharding}", *overrides])


#: With row-wise sharding unless an argument chooses one.
composed_rowwise = partial(composed_sharded, "rowwise")


def with_choices(config: Mapping[str, Any], choices: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """A checked configuration with other choices of groups: what the files of these say, then `values` by dotted key.
    Composing it anew would take a hundred times as long.

    Raises:
        ConfigError: as for a run.
    """
    changed = dict(config)
    for group, choice in choices.items():
        changed[group] = OmegaConf.to_container(OmegaConf.load(Path(config_dir(), group, f"{choice}.yaml")))
    for key, value in values.items():
        group, _, name = key.partition(".")
        changed[group] = {**changed[group], name: value}
    return check(changed)
