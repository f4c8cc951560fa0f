"""Stochastic weight averaging (Izmailov et al., UAI 2018): the model is the mean of the weights late in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgexp.optim.averaged import AVERAGE
from kgexp.sharding.table import Table
from kgexp.train.calendar import Calendar
from kgexp.train.plan import Cadence

#: Rows that are averaged or exchanged at a time.
_ROWS = 1 << 14


@dataclass
class Averaging:
    """The equal average of the weights at some steps after `begin`, beside each row as its state `average`.

    Training does not see it. Evaluations rank with it from the first of these steps on, and so does whoever reads a
    checkpoint: `model_weight` says which tensor to take. A run that was made longer, and whose average began before the
    new `begin`, begins it anew; steps that it had passed by then are not in it.

    Attributes:
        tables: those that are trained; they have the state `average` unless `begin` is None.
        cadence: the steps whose weights are averaged.
        begin: the last step whose weights are not; None averages nothing.
        count: weights averaged so far.
        first: the step whose weights were the first of them.
    """

    tables: tuple[Table, ...]
    cadence: Cadence
    begin: int | None
    count: int = 0
    first: int = -1

    @property
    def model_weight(self) -> str:
        """The name of the state tensor that is the model now: `weight` or `average`."""
        return AVERAGE if self.count else "weight"

    def update(self, step: int, calendar: Calendar) -> None:
        """Takes the weights after `step` steps into the average, if that is due."""
        if self.begin is not None and step > self.begin and self.cadence.due(step, calendar):
            self.count += 1
            self.first = step if self.count == 1 else self.first
            for table in self.tables:
                for weight, average in _pairs(table):
                    average.lerp_(weight.to(average.device), 1 / self.count)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the tables' weights are the model's; weights and averages change places, without a copy of all.

        However the context ends, what is trained is back in its place after it.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state_dict(self) -> dict[str, Any]:
        """How much is averaged, as JSON values; the average itself is in the tables."""
        return {"count": self.count, "first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back a `state_dict`."""
        self.count, self.first = state["count"], state["first"]

    def begin_anew_if_early(self) -> None:
        """Forgets an average that began before `begin` would have it, in a run that was made longer."""
        if self.begin is not None and self.first <= self.begin:
            self.count = 0

    @torch.no_grad()
    def _exchange(self) -> None:
        """Weights and averages change places, if there are averages yet."""
        for table in self.tables if self.count else ():
            for weight, average in _pairs(table):
                held = weight.clone()
                weight.copy_(average)
                average.copy_(held)


def _pairs(table: Table) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the weights and of their averages, which may be on another device, some rows at a time."""
    tensors = table.state_tensors()
    return zip(tensors["weight"].split(_ROWS), tensors[AVERAGE].split(_ROWS), strict=True)
