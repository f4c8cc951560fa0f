"""Where the rows of a step are wanted: from distinct rows to places, and the gradients of places back to the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kgexp.team import Team, cut
from kgexp.transfer import sent

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
        flat = torch.cat([part.reshape(-1) for piece in wanted for part in piece]).numpy()
        # Ids with their places behind them: they are sorted twice as fast as by an order of their own.
        bits = len(flat).bit_length()
        packed = np.sort(flat << bits | np.arange(len(flat)))
        ordered, order = packed >> bits, packed & ((1 << bits) - 1)
        first = np.diff(ordered, prepend=-1) != 0
        index = np.empty_like(order)
        index[order] = np.cumsum(first) - 1
        starts = np.append(np.flatnonzero(first), len(flat))
        shapes = [[part.shape for part in piece] for piece in wanted]
        of = torch.from_numpy
        return cls(of(ordered[first]), of(index), shapes, of(order), of(starts))

    def to(self, device: torch.device) -> "Places":
        """The same places for rows on a device: what `put` and `total` need of them is there."""
        return replace(self, index=sent(self.index, device))

    def put(self, piece: int, rows: Tensor) -> list[Tensor]:
        """The rows float[u, d] at the places of a piece: fresh memory float[…, d] for each tensor int64[…]."""
        return [
            rows.index_select(0, self.index[places]).view(*shape, rows.shape[1])
            for shape, places in self._places(piece)
        ]

    def room(self, rows: Tensor) -> Tensor:
        """Room float[p, d] for the gradients of all places."""
        return rows.new_empty(len(self.index), rows.shape[1])

    def leave(self, piece: int, gradients: Sequence[Tensor], room: Tensor) -> None:
        """Puts the gradients float[…, d] of the places of a piece where `total` looks for them."""
        for gradient, (_, places) in zip(gradients, self._places(piece), strict=True):
            room[places] = gradient.view(-1, room.shape[1])

    def total(self, room: Tensor, team: Team) -> Tensor:
        """The gradients that all pieces have left, added up by row in the order of the places: float[u, d]."""
        total = room.new_empty(len(self.ids), room.shape[1])
        if room.device.type != "cpu":
            return total.zero_().index_add_(0, self.index, room)

        def add_up(rows: slice) -> None:
            starts = self.starts[rows.start : rows.stop + 1]
            places = self.order[starts[0] : starts[-1]]
            total[rows] = F.embedding_bag(places, room, starts[:-1] - starts[0], mode="sum")

        team.map(add_up, cut(len(self.ids), _NUMBERS // room.shape[1]))
        return total

    def _places(self, piece: int) -> Iterator[tuple[torch.Size, slice]]:
        """The shapes that a piece wants, and the places of each."""
        at = sum(shape.numel() for shapes in self.shapes[:piece] for shape in shapes)
        for shape in self.shapes[piece]:
            yield shape, slice(at, at + shape.numel())
            at += shape.numel()
