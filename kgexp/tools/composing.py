"""The configuration that the command line would run, for tools that take the same arguments."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hydra import compose, initialize_config_dir

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
