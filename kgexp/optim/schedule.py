"""Learning-rate schedules: a factor on the optimizer's learning rate for every step.

A schedule may depend on the step alone, or learn from validation through `observe`; what it has learnt is in
`state_dict`, so a resumed run goes on where it stopped.
"""

from abc import ABC, abstractmethod
from typing import Any


class Schedule(ABC):
    """The factor of the learning rate over a run.

    Attributes:
        learns: whether it needs `observe` to change anything.
    """

    learns = False

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """The factor for step `step` (from 0) of a run of `total` steps."""

    def observe(self, value: float) -> None:  # noqa: B027 - most schedules have nothing to learn
        """Tells the validation objective after an evaluation; higher is better."""

    def state_dict(self) -> dict[str, Any]:
        """What `observe` has learnt, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Takes back a `state_dict`."""


class Constant(Schedule):
    """The learning rate as it is."""

    def factor(self, step: int, total: int) -> float:
        """Always one."""
        return 1.0


class Plateau(Schedule):
    """Multiplies the factor when the validation objective has stopped improving.

    Args:
        factor: what the factor is multiplied by, in (0, 1).
        patience: evaluations without improvement that are still waited for.
        min_factor: the factor never falls below this.
    """

    learns = True

    def __init__(self, factor: float = 0.5, patience: int = 2, min_factor: float = 0.01) -> None:
        self._decay = factor
        self._patience = patience
        self._min_factor = min_factor
        self._factor = 1.0
        self._best: float | None = None
        self._waited = 0

    def factor(self, step: int, total: int) -> float:
        """What past validations have made of it."""
        return self._factor

    def observe(self, value: float) -> None:
        """See `Schedule.observe`."""
        if self._best is None or value > self._best:
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self._waited > self._patience:
            self._factor, self._waited = max(self._factor * self._decay, self._min_factor), 0

    def state_dict(self) -> dict[str, Any]:
        """See `Schedule.state_dict`."""
        return {"factor": self._factor, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Schedule.load_state_dict`."""
        self._factor, self._best, self._waited = state["factor"], state["best"], state["waited"]
