"""Running means of the loss, and the guard that no NaN gets past."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kgexp.errors import NonFiniteError
from kgexp.sharding.exchange import ALONE, Exchange

#: Over which a mean is taken, each of them anew when it has been asked for.
_WINDOWS = ("steps", "epoch", "visit")


class LossMeter:
    """Collects the losses of steps and gives their means, weighted by the triples of each step.

    On a GPU a loss is not looked at when it is made, for that would wait for the device, and where several ranks train
    it would wait for them: losses are taken over some dozens at a time, and always before anything is evaluated or
    saved.

    Args:
        describe: says in words what a step's batch was, for the error that names it.
        pending: losses that may wait to be looked at.
        exchange: over the ranks that train; the losses of their parts add up.
    """

    def __init__(self, describe: Callable[[int], str], pending: int = 1, exchange: Exchange = ALONE) -> None:
        self._describe, self._exchange = describe, exchange
        self._limit = pending
        self._pending: list[tuple[int, int, Tensor]] = []
        self._sums = dict.fromkeys(_WINDOWS, 0.0)
        self._triples = dict.fromkeys(_WINDOWS, 0)
        self.last = math.nan

    def add(self, step: int, triples: int, loss: Tensor) -> None:
        """Takes the loss of a step, counted from 0, on so many triples: a scalar; of a rank, what its part adds."""
        self._pending.append((step, triples, loss))
        if len(self._pending) >= self._limit or math.isnan(self.last):  # the first one is shown at once
            self.flush()

    def flush(self) -> None:
        """Looks at every loss that waits.

        Raises:
            NonFiniteError: a loss is NaN or infinite; names the first such step and its batch.
        """
        if not self._pending:
            return
        values = self._exchange.all_sum(torch.stack([loss for _, _, loss in self._pending]).double()).tolist()
        for (step, triples, _), value in zip(self._pending, values, strict=True):
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"the loss of step {step + 1} is {value} ({self._describe(step)}): lower optimizer.lr or "
                    "model.init_scale, or look at the weights of the triples, and start from an earlier checkpoint."
                )
            for window in self._sums:
                self._sums[window] += value * triples
                self._triples[window] += triples
            self.last = value
        self._pending.clear()

    def merge(self, exchange: Exchange) -> None:
        """Where ranks have losses of their own: rank 0 gets those of all windows, and the others begin anew."""
        self.flush()
        numbers = [*self._sums.values(), *self._triples.values()]
        total = exchange.all_sum(torch.tensor(numbers, dtype=torch.float64)).tolist()
        if exchange.rank:
            total = [0.0] * len(total)
        self._sums = dict(zip(_WINDOWS, total, strict=False))
        self._triples = dict(zip(_WINDOWS, map(int, total[len(_WINDOWS) :]), strict=True))

    def mean(self, window: str) -> float:
        """The mean loss a triple since the last call for `steps`, `epoch` or `visit`; NaN when there was none."""
        self.flush()
        total, triples = self._sums[window], self._triples[window]
        self._sums[window], self._triples[window] = 0.0, 0
        return total / triples if triples else math.nan

    def state_dict(self) -> dict[str, Any]:
        """The unfinished windows, as JSON values."""
        self.flush()
        return {"sums": dict(self._sums), "triples": dict(self._triples)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back a `state_dict`."""
        self._sums |= state["sums"]
        self._triples |= state["triples"]
