"""Numbers on the command lines of tools."""

import argparse


def number(text: str) -> int:
    """A number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def numbers(text: str) -> list[int]:
    """Several, such as 1,2,4."""
    return [number(part) for part in text.split(",")]
