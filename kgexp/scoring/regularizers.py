"""Regularisers: penalties on the rows, by example or by row."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from kgexp.models.base import Model
from kgexp.optim.base import RowGradient
from kgexp.scoring.batch import Batch, Rows, weighted_mean


class Regularizer(ABC):
    """A penalty on the rows that a step touches."""

    @abstractmethod
    def penalty(self, model: Model, batch: Batch, rows: Rows) -> Tensor:
        """The part that hangs on the examples: a scalar, which joins the loss of the step. The rows are those of the
        tables, before any dropout."""

    def row_gradients(self, model: Model) -> tuple[RowGradient | None, RowGradient | None]:
        """The part that hangs on a row alone, of entity rows and of relation rows: what the optimizer of their owner
        adds to the gradient of every row that it updates. None: nothing, unless a regulariser says so."""
        return None, None


class Lp(Regularizer):
    """Σ |x|^p over the reals of rows.

    Weighted: weight · the mean over examples of the sums of head and tail, and relation_weight · that of the
    relation, weighted as the losses are; an example is one direction of a triple. A row is penalised as often as it
    occurs, which weights entities and relations by their frequency.

    Not weighted: once a step for every distinct row that is updated (with all-entity techniques, every entity),
    weight · Σ |x|^p. The row's owner adds the gradient, so nothing counts twice however rows are spread.

    Relations that are angles have no size: they are left out.

    Args:
        p: the power, at least 1; of a zero the gradient is zero.
        weight: of entity rows.
        relation_weight: of relation rows; None for `weight`.
        weighted: see above.
    """

    def __init__(
        self, p: float = 2.0, weight: float = 0.01, relation_weight: float | None = None, weighted: bool = True
    ) -> None:
        self.p = p
        self.weight = weight
        self.relation_weight = weight if relation_weight is None else relation_weight
        self.weighted = weighted

    def powers(self, model: Model, rows: Tensor) -> Tensor:
        """Σ |x|^p of every row: float[…, d] to float[…]."""
        return rows.abs().pow(self.p).sum(dim=-1)

    def penalty(self, model: Model, batch: Batch, rows: Rows) -> Tensor:
        """See `Regularizer.penalty`."""
        if not self.weighted:
            return rows.entities[next(iter(rows.entities))].new_zeros(())
        # Both sides' examples hold the same two entities.
        entities = self.weight * torch.stack([self.powers(model, part) for part in rows.entities.values()]).sum(dim=0)
        examples = {side: batch.of(side, entities) for side in rows.relations}
        if not model.relations_are_angles:
            for side, part in rows.relations.items():
                examples[side] = examples[side] + self.relation_weight * self.powers(model, part)
        return weighted_mean(examples, batch)

    def row_gradients(self, model: Model) -> tuple[RowGradient | None, RowGradient | None]:
        """See `Regularizer.row_gradients`."""
        if self.weighted:
            return None, None

        def gradient(weight: float) -> Callable[[Tensor], Tensor]:
            def of(rows: Tensor) -> Tensor:
                with torch.enable_grad():
                    leaf = rows.detach().requires_grad_()
                    return torch.autograd.grad(weight * self.powers(model, leaf).sum(), leaf)[0]

            return of

        relation = None if model.relations_are_angles else gradient(self.relation_weight)
        return gradient(self.weight), relation


class N3(Lp):
    """The nuclear 3-norm: Σ |x|³ over the complex components of rows (Lacroix et al., ICML 2018), of a real model
    over its reals: `Lp` with p = 3 on moduli.

    The units are those of the paper's own code: an example is one direction of a triple, so 0.05 there is 0.05 here.

    Args:
        weight, relation_weight, weighted: see `Lp`.
    """

    def __init__(self, weight: float, relation_weight: float | None = None, weighted: bool = True) -> None:
        super().__init__(3.0, weight, relation_weight, weighted)

    def powers(self, model: Model, rows: Tensor) -> Tensor:
        """Σ |x|³ of every row: float[…, d] to float[…]. The power, unlike a square root, has a gradient at zero."""
        return model.squared_moduli(rows).pow(self.p / 2).sum(dim=-1)
