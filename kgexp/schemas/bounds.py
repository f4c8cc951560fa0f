"""How a schema says what a key may hold, beyond its type."""

from dataclasses import field
from typing import Any

from omegaconf import MISSING


def number(**bounds: float) -> Any:
    """A field for a number, with bounds out of `at_least`, `at_most`, `above` and `below`."""
    return field(default=MISSING, metadata=bounds)


def one_of(*choices: str) -> Any:
    """A field for one of some words, or for a list of them."""
    return field(default=MISSING, metadata={"choices": choices})
