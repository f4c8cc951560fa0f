"""Regularisers: means over the examples of a batch, on the rows that the batch uses."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Rows, weighted_mean


class Regularizer(ABC):
    """A penalty on the rows of a batch."""

    @abstractmethod
    def penalty(self, model: Model, batch: Batch, rows: Rows) -> Tensor:
        """The mean penalty over the batch's examples, weighted as their losses are: a scalar."""


class N3(Regularizer):
    """The nuclear 3-norm: weight · mean over examples of Σ |h|³ + |r|³ + |t|³ (Lacroix et al., ICML 2018).

    The units are those of the paper's own code: an example is one direction of a triple, so 0.05 there is 0.05 here.
    A row is penalised as often as it occurs, which weights entities and relations by their frequency.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def penalty(self, model: Model, batch: Batch, rows: Rows) -> Tensor:
        """See `Regularizer.penalty`."""
        # Both sides' examples hold the same two entities.
        entities = torch.stack([_cubes(model, part) for part in rows.entities.values()]).sum(dim=0)
        examples = {side: batch.of(side, entities) + _cubes(model, part) for side, part in rows.relations.items()}
        return self.weight * weighted_mean(examples, batch)


def _cubes(model: Model, rows: Tensor) -> Tensor:
    """Σ |x|³ of every row: float[b]. The power, unlike a square root, has a gradient at zero."""
    return model.squared_moduli(rows).pow(1.5).sum(dim=-1)
