"""The collectives of training and evaluation: whatever ranks send each other as tensors goes through here.

Techniques and the ranker reduce over the ranks that own a table's rows, and never ask how many there are: of a table
whose rows are all in this process, every reduction is over one rank.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from kgexp.errors import RankError
from kgexp.sharding.owners import Owners
from kgexp.world import World

#: What an exchange that is under way will give: waits for it.
Arriving = Callable[[], Tensor]

#: Numbers that are summed in one exchange, of all of them, rather than in two, of parts.
_AT_ONCE = 1 << 14


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


#: Over one rank.
ALONE = Exchange()


class Supposed(Exchange):
    """Knows of several ranks that nobody has started, as the first of them: for plans, which exchange nothing."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks


class GroupExchange(Exchange):
    """The same over the ranks of a process group, and the exchange of rows between them.

    All of it is made of one collective, `all_to_all_single`: gloo's fastest by far for small tensors (0.2 ms where its
    all-reduce takes 1.6 ms), the only one for which it takes parts of different sizes, and it leaves the order of sums
    to us.

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
        return self.all_to_all(torch.cat([part] * self.ranks), [len(part)] * self.ranks, sizes)

    def reduce_scatter(self, values: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `Exchange.reduce_scatter`; rank 0's values come first in the sum, and so on."""
        return self._start_reduce_scatter(values, sizes)()

    def all_sum(self, values: Tensor) -> Tensor:
        """See `Exchange.all_sum`; in the order of the ranks."""
        return self.start_all_sum(values)()

    def start_all_sum(self, values: Tensor) -> Arriving:
        """`all_sum`, under way until the result is called for."""
        flat = values.reshape(-1)
        # A few numbers go to every rank at once; of many, each rank sums its part and tells the others.
        few = len(flat) <= _AT_ONCE
        sizes = [len(flat)] * self.ranks if few else Owners(len(flat), self.ranks).sizes()
        start = self._start_reduce_scatter(flat.repeat(self.ranks) if few else flat, sizes)

        def finish() -> Tensor:
            total = start() if few else self.all_gather(start(), sizes)
            return values.copy_(total.reshape(values.shape))

        return finish

    def rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Rows float[Σ send, d], the first `send[0]` of them for rank 0 and so on, for what the others send here:
        float[Σ receive, d], those of rank 0 first."""
        return self.start_rows(rows, send, receive)()

    def start_rows(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Arriving:
        """`rows`, under way until the result is called for."""
        self.sent += len(rows) - send[self.rank]
        arriving = self._start(rows.to(self._wire_dtype or rows.dtype), send, receive)
        return lambda: arriving().to(rows.dtype)

    def all_to_all(self, values: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """As `rows`, for values [Σ send, …] of any type."""
        return self._start(values, send, receive)()

    def _start_reduce_scatter(self, values: Tensor, sizes: Sequence[int]) -> Arriving:
        mine = sizes[self.rank]
        parts = self._start(values, sizes, [mine] * self.ranks)
        return lambda: _sum(parts().unflatten(0, (self.ranks, mine)))

    def _start(self, values: Tensor, send: Sequence[int], receive: Sequence[int]) -> Arriving:
        """The one collective; its tensors live until the result is called for."""
        outgoing = self._here(values)
        incoming = outgoing.new_empty(sum(receive), *values.shape[1:])
        with self._named():
            work = self._group.alltoall_base(incoming, outgoing, list(receive), list(send))

        def finish() -> Tensor:
            with self._named():
                work.wait()  # on a GPU: until it is in the queue
            return incoming.to(values.device)

        return finish

    def _here(self, values: Tensor) -> Tensor:
        return values.contiguous().to(self._device)

    def close(self) -> None:
        """Gives the group up: whoever waits for this rank in a collective fails at once. May be called twice."""
        group, self._group = self._group, None
        if group is not None and hasattr(group, "abort"):
            with suppress(RuntimeError):
                group.abort()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Counts the time in collectives, and says who is missing where one fails."""
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split()).partition(". This is typically caused")[0]
            raise RankError(
                f"rank {self.rank} lost another rank in an exchange ({reason}): {self._world.whereabouts()}. Look into "
                "the log of the one that ended; continue the run with resume=auto."
            ) from error
        self.waited += time.perf_counter() - began


def _sum(parts: Tensor) -> Tensor:
    """The sum [x, …] of [ranks, x, …], one after the other: its bits are a function of the parts alone."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
