"""The collectives of training and evaluation: whatever ranks send each other as tensors goes through here.

Techniques and the ranker reduce over the ranks that own a table's rows, and never ask how many there are: of a table
whose rows are all in this process, every reduction is over one rank.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from kgexp.errors import RankError
from kgexp.world import World


class Exchange:
    """The reductions over the ranks that own rows: here over one, which is this process.

    Every rank calls the same methods in the same order, with tensors of the same dtype.

    Attributes:
        rank: this process's number among them, from 0.
        ranks: how many there are.
        waited: seconds spent in collectives so far.
    """

    rank = 0
    ranks = 1
    waited = 0.0

    def all_gather(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """The parts [sizes[rank], …] of all ranks in their order, on every rank: [Σ sizes, …]."""
        return part

    def reduce_scatter(self, values: Tensor, sizes: Sequence[int]) -> Tensor:
        """The sum over ranks of values [Σ sizes, …], of which every rank gets its part [sizes[rank], …]."""
        return values

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place; the same bits on every rank."""
        return values


class GroupExchange(Exchange):
    """The same over the ranks of a process group, and the exchange of rows between them.

    Nothing is asked of the group that gloo lacks: parts of different sizes are padded where gloo wants equal ones.

    Args:
        group: a process group, or one of its backends; never the default one, so that threads can be ranks.
        device: where the group's tensors live; others are moved there and back.
        world: says in errors what the ranks were last heard doing.
        wire_dtype: to which rows and their gradients are rounded on the way; None sends them as they are.

    Attributes:
        sent: rows that `rows` has sent to other ranks so far.
    """

    def __init__(self, group: Any, device: torch.device, world: World, wire_dtype: torch.dtype | None = None) -> None:
        self.rank, self.ranks = group.rank(), group.size()
        self.sent, self.waited = 0, 0.0
        self._group, self._device, self._world, self._wire_dtype = group, device, world, wire_dtype

    def all_gather(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `Exchange.all_gather`."""
        widest = max(sizes)
        if not widest:
            return part
        mine = self._here(_padded(part, widest))
        everyone = mine.new_empty(self.ranks * widest, *part.shape[1:])
        self._wait("all_gather", lambda: self._group._allgather_base(everyone, mine))
        if min(sizes) < widest:
            pieces = everyone.split(widest)
            everyone = torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])
        return everyone.to(part.device)

    def reduce_scatter(self, values: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `Exchange.reduce_scatter`."""
        widest = max(sizes)
        if not widest:
            return values
        everyone = values
        if min(sizes) < widest:
            everyone = torch.cat([_padded(piece, widest) for piece in values.split(list(sizes))])
        everyone = self._here(everyone)
        mine = everyone.new_empty(widest, *values.shape[1:])
        self._wait("reduce_scatter", lambda: self._group._reduce_scatter_base(mine, everyone))
        return mine[: sizes[self.rank]].to(values.device)

    def all_sum(self, values: Tensor) -> Tensor:
        """See `Exchange.all_sum`."""
        total = self._here(values)
        self._wait("all_reduce", lambda: self._group.allreduce([total]))
        return values if total is values else values.copy_(total)

    def rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows float[Σ send, d], the first `send[0]` of them for rank 0 and so on, for what the others send here:
        float[Σ receive, d], those of rank 0 first."""
        self.sent += len(rows) - send[self.rank]
        return self.all_to_all(rows.to(self._wire_dtype or rows.dtype), send, receive).to(rows.dtype)

    def all_to_all(self, values: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """As `rows`, for values [Σ send, …] of any type."""
        outgoing = self._here(values)
        incoming = outgoing.new_empty(sum(receive), *values.shape[1:])
        splits = list(receive), list(send)
        self._wait("all_to_all", lambda: self._group.alltoall_base(incoming, outgoing, *splits))
        return incoming.to(values.device)

    def _here(self, values: Tensor) -> Tensor:
        return values.contiguous().to(self._device)

    def close(self) -> None:
        """Gives the group up: whoever waits for this rank in a collective fails at once. May be called twice."""
        group, self._group = self._group, None
        if group is not None and hasattr(group, "abort"):
            with suppress(RuntimeError):
                group.abort()

    def _wait(self, what: str, start: Callable[[], Any]) -> None:
        """Starts a collective and waits until it is done (on a GPU: until it is in the queue)."""
        began = time.perf_counter()
        try:
            start().wait()
        except RuntimeError as error:
            reason = " ".join(str(error).split()).partition(". This is typically caused")[0]
            raise RankError(
                f"rank {self.rank} lost another rank in {what} ({reason}): {self._world.whereabouts()}. Look into the "
                "log of the one that ended; continue the run with resume=auto."
            ) from error
        self.waited += time.perf_counter() - began


def _padded(part: Tensor, size: int) -> Tensor:
    """A part with rows of zeros after it, so that there are `size`."""
    if len(part) == size:
        return part
    padded = part.new_zeros(size, *part.shape[1:])
    padded[: len(part)] = part
    return padded
