"""A batch of triples, and the rows that it needs, gathered once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.data.sides import Side


@dataclass(frozen=True)
class Batch:
    """The triples of one step.

    Attributes:
        step: number of the step in the run, from 0; random numbers are drawn for it.
        triples: int64[b, 3].
        weights: float[b], or None when every triple weighs one.
    """

    step: int
    triples: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.triples)


@dataclass(frozen=True)
class Rows:
    """The rows of one batch, by the places they take: autograd leads from here to the gathered leaves.

    Attributes:
        entities: of each side, the rows float[b, d] of the entities at that side of the triples.
        relations: of each side that is trained, the relation rows float[b, e] that its queries use.
        candidates: of each side that is trained, for each chunk of the batch the candidate rows float[k, d];
            empty for techniques that score against all entities.
    """

    entities: Mapping[Side, Tensor]
    relations: Mapping[Side, Tensor]
    candidates: Mapping[Side, Sequence[Tensor]]


def weighted_mean(values: Sequence[Tensor], weights: Tensor | None) -> Tensor:
    """The mean over all examples of weight times value, of their losses or of their penalties.

    Args:
        values: for every side, the values float[b] of its examples.
        weights: float[b] of the triples. A triple of weight 2 counts as two, one of weight 0 not at all; the
            divisor is the number of examples whatever they weigh, so no triple's share hangs on its neighbours.
    """
    both = torch.stack(list(values))
    return (both if weights is None else both * weights).mean()
