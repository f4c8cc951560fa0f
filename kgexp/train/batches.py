"""The batches of a run: step `i` is always the same triples, whoever asks and in whatever order.

An epoch's order is a seeded permutation computed position by position, so nothing the size of the graph is
shuffled or stored; it is computed for a few thousand positions at a time, which is what makes it cheap.
"""

import numpy as np
import torch
from torch import Tensor

from kgexp.data.graph import Split
from kgexp.randomness import Float64, Int64, Permutation, Purpose, key
from kgexp.scoring.batch import Batch
from kgexp.scoring.share import ALL, Share
from kgexp.train.calendar import Regular

#: Positions of the order computed at once.
_POSITIONS = 1 << 16


class Batches:
    """Cuts a split into batches, epoch after epoch; the last batch of an epoch may be smaller.

    Args:
        split: the triples, at least one.
        batch_size: triples in a batch.
        seed: of the run.
        device, dtype: where the batches go, and of what type their weights are.
        relation_weights: float64[m], which multiply the triples' own weights; None if all are 1.
        share: the part of every batch that is wanted.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        relation_weights: Float64 | None = None,
        share: Share = ALL,
    ) -> None:
        self._split = split
        self._share = share
        self._relation_weights = relation_weights
        self._device = device
        self._dtype = dtype
        self.triples = len(split.triples)
        self._order = Order(self.triples, batch_size, seed, share)
        self.calendar = Regular(self._order.steps)

    def __call__(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        epoch, part = divmod(step, self._order.steps)
        chosen = self._order(epoch, part)
        triples = torch.from_numpy(self._split.triples[chosen].astype(np.int64)).to(self._device)

        def relations_before() -> Tensor:
            before = self._split.triples[self._order.before(epoch, part), 1]
            return torch.from_numpy(before.astype(np.int64))

        return Batch(
            step,
            triples,
            self._weights(chosen),
            share=self._share,
            whole=self._order.whole(part),
            relations_before=relations_before,
        )

    def _weights(self, chosen: Int64) -> Tensor | None:
        """The weights of triples by their position: their own times their relation's."""
        weights = None if self._split.weights is None else self._split.weights[chosen]
        if self._relation_weights is not None:
            of_relations = self._relation_weights[self._split.triples[chosen, 1]]
            weights = of_relations if weights is None else weights * of_relations
        return None if weights is None else torch.from_numpy(weights).to(self._device, self._dtype)


class Order:
    """The order of every epoch, cut into batches: a seeded permutation of `n` elements.

    Args:
        n: elements.
        batch_size: elements of a batch; the last one of an epoch may be smaller.
        seed: of the run.
        share: the part of every batch that is wanted; nothing else of it is computed.
        which: tells several orders of an epoch apart.
    """

    def __init__(self, n: int, batch_size: int, seed: int, share: Share = ALL, which: tuple[int, ...] = ()) -> None:
        self._n, self._batch_size, self._seed, self._share, self._which = n, batch_size, seed, share, which
        self.steps = -(-n // batch_size)
        self._epoch, self._parts = -1, range(0)  # whose elements are computed
        self._elements: list[Int64] = []

    def __call__(self, epoch: int, part: int) -> Int64:
        """The elements of the share of batch `part` of an epoch."""
        if epoch != self._epoch or part not in self._parts:
            parts = range(part, min(part + max(_POSITIONS * self._share.ranks // self._batch_size, 1), self.steps))
            spans = [self._span(p) for p in parts]
            order = self._permutation(epoch)(np.concatenate([np.arange(start, stop) for start, stop in spans]))
            ends = np.cumsum([stop - start for start, stop in spans])
            self._epoch, self._parts, self._elements = epoch, parts, np.split(order, ends[:-1])
        return self._elements[part - self._parts.start]

    def whole(self, part: int) -> int:
        """How many elements the whole batch `part` has."""
        return min(self._batch_size, self._n - part * self._batch_size)

    def before(self, epoch: int, part: int) -> Int64:
        """The elements of batch `part` that come before the share."""
        return self._permutation(epoch)(np.arange(part * self._batch_size, self._span(part)[0]))

    def _span(self, part: int) -> tuple[int, int]:
        """First position and one past the last of the share of a batch."""
        first = part * self._batch_size
        start, stop = self._share.of(self.whole(part))
        return first + start, first + stop

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(self._n, key(self._seed, Purpose.ORDER, epoch, *self._which))
