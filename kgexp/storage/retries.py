"""Requests that are made again: which troubles of a network pass, after what pauses, and what to do about others."""

import errno
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")

#: Seconds before the second try, doubled before each one after it, and the most of them.
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

_ABSENT_OR_REFUSED = (FileNotFoundError, FileExistsError, PermissionError)
#: Troubles that pass, by the names that the standard library, botocore, aiohttp and requests give them.
_PASSING = {
    "TimeoutError",
    "ConnectionError",
    "ClientConnectionError",
    "ClientPayloadError",
    "IncompleteRead",
    "IncompleteReadError",
    "Timeout",
    "ChunkedEncodingError",
    "TransportError",
}
_PASSING_NUMBERS = {errno.EBUSY, errno.EREMOTEIO, errno.EAGAIN, errno.ENETUNREACH, errno.EHOSTUNREACH}
#: HTTP: time-out, a conditional write that met another one, too many requests; 500 and more besides.
_PASSING_STATUS = {408, 409, 429}


def tried(request: Callable[[], T], retries: int, about: str) -> T:
    """What the request gives, after as many tries as it takes, `1 + retries` at most; raises what the last one did.

    Args:
        request: may be made twice.
        about: what it is about. Processes that were stopped together wait for different times where this differs.
    """
    pause, left = _PAUSE, retries
    while True:
        try:
            return request()
        except Exception as error:
            if not left or not passes(error) or _client_tried(error):
                raise
        spread = zlib.crc32(f"{os.getpid()} {about} {left}".encode()) / 2**32
        time.sleep(pause * (0.5 + spread / 2))
        pause, left = min(2 * pause, _LONGEST_PAUSE), left - 1


def passes(error: Exception) -> bool:
    """Whether the same request may succeed later: time-outs, broken connections, 5xx, throttling."""
    for cause in _chain(error):
        if isinstance(cause, _ABSENT_OR_REFUSED):
            return False
        status = _status(cause)
        if status is not None:
            return status in _PASSING_STATUS or status >= 500
    kinds = {kind.__name__ for cause in _chain(error) for kind in type(cause).__mro__}
    numbers = {getattr(cause, "errno", None) for cause in _chain(error)}
    return bool(kinds & _PASSING or numbers & _PASSING_NUMBERS)


def taken(error: Exception) -> bool:
    """Whether a conditional write found the name taken."""
    return isinstance(error, FileExistsError) or any(_status(cause) == 412 for cause in _chain(error))


def explained(error: Exception) -> str:
    """The end of a sentence about a request that failed: what was said, and what to do."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if _refused(error):
        remedy = (
            "give credentials that may do it in the environment, such as AWS_PROFILE, AWS_ACCESS_KEY_ID with "
            "AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        )
    elif passes(error):
        remedy = "check the address and the network, and resume the run once the server is well"
    else:
        remedy = "check storage.url and storage.options"
    return f"({said}): {remedy}."


def _refused(error: Exception) -> bool:
    """Whether the store does not let us in."""
    return any(
        isinstance(cause, PermissionError)
        or _status(cause) in (401, 403)
        or "Credentials" in type(cause).__name__
        or "Forbidden" in str(cause)  # all that gcsfs says
        for cause in _chain(error)
    )


def _client_tried(error: Exception) -> bool:
    """Whether the client of S3 gave up only after tries of its own, which it makes for all but conflicts."""
    return any(type(cause).__module__.startswith("botocore.") and _status(cause) != 409 for cause in _chain(error))


def _status(error: BaseException) -> int | None:
    """The HTTP status that botocore, gcsfs or aiohttp got."""
    response = getattr(error, "response", None)
    meta = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
    for status in (meta.get("HTTPStatusCode"), getattr(error, "code", None), getattr(error, "status", None)):
        if str(status).isdecimal():
            return int(str(status))
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then what it came from."""
    while error is not None:
        yield error
        error = error.__cause__
