"""Rows that every trainer trains at once: those of relations, and of entity types that are not cut into partitions.

Each trainer works on a copy, weights and optimizer state. What the copies have changed since they were last equal is
added up: `value + Σ (copy - value)`, weights and state alike, so that a row that one trainer alone has touched is
what it would be without the others. Synchronously, all trainers do so together at points that the schedule fixes.
Asynchronously, as in PyTorch-BigGraph, each sends its changes to a keeper when it likes and gets the newest value;
what it has trained while these were on their way stays, and at the end of a pass all copies are made equal.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from kgexp.sharding.exchange import GroupExchange
from kgexp.world import World


class SharedRows:
    """The copies of one trainer, seen as one vector.

    Args:
        tables: of each table its tensors by name.
        signed: of each table the names of tensors whose numbers may be negative; others are kept from becoming so,
            which sums of running means could.
        dtype: of the vector: that of computing.
    """

    def __init__(
        self, tables: Sequence[Mapping[str, Tensor]], signed: Sequence[Sequence[str]], dtype: torch.dtype
    ) -> None:
        self._tensors = [tensor for table in tables for tensor in table.values()]
        self._signed = [name in names for table, names in zip(tables, signed, strict=True) for name in table]
        self._dtype = dtype

    def value(self) -> Tensor:
        """All numbers: float[x], on the CPU, in memory of its own."""
        parts = [tensor.detach().reshape(-1).to("cpu", self._dtype) for tensor in self._tensors]
        return torch.cat(parts) if parts else torch.empty(0, dtype=self._dtype)

    def assign(self, value: Tensor) -> None:
        """Makes the copies what a vector float[x] says."""
        start = 0
        for tensor, signed in zip(self._tensors, self._signed, strict=True):
            part = value[start : start + tensor.numel()]
            tensor.copy_((part if signed else part.clamp(min=0)).reshape(tensor.shape))
            start += tensor.numel()


class Synchronous:
    """Adds the changes of all trainers up at points at which all of them are.

    Args:
        rows: the copies.
        over: reduces over the trainers.
    """

    def __init__(self, rows: SharedRows, over: GroupExchange) -> None:
        self._rows, self._over = rows, over
        self._base = torch.empty(0)

    def begin(self) -> None:
        """Training begins, from copies that are equal on all trainers."""
        self._base = self._rows.value()

    def exchange(self, codes: Tensor) -> Tensor:
        """A point: the copies become equal. Small integers float[c] travel along, and are summed over trainers."""
        value = self._rows.value()
        total = self._over.all_sum(torch.cat([value - self._base, codes.to(value.dtype)]))
        self._rows.assign(self._base.add_(total[: len(value)]))
        self._base = self._rows.value()  # as it was rounded, which is the same everywhere
        return total[len(value) :]

    def flush(self) -> None:
        """Sends all that this trainer has changed; for all of them to call before `finish`."""

    def finish(self) -> None:
        """Training ends, and the copies are equal on all trainers."""


class Keeping(Protocol):
    """Where the value of asynchronous trainers is kept."""

    def keep(self, value: Tensor) -> None:
        """The rank that keeps it: from now on."""

    def push(self, change: Tensor) -> Tensor:
        """Adds changes float[x]; the value after it."""


class Asynchronous:
    """Sends changes to a keeper, and adds what others have changed when the answer is there.

    Args:
        rows: the copies.
        keeper: at rank 0.
        world: of the trainers.
    """

    def __init__(self, rows: SharedRows, keeper: Keeping, world: World) -> None:
        self._rows, self._keeper, self._world = rows, keeper, world
        self._base = torch.empty(0)
        self._pool = ThreadPoolExecutor(1, "shared")
        self._sent: tuple[Tensor, Future[Tensor]] | None = None

    def begin(self) -> None:
        """See `Synchronous.begin`."""
        self._base, self._sent = self._rows.value(), None
        if self._world.rank == 0:
            self._keeper.keep(self._base)
        self._world.barrier("the keeper of shared rows")

    def exchange(self, codes: Tensor) -> Tensor:
        """Sends what has changed, unless an answer is still under way; waits for nobody."""
        if self._sent is None or self._sent[1].done():
            self._take()
            value = self._rows.value()
            self._sent = value, self._pool.submit(self._keeper.push, value - self._base)
        return torch.zeros_like(codes)

    def flush(self) -> None:
        """Sends all that this trainer has changed."""
        self._take()
        value = self._rows.value()
        self._base = self._keeper.push(value - self._base)

    def finish(self) -> None:
        """See `Synchronous.finish`: by now the keeper has everything."""
        self._rows.assign(self._keeper.push(torch.zeros_like(self._base)))
        self._base = self._rows.value()

    def _take(self) -> None:
        """Adds what others have changed to what was trained meanwhile."""
        if self._sent is None:
            return
        (sent, answer), self._sent = self._sent, None
        value = answer.result()
        self._rows.assign(self._rows.value() + (value - sent))
        self._base = value


class Keeper:
    """The value that asynchronous trainers share: of whoever asks first, and then what all have changed.

    Args:
        value: float[x], the beginning.
    """

    def __init__(self, value: Tensor) -> None:
        self._value, self._lock = value.clone(), threading.Lock()

    def add(self, change: Tensor) -> Tensor:
        """Adds changes float[x]; the value after it, in memory of its own."""
        with self._lock:
            return self._value.add_(change).clone()
