"""Regularisers: means over the examples of a batch, on the rows that the batch uses."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kgexp.models.base import Model
from kgexp.scoring.batch import Rows


class Regularizer(ABC):
    """A penalty on the rows of a batch."""

    @abstractmethod
    def penalty(self, model: Model, rows: Rows) -> Tensor:
        """The mean penalty over the batch's examples: a scalar."""


class N3(Regularizer):
    """The nuclear 3-norm: weight · mean over examples of Σ |h|³ + |r|³ + |t|³ (Lacroix et al., ICML 2018).

    The units are those of the paper's own code: an example is one direction of a triple, so 0.05 there is 0.05 here.
    A row is penalised as often as it occurs, which weights entities and relations by their frequency.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def penalty(self, model: Model, rows: Rows) -> Tensor:
        """See `Regularizer.penalty`."""
        # Both sides' examples hold the same two entities, so their mean is that of one side.
        entities = [_cubes(model, part) for part in rows.entities.values()]
        relations = [_cubes(model, part) for part in rows.relations.values()]
        return self.weight * (torch.stack(entities).sum() + torch.stack(relations).mean())


def _cubes(model: Model, rows: Tensor) -> Tensor:
    """The mean over rows of Σ |x|³. The power, unlike a square root, has a gradient at zero."""
    return model.squared_moduli(rows).pow(1.5).sum() / len(rows)
