"""Errors for people: each says what was wrong, where, and what to do, in one sentence.

The command line prints the message alone and exits with `exit_code`; a traceback is shown on request
(`KGEXP_TRACEBACK=1`).
"""

from collections.abc import Iterable
from difflib import get_close_matches


class KgexpError(Exception):
    """Base of every error that a user can cause and mend."""

    exit_code = 2


class ConfigError(KgexpError):
    """A configuration that cannot be run: unknown key, wrong value, contradiction."""


class DataError(KgexpError):
    """A file of triples that cannot be read, with the file and the line."""


class CheckpointError(KgexpError):
    """A checkpoint that is missing, damaged or made for something else."""


class NonFiniteError(KgexpError):
    """A loss, a row or a score that is NaN or infinite: the run's numbers can no longer be trusted."""

    exit_code = 3


class RankError(KgexpError):
    """A rank of the job died, or did not come where the others wait for it."""

    exit_code = 1


class GivenUpError(RankError):
    """The others have gone on without this rank, which was silent for too long."""


class SweepError(KgexpError):
    """Trials of a sweep failed; the others have been run."""

    exit_code = 4


def sentence(error: BaseException) -> str:
    """What `result.json` says about a failure."""
    return str(error) if isinstance(error, KgexpError) else f"{type(error).__name__}: {error}"


def meant(word: str, words: Iterable[str]) -> str:
    """The end of a sentence about a word that is none of `words`."""
    close = get_close_matches(word, list(words), 1)
    return f"; did you mean {close[0]}?" if close else "."
