"""One sentence for people out of any exception that reaches the command line."""

import re
import traceback
from collections.abc import Iterator
from difflib import get_close_matches

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from kgexp.check import field_of, unknown_key, wrong_type
from kgexp.errors import ConfigError, KgexpError

_COMPOSING = (HydraException, OmegaConfBaseException, MissingConfigException, yaml.YAMLError)


def explain(error: BaseException) -> tuple[str, int]:
    """The sentence about `error` and the exit code: the error's own for ours, 2 for what Hydra or OmegaConf
    refused, 1 for anything else."""
    for cause in causes(error):
        if isinstance(cause, KgexpError):
            return str(cause), cause.exit_code
    if isinstance(error, _COMPOSING):
        return _composing(error), ConfigError.exit_code
    text = _one_line(str(error))
    if isinstance(error, ValueError) and _raised_by(error, "hydra"):
        return _composing(error), ConfigError.exit_code
    return f"{type(error).__name__}{': ' if text else ''}{text}", 1


def _composing(error: Exception) -> str:
    """What was wrong with the arguments or the files."""
    if isinstance(error, MissingConfigException):
        return _missing_file(error)
    if isinstance(error, OverrideParseException):
        return (
            f"the argument {error.override} cannot be read: write KEY=VALUE or GROUP=CHOICE, and put quotes "
            "around a value with spaces, commas, brackets or =, as in 'name=\"a b\"'."
        )
    for cause in causes(error):
        if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.full_key:
            return unknown_key(cause.full_key)
        if isinstance(cause, InterpolationResolutionError) and cause.full_key:
            where = f"while composing {cause.full_key}: correct its ${{…}}"
            return f"{_one_line(str(cause))}, {where}, or set what it names."
        if isinstance(cause, ValidationError) and cause.full_key:
            return wrong_type(cause.full_key, cause.value, field_of(cause.full_key))
    text = str(error)
    if match := re.match(r"Ambiguous value for argument '(([^=]+)=(.*))'", text):
        return (
            f"{match[1]} names several values: add -m to run once for each of them, or write "
            f"'{match[2]}=[{match[3]}]' for a list."
        )
    if match := re.match(r"Multiple values for (\S+)\.", text):
        return f"{match[1]} is chosen twice: write {match[1]}=CHOICE, without a plus sign."
    if text.startswith("Config group override must be"):
        return "an argument gives its group no name to choose by: write GROUP=CHOICE, never null or a number."
    return _one_line(text)


def _missing_file(error: MissingConfigException) -> str:
    """A choice that its group does not have."""
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    if not group:
        return f"there is no configuration file {choice}: leave out --config-name, or add --config-dir."
    options = [] if error.options is None else list(error.options)
    if not options:
        return f"there is no {group}={choice}, nor any other choice of {group}."
    close = get_close_matches(choice, options, 1)
    hint = f"; did you mean {close[0]}?" if close else "."
    return f"there is no {group}={choice}: the choices are {', '.join(options)}{hint}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, then what it came from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _raised_by(error: BaseException, package: str) -> bool:
    """Whether the frame that raised `error` is the package's."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).split(".")[0] == package


def _one_line(text: str) -> str:
    """Without line breaks, and without OmegaConf's notes on where in its tree the trouble was."""
    notes = re.compile(r"\s*(full_key|object_type|reference_type|See https?:).*")
    return " ".join(" ".join(line.split()) for line in text.splitlines() if line.strip() and not notes.match(line))
