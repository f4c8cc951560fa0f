"""Which steps make up an epoch."""

from typing import Protocol


class Calendar(Protocol):
    """The steps of a run, counted from 0 over all epochs."""

    def steps(self, epochs: int) -> int:
        """Steps of the first so many epochs together."""

    def epoch(self, step: int) -> float:
        """Epochs that are over after `step` steps, the running one as a fraction."""

    def finished(self, step: int) -> int | None:
        """How many epochs are over where the last of `step` steps ended one; None where it did not."""


class Regular(Calendar):
    """Every epoch has `length` steps."""

    def __init__(self, length: int) -> None:
        self._length = length

    def steps(self, epochs: int) -> int:
        """See `Calendar.steps`."""
        return epochs * self._length

    def epoch(self, step: int) -> float:
        """See `Calendar.epoch`."""
        return step / self._length

    def finished(self, step: int) -> int | None:
        """See `Calendar.finished`."""
        return step // self._length if step % self._length == 0 else None
