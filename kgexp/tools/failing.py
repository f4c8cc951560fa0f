"""How a tool ends that cannot do what it was asked."""

import sys

from kgexp.errors import KgexpError
from kgexp.explain import explain


def failed(error: Exception, *expected: type[Exception]) -> int:
    """Prints the sentence about an error; returns the exit code.

    Args:
        error: what was raised.
        expected: classes that people can cause and mend beside `KgexpError`.

    Raises:
        Exception: the error itself, for its traceback, where it is a fault of the program.
    """
    sentence, code = explain(error)
    print(f"error: {sentence}", file=sys.stderr)
    if not isinstance(error, (KgexpError, *expected)) and code == 1:
        raise error
    return code
