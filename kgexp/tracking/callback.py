"""Progress for work that reports `(done, total)` from inside, such as a ranking."""

from kgexp.tracking.progress import Progress


class ProgressCallback:
    """Opens a progress with the first report, closes it with the last.

    Args:
        mode: see `Progress`.
        unit: what is counted, in the plural.
        description: what goes first.
    """

    def __init__(self, mode: str, unit: str, description: str) -> None:
        self._mode, self._unit, self._description = mode, unit, description
        self._progress: Progress | None = None
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` units are done."""
        if self._progress is None:
            self._progress = Progress(self._mode, total, self._unit, self._description)
            self._done = 0
        self._progress.advance(done - self._done)
        self._done = done
        if done >= total:
            self.close()

    def close(self) -> None:
        """Takes the progress away, where the work ended early."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
