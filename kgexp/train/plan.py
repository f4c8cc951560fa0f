"""How long a run is, and what happens along the way."""

from dataclasses import dataclass

from kgexp.train.calendar import Calendar


@dataclass(frozen=True)
class Cadence:
    """Something that happens every so many epochs, every so many steps, or both; 0 is never."""

    epochs: int
    steps: int

    def due(self, step: int, calendar: Calendar) -> bool:
        """Whether it happens after `step` steps."""
        finished = calendar.finished(step) if self.epochs > 0 else None
        by_epoch = finished is not None and finished % self.epochs == 0
        return step > 0 and (by_epoch or (self.steps > 0 and step % self.steps == 0))

    def last(self, step: int, calendar: Calendar) -> int:
        """The last step up to `step` after which it happens; 0 where there is none."""
        by_epoch = calendar.steps(int(calendar.epoch(step)) // self.epochs * self.epochs) if self.epochs else 0
        return max(by_epoch, step // self.steps * self.steps if self.steps else 0)


@dataclass(frozen=True)
class Plan:
    """The length of a run in steps, and when it evaluates, saves and logs.

    Attributes:
        total: steps in all.
        evaluate: when the validation split is ranked; it always is after the last step.
        checkpoint: when a checkpoint is written; it always is after the last step and when validation improved.
        snapshot: when a checkpoint is written that is never removed.
        log_steps: a row of training metrics every so many steps.
    """

    total: int
    evaluate: Cadence
    checkpoint: Cadence
    snapshot: Cadence
    log_steps: int
