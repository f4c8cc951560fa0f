"""The rules that a configuration has to keep, beyond what composing it can tell."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, get_origin

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kgexp.errors import ConfigError, meant
from kgexp.rules import RULES
from kgexp.schemas import SCHEMAS, SECTIONS, Config, known_keys, schema_of

_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": ("at least", lambda x, bound: x >= bound),
    "at_most": ("at most", lambda x, bound: x <= bound),
    "above": ("above", lambda x, bound: x > bound),
    "below": ("below", lambda x, bound: x < bound),
}
_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list[str]: "a list such as [a,b]",
    dict[str, Any]: "a mapping such as {a: 1}",
    dict[str, int]: "a mapping such as {user: 1}",
    list[float]: "a list of numbers such as [0.5,0.9]",
    int | None: "a whole number or null",
    float | None: "a number or null",
    str | None: "a text or null",
    int | str: "a whole number or auto",
}


def check(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The configuration resolved, as plain containers with the types of the schemas.

    Raises:
        ConfigError: an unknown key at any level; a value that is missing, of the wrong type, out of bounds or
            not among the choices; values that contradict each other.
    """
    plain = resolved(cfg)
    config = _section("", plain, Config, skip=(*SECTIONS, *SCHEMAS))
    for name, schema in SECTIONS.items():
        config[name] = _section(name, plain[name], schema)
    for group in SCHEMAS:
        config[group] = check_choice(group, plain[group], config["plugins"])
    for rule in RULES:
        rule(config)
    return config


