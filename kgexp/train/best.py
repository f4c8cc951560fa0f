"""Which evaluation was the best so far, and whether to go on hoping."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Best:
    """Keeps the best validation value and counts the evaluations since.

    Attributes:
        patience: evaluations without improvement after which training stops; None never stops.
        min_delta: what counts as an improvement must be larger than the best by more than this.
    """

    patience: int | None
    min_delta: float = 0.0
    value: float | None = None
    step: int | None = None
    waited: int = 0

    def update(self, step: int, value: float) -> bool:
        """Takes the value of an evaluation (higher is better); True when it is the best so far."""
        if self.value is None or value > self.value + self.min_delta:
            self.value, self.step, self.waited = value, step, 0
            return True
        self.waited += 1
        return False

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.patience is not None and self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """What has been seen, as JSON values; the settings stay with the configuration."""
        state = asdict(self)
        del state["patience"], state["min_delta"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back a `state_dict`."""
        self.value, self.step, self.waited = state["value"], state["step"], state["waited"]
