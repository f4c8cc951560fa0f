"""Numbers on the command lines of tools."""

import argparse
import re

#: Units of memory.
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def number(text: str) -> int:
    """A number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def numbers(text: str) -> list[int]:
    """Several, such as 1,2,4."""
    return [number(part) for part in text.split(",")]


def memory(text: str) -> int:
    """Bytes of a size such as 8GB, 1.5TB or 512MiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text)
    units = {unit.lower(): n for unit, n in _UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 8GB or 500MB")
    return int(float(found[1]) * units[found[2].lower()])