def check_choice(group: str, node: Any, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """What `check` does to a group's choice: ours by its schema, another package's with whatever keys it has."""
    if not isinstance(node, Mapping):
        raise ConfigError(f"{group} is {node!r} but must be a choice of its group: {', '.join(SCHEMAS[group])}.")
    schema = schema_of(group, node.get("_target_"))
    if schema is not None:
        return _section(group, node, schema)
    target = str(node.get("_target_"))
    ours = [t for s in SCHEMAS[group].values() if (t := getattr(s, "_target_", None))]
    if not target.startswith(tuple(f"{plugin}." for plugin in plugins)):
        if target.startswith("kgexp.") or "." not in target:
            raise ConfigError(f"{group}._target_ is {target}, which kgexp does not have{meant(target, ours)}")
        package = target.partition(".")[0]
        raise ConfigError(f"{group}._target_ is {target}, of a package that is not allowed: add plugins=[{package}].")
    return dict(node)


def resolved(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as plain containers, its interpolations resolved. Raises ConfigError for `???`."""
    for key in _missing(OmegaConf.to_container(cfg) if isinstance(cfg, DictConfig) else cfg):
        raise ConfigError(f"{key} is not set: give it on the command line, as {key}=VALUE.")
    plain = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    assert isinstance(plain, Mapping)
    return {str(key): value for key, value in plain.items()}


def without_leftovers(config: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The configuration without what an experiment set for choices that the command line replaced by others.

    Args:
        config: plain containers.
        given: the keys that the command line names; they stay, for `check` to judge.
    """
    tidy = dict(config)
    for group, schemas in SCHEMAS.items():
        node = config.get(group)
        schema = schema_of(group, node.get("_target_")) if isinstance(node, Mapping) else None
        if schema is None or not isinstance(node, Mapping):
            continue
        own = {f.name for f in fields(schema)}
        others = {f.name for other in schemas.values() for f in fields(other)} - own
        tidy[group] = {key: value for key, value in node.items() if key not in others or f"{group}.{key}" in given}
    return tidy


def unknown_key(key: str) -> str:
    """The sentence about a key that the configuration does not have: what may have been meant."""
    known = dict(known_keys())
    group, _, last = key.partition(".")
    if choices := [choice for name, choice in known_keys() if name == key and choice]:
        ways = " or ".join(f"{group}={choice}" for choice in choices)
        return f"{key} belongs to {ways}, which was not chosen: choose it, or leave {key} out."
    if mappings := [name for name in _mappings() if key.startswith(f"{name}.")]:
        return f"{key} is no key of {mappings[0]} yet: write +{key}=VALUE to add it."
    if group == "hydra":
        return f"{key} is not a setting of Hydra: `python -m kgexp --cfg hydra` shows them all."
    siblings = [name.partition(".")[2] for name in known if last and name.startswith(f"{group}.")]
    close = [f"{group}.{name}" for name in get_close_matches(last, siblings, 1, 0.5)]
    close += [name for name in known if name.rpartition(".")[2] == (last or group)]
    close += [] if siblings else get_close_matches(key, list(known), 1)
    hint = f"did you mean {close[0]}?" if close else "`python -m kgexp --cfg job` shows all keys."
    return f"{key} is not a key of the configuration: {hint}"


def _mappings() -> Iterator[str]:
    """The keys of groups that hold mappings, with keys as they come."""
    for group, schemas in SCHEMAS.items():
        for schema in schemas.values():
            yield from (f"{group}.{f.name}" for f in fields(schema) if get_origin(f.type) is dict)


def wrong_type(key: str, value: Any, spec: Field[Any] | None) -> str:
    """The sentence about a value that its key cannot hold."""
    kind = _KINDS.get(spec.type if spec else None, f"a mapping: set its keys, as in {key}.KEY=VALUE")
    return f"{key} is {_shown(value)} but must be {kind}."


def field_of(key: str) -> Field[Any] | None:
    """The schema's field of a key outside the groups."""
    section, _, last = key.rpartition(".")
    schema = SECTIONS.get(section, Config)
    return next((f for f in fields(schema) if f.name == (last or key)), None)


def _missing(node: Any, prefix: str = "") -> Iterator[str]:
    """The keys whose value is still `???`."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _missing(value, f"{prefix}.{key}" if prefix else str(key))
    elif node == "???":
        yield prefix


def _section(prefix: str, node: Any, schema: type, skip: Sequence[str] = ()) -> dict[str, Any]:
    """Keys, types and bounds of one mapping by its schema; fields in `skip` only have to be there."""
    if not isinstance(node, Mapping):
        raise ConfigError(f"{prefix} is {node!r} but must hold keys: set one of them, such as {prefix}.KEY=VALUE.")
    dotted = f"{prefix}." if prefix else ""
    names = [f.name for f in fields(schema)]
    for key in node:
        if key not in names:
            raise ConfigError(unknown_key(f"{dotted}{key}"))
    for name in names:
        if name not in node:
            raise ConfigError(f"{dotted}{name} is missing: it was deleted, or a file of its group lacks it; set it.")
    typed = _typed(schema)
    return {f.name: _value(dotted + f.name, node[f.name], typed, f) for f in fields(schema) if f.name not in skip}


@cache
def _typed(schema: type) -> DictConfig:
    """A node that converts values to the schema's types, one at a time: what it holds is of no interest. It is kept,
    because to make one takes longer than all else here."""
    typed: DictConfig = OmegaConf.structured(schema)
    return typed


def _value(key: str, given: Any, typed: DictConfig, spec: Field[Any]) -> Any:
    """One value with the type of its field in the structured node `typed`, within its bounds and choices."""
    try:
        typed[spec.name] = given
    except OmegaConfBaseException:
        raise ConfigError(wrong_type(key, given, spec)) from None
    value = typed[spec.name]
    if isinstance(value, (ListConfig, DictConfig)):
        value = OmegaConf.to_container(value)
    choices = spec.metadata.get("choices", ())
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]:
        if isinstance(item, str) and choices and item not in choices:
            if spec.type == int | str:
                raise ConfigError(wrong_type(key, given, spec))
            words = f"must be {' or '.join(choices)}{' or null' if spec.type == str | None else ''}"
            raise ConfigError(f"{key} is {_shown(item)} but {words}{meant(item, choices)}")
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            if not math.isfinite(item):
                raise ConfigError(f"{key} is {item} but must be a finite number.")
            for bound, (words, holds) in _BOUNDS.items():
                limit = spec.metadata.get(bound)
                if limit is not None and not holds(item, limit):
                    raise ConfigError(f"{key} is {item} but must be {words} {limit}.")
    return value


def _shown(value: Any) -> str:
    return "null" if value is None else str(value) or "empty"
