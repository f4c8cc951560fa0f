"""How long a run is, and what happens along the way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgexp.train.calendar import Calendar


@dataclass(frozen=True)
class Cadence:
    """Something that happens every so many epochs, every so many steps, or both; 0 is never."""

    epochs: int
    steps: int

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> "Cadence":
        """What a section of the configuration says in `every_epochs` and `every_steps`."""
        return cls(section["every_epochs"], section["every_steps"])

    def due(self, step: int, calendar: Calendar) -> bool:
        """Whether it happens after `step` steps."""
        finished = calendar.finished(step) if self.epochs > 0 else None
        by_epoch = finished is not None and finished % self.epochs == 0
        return step > 0 and (by_epoch or (self.steps > 0 and step % self.steps == 0))

    def last(self, step: int, calendar: Calendar) -> int:
        """The last step up to `step` after which it happens; 0 where there is none."""
        by_epoch = calendar.steps(int(calendar.epoch(step)) // self.epochs * self.epochs) if self.epochs else 0
        return max(by_epoch, step // self.steps * self.steps if self.steps else 0)

    def count(self, total: int, calendar: Calendar) -> int:
        """How often it happens in `total` steps."""
        over = int(calendar.epoch(total)) if self.epochs else 0
        ends = [calendar.steps(epoch) for epoch in range(self.epochs, over + 1, self.epochs)] if self.epochs else []
        if not self.steps:
            return len(ends)
        return total // self.steps + sum(end % self.steps != 0 for end in ends)


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

    @classmethod
    def of(cls, config: Mapping[str, Any], calendar: Calendar) -> "Plan":
        """What the configuration says, with the calendar of its batches."""
        train = config["train"]
        return cls(
            total=calendar.steps(train["epochs"]) if train["steps"] is None else train["steps"],
            evaluate=Cadence.of(config["evaluation"]),
            checkpoint=Cadence.of(config["checkpoint"]),
            snapshot=Cadence(config["checkpoint"]["snapshot_epochs"], 0),
            log_steps=config["tracking"]["every_steps"],
        )

    def evaluations(self, calendar: Calendar) -> int:
        """How often the validation split is ranked where that is wanted, unless patience runs out."""
        return self.evaluate.count(self.total, calendar) + (not self.evaluate.due(self.total, calendar))
