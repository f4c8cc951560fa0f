"""From `_target_` in a configuration to an object: the only place that does it, behind an allow-list."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import hydra.utils

from kgexp.errors import ConfigError

ALLOWED = ("kgexp",)


def build(node: Mapping[str, Any] | None, *, plugins: Sequence[str] = (), **extra: Any) -> Any:
    """The object that a group's choice describes.

    Args:
        node: the class's dotted name under `_target_` and its arguments; nested mappings stay mappings.
        plugins: packages beside kgexp whose classes may be built.
        extra: further arguments, from code.

    Returns:
        the object, or None where node or `_target_` is null.

    Raises:
        ConfigError: a target outside the allowed packages, one that is not there, or arguments that it does
            not take. What the constructor itself raises comes through.
    """
    if node is None or node.get("_target_") is None:
        return None
    path = str(node["_target_"])
    target = _locate(path, (*ALLOWED, *plugins))
    arguments = {key: value for key, value in node.items() if key != "_target_"} | extra
    try:
        inspect.signature(target).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{path} cannot be built from its configuration: {error}; see its signature.") from error
    return target(**arguments)


def _locate(path: str, allowed: Sequence[str]) -> Any:
    """The class or function called `path`; its own module counts, not the one it can be reached through."""
    if not _inside(path, allowed):
        raise ConfigError(
            f"{path} may not be built from a configuration: allow its package with "
            f"plugins=[{path.partition('.')[0]}] if you trust it."
        )
    try:
        target = hydra.utils.get_object(path)
    except Exception as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{path} cannot be imported: {' '.join(str(cause).split())}") from error
    home = str(getattr(target, "__module__", ""))
    if not callable(target) or not _inside(f"{home}.", allowed):
        raise ConfigError(f"{path} is not a class of {' or '.join(allowed)} and may not be built.")
    return target


def _inside(path: str, packages: Sequence[str]) -> bool:
    return path.startswith(tuple(f"{package}." for package in packages))
