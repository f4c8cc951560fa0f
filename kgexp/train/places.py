"""Where the rows of a step are wanted: from distinct rows to places, and the gradients of places back to the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kgexp.team import Team, cut

#: Numbers of the rows that a thread adds up at a time.
_NUMBERS = 1 << 17


@dataclass(frozen=True)
class Places:
    """The places of all pieces, one after the other, and the distinct ids that are wanted there.

    Attributes:
        ids: int64[u], ascending.
        index: int64[p], of every place the row of `ids`.
        shapes: of every piece those of the tensors of ids int64[…] that it wants.
        order: int64[p], the places by row, those of one row in their order.
        starts: int64[u + 1], where the places of each row start in `order`.
    """

    ids: Tensor
    index: Tensor
    shapes: Sequence[Sequence[torch.Size]]
    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, wanted: Sequence[Sequence[Tensor]]) -> "Places":
        """The places of pieces that want ids int64[…] each."""
        flat = torch.cat([part.reshape(-1) for piece in wanted for part in piece])
        ordered, order = flat.sort(stable=True)
        ids, counts = ordered.unique_consecutive(return_counts=True)
        index = torch.empty_like(order)
        index[order] = torch.arange(len(ids), device=flat.device).repeat_interleave(counts)
        starts = F.pad(counts.cumsum(0), (1, 0))
        return cls(ids, index, [[part.shape for part in piece] for piece in wanted], order, starts)

    def put(self, piece: int, rows: Tensor) -> list[Tensor]:
        """The rows float[u, d] at the places of a piece: fresh memory float[…, d] for each tensor int64[…]."""
        at, placed = self._begins[piece], []
        for shape in self.shapes[piece]:
            index = self.index[at : at + shape.numel()]
            placed.append(rows.index_select(0, index).view(*shape, rows.shape[1]))
            at += shape.numel()
        return placed

    def total(self, pieces: Sequence[Sequence[Tensor]], team: Team) -> Tensor:
        """The gradients float[…, d] of all places of every piece, added up by row in the order of the places:
        float[u, d]."""
        width = pieces[0][0].shape[-1]
        flat = torch.cat([part.reshape(-1, width) for piece in pieces for part in piece])
        total = flat.new_empty(len(self.ids), width)
        if flat.device.type != "cpu":
            return total.zero_().index_add_(0, self.index, flat)

        def add_up(rows: slice) -> None:
            starts = self.starts[rows]
            places = self.order[starts[0] : self.starts[rows.stop]]
            total[rows] = F.embedding_bag(places, flat, starts - starts[0], mode="sum")

        team.map(add_up, cut(len(self.ids), _NUMBERS // width))
        return total

    @property
    def _begins(self) -> list[int]:
        """The first place of each piece."""
        begins = [0]
        for shapes in self.shapes:
            begins.append(begins[-1] + sum(shape.numel() for shape in shapes))
        return begins
