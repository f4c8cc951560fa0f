"""The configuration in a run's folder: written at its first start, and what a resumed run starts from."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from kgexp.config import holds_run
from kgexp.errors import ConfigError

# What a resumed run may be told anew: how long, on what, what is written; never what the numbers depend on.
MAY_CHANGE = (
    "train.epochs",
    "train.steps",
    "train.threads",
    "train.device",
    "sharding.state_device",
    "checkpoint.",
    "early_stopping.",
    "tracking.",
    "storage.",
    "sharding.",  # who owns the rows, not what they are
    "dataset.path",  # moved data: the fingerprint tells whether it is the same
    "dataset.relation_weights",
    "dataset.cache",
    "evaluation.splits",
    "evaluation.every_epochs",
    "evaluation.every_steps",
    "evaluation.queries",
    "evaluation.block",
)
_WIRE = "sharding.wire_dtype"  # of what may change below `sharding.`, the one that rounds
_GLOBAL_GROUPS = ("experiment", "sweep", "local")  # their files set keys anywhere
_HEAD = "# The resolved configuration of this run, written at its first start; a resumed run starts from it.\n"


def continues(resume: str | None, folder: str) -> bool:
    """Whether this start continues the run in `folder`.

    Raises:
        ConfigError: the folder holds a run that was not asked to be continued, or another one was.
    """
    if resume not in (None, "auto") and os.path.realpath(str(resume)) != os.path.realpath(folder):
        raise ConfigError(f"resume={resume} continues a run in its own folder: leave out -m, sweep and hydra.run.dir.")
    if holds_run(folder) and resume is None:
        raise ConfigError(f"{folder} holds a run already: continue it with resume=auto, or choose another folder.")
    return holds_run(folder)


def save(config: Mapping[str, Any], folder: str) -> None:
    """Writes RUN/config.yaml; it appears whole or not at all."""
    path = Path(folder, "config.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    part.write_text(_HEAD + OmegaConf.to_yaml(OmegaConf.create(dict(config))), encoding="utf-8")
    os.replace(part, path)


def load(folder: str) -> dict[str, Any]:
    """What `save` wrote. Raises ConfigError for a file that is not a configuration."""
    path = Path(folder, "config.yaml")
    try:
        plain = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())}): restore it.") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} holds no configuration: restore it, or start a new run.")
    return {str(key): value for key, value in plain.items()}


def merge(saved: Mapping[str, Any], composed: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of a resumed run: the saved one, with those values of `composed` that were given.

    Args:
        saved: the run's configuration; plain containers.
        composed: what today's command line gives, defaults included; plain containers.
        overrides: that command line's arguments, without Hydra's own.

    Raises:
        ConfigError: an argument differs from the run's configuration and may not: names the keys.
    """
    before, now = flat(saved), flat(composed)
    changed, gone, refused = {}, [], []
    for path in given_keys(overrides):
        if path == "resume":
            continue
        everywhere = path in _GLOBAL_GROUPS
        for key in sorted(before.keys() | now.keys()):
            given = everywhere or key == path or key.startswith(f"{path}.")
            if not given or key in ("resume", "plugins"):
                continue
            same = before.get(key) == now.get(key)  # null or absent, as for another sharding
            if not key.startswith(MAY_CHANGE) or (key == _WIRE and not same):
                if not same:
                    refused.append(f"{key} ({_show(before, key)}, not {_show(now, key)})")
            elif key in now and not everywhere:
                changed[key] = now[key]
            elif not everywhere:  # of a choice that another one replaces
                gone.append(key)
    if refused:
        raise ConfigError(
            "a resumed run keeps its configuration, so these cannot change: "
            f"{', '.join(dict.fromkeys(refused))}; leave them out, or start a new run."
        )
    # Which packages are trusted is for the one who starts the run to say, not for a folder.
    merged = _tree({key: value for key, value in (before | changed).items() if key not in gone})
    return merged | {"resume": composed.get("resume"), "plugins": composed.get("plugins", [])}


def given_keys(overrides: Sequence[str]) -> list[str]:
    """The keys and groups that command-line arguments set, with dots: `["model.dim=5"]` to `["model.dim"]`."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [override.package or override.key_or_group.replace("/", ".") for override in parsed]


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys; a list, like an empty mapping, is a value."""
    out: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested dictionaries."""
    root: dict[str, Any] = {}
    for key, value in leaves.items():
        *parents, last = key.split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return root


def _show(leaves: Mapping[str, Any], key: str) -> str:
    value = leaves.get(key, "absent")
    return "null" if value is None else str(value)
