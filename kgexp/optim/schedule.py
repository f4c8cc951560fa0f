"""Learning-rate schedules: a factor on the optimizer's learning rate for every step.

A schedule may depend on the step alone, or learn from validation through `observe`; what it has learnt is in
`state_dict`, so a resumed run goes on where it stopped.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Schedule(ABC):
    """The factor of the learning rate over a run: a decay, after a linear warm-up.

    Args:
        warmup: steps over which the factor first rises: step i has (i + 1) / warmup times its decay; 0 for none.

    Attributes:
        learns: whether it needs `observe` to change anything.
    """

    learns = False

    def __init__(self, warmup: int = 0) -> None:
        self._warmup = warmup

    def factor(self, step: int, total: int) -> float:
        """The factor for step `step` (from 0) of a run of `total` steps."""
        rise = (step + 1) / self._warmup if step < self._warmup else 1.0
        return rise * self.decay(step, total)

    @abstractmethod
    def decay(self, step: int, total: int) -> float:
        """The factor without the warm-up."""

    def observe(self, value: float) -> None:  # noqa: B027 - most schedules have nothing to learn
        """Tells the validation objective after an evaluation; higher is better."""

    def state_dict(self) -> dict[str, Any]:
        """What `observe` has learnt, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Takes back a `state_dict`."""


class Constant(Schedule):
    """The learning rate as it is."""

    def decay(self, step: int, total: int) -> float:
        """Always one."""
        return 1.0


class Cosine(Schedule):
    """Half a period of a cosine from one, after the warm-up, down to `min_factor` as the run ends (Loshchilov and
    Hutter, ICLR 2017, equation 5, without restarts).

    A resumed run that is made longer goes on along the longer curve; what it has trained stays.

    Args:
        min_factor: the factor at the end.
        warmup: see `Schedule`.
    """

    def __init__(self, min_factor: float = 0.0, warmup: int = 0) -> None:
        super().__init__(warmup)
        self._min_factor = min_factor

    def decay(self, step: int, total: int) -> float:
        """See `Schedule.decay`."""
        done = max(step - self._warmup, 0) / max(total - self._warmup, 1)
        return self._min_factor + (1 - self._min_factor) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


class Step(Schedule):
    """Multiplies the factor at given fractions of the run; the code of RotatE (Sun et al., ICLR 2019) divides by ten
    at half of the steps.

    A resumed run that is made longer takes the fractions of the longer run; what it has trained stays.

    Args:
        factor: what the factor is multiplied by, in (0, 1).
        at: fractions of all steps, in (0, 1), each of which multiplies once.
        warmup: see `Schedule`.
    """

    def __init__(self, factor: float = 0.1, at: Sequence[float] = (0.5,), warmup: int = 0) -> None:
        super().__init__(warmup)
        self._decay = factor
        self._at = tuple(at)

    def decay(self, step: int, total: int) -> float:
        """See `Schedule.decay`."""
        return self._decay ** sum(step >= round(fraction * total) for fraction in self._at)


class Plateau(Schedule):
    """Multiplies the factor when the validation objective has stopped improving.

    Args:
        factor: what the factor is multiplied by, in (0, 1).
        patience: evaluations without improvement that are still waited for.
        min_factor: the factor never falls below this.
        warmup: see `Schedule`.
    """

    learns = True

    def __init__(self, factor: float = 0.5, patience: int = 2, min_factor: float = 0.01, warmup: int = 0) -> None:
        super().__init__(warmup)
        self._decay = factor
        self._patience = patience
        self._min_factor = min_factor
        self._factor = 1.0
        self._best: float | None = None
        self._waited = 0

    def decay(self, step: int, total: int) -> float:
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
