"""The contract of scoring techniques: which candidates each triple is scored against."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.data.graph import Graph
from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Candidates, Piece, Rows
from kgexp.scoring.loss import Loss
from kgexp.sharding.table import Table

_SIDES = {"both": (Side.TAIL, Side.HEAD), "tail": (Side.TAIL,), "head": (Side.HEAD,)}


@dataclass(frozen=True)
class Extent:
    """How large a step is for one rank.

    Attributes:
        batch: triples (or queries, where these are the examples) that the rank has of a batch.
        whole: those that all ranks among whom the rows are spread have.
        rows: entity rows that the rank holds.
        entities: n.
        dim: d.
        threads: that share a step.
        piece: triples of a piece of the batch, which one thread computes; None where all are one piece.
    """

    batch: int
    whole: int
    rows: int
    entities: int
    dim: int
    threads: int
    piece: int | None


#: Numbers that the rows of a piece's triples make. Less of them stay in the cache, more of them go through every call.
_NUMBERS = 1 << 18


def piece_size(triples: int, dim: int, threads: int, device: torch.device) -> int | None:
    """How many triples make a piece of a batch: each thread has one at least; a GPU wants all of them at once: None."""
    return max(1, min(_NUMBERS // dim, -(-triples // threads))) if device.type == "cpu" else None


class ScoringTechnique(ABC):
    """Turns a batch into examples, one for each side that is trained, and these into a loss.

    Args:
        sides: `both`, or the one side whose queries are trained.
    """

    #: Whether an example is a distinct query with the set of its answers, rather than a query of a triple.
    by_query = False

    def __init__(self, sides: str = "both") -> None:
        self.sides = _SIDES[sides]

    def prepare(self, graph: Graph) -> None:  # noqa: B027 - most techniques need nothing
        """Takes what it needs of the graph, once, before the first step: nothing, unless a technique says so."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that it keeps beside the graph once it is prepared."""
        return 0

    def choose(self, batch: Batch, seed: int) -> Batch:
        """The batch with the examples that it gives, where that is not every trained side of every triple. A
        function of the batch, which is on the host, and of the seed alone."""
        return batch

    @abstractmethod
    def candidates(self, batch: Batch, num_entities: int, seed: int) -> Mapping[Side, Candidates]:
        """The candidates of each side's examples, on the host like the batch; empty for techniques that score against
        all entities. The ids are a function of the batch's step and of the seed alone."""

    def pieces(self, batch: Batch, drawn: Mapping[Side, Candidates], size: int | None) -> list[Piece]:
        """Cuts a batch with its candidates into pieces of about `size` triples, whose losses add up to that of the
        batch: one thread computes a piece, and its numbers fit into the cache. One piece where `size` is None, and
        unless a technique says so.
        """
        return [Piece(batch, drawn)]

    @abstractmethod
    def loss(self, model: Model, loss: Loss, batch: Batch, rows: Rows, entity: Table) -> Tensor:
        """The mean loss over the batch's examples, a scalar that autograd leads back to the gathered rows.

        A technique that scores against all entities asks `entity` for blocks and adds to their gradient.
        """

    @abstractmethod
    def placed_entities(self, extent: Extent) -> int:
        """The most entity rows that a step scores at once, counted in every place they take: what dropout copies."""

    @abstractmethod
    def working_numbers(self, extent: Extent) -> int:
        """The most numbers that a step holds at once, gathered rows, scores and gradients together: an estimate
        from above, dropout aside, for the memory bound that is printed before a run."""
