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
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        relation_weights: Float64 | None = None,
    ) -> None:
        self._split = split
        self._relation_weights = relation_weights
        self._batch_size = batch_size
        self._device = device
        self._dtype = dtype
        self.triples = len(split.triples)
        self.steps_per_epoch = -(-self.triples // batch_size)
        self._order = Order(self.triples, batch_size, seed)

    def __call__(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        epoch, part = divmod(step, self.steps_per_epoch)
        start = part * self._batch_size
        stop = min(start + self._batch_size, len(self._split.triples))
        chosen = self._order(epoch, start, stop)
        triples = torch.from_numpy(self._split.triples[chosen].astype(np.int64)).to(self._device)
        return Batch(step, triples, self._weights(chosen))

    def _weights(self, chosen: Int64) -> Tensor | None:
        """The weights of triples by their position: their own times their relation's."""
        weights = None if self._split.weights is None else self._split.weights[chosen]
        if self._relation_weights is not None:
            of_relations = self._relation_weights[self._split.triples[chosen, 1]]
            weights = of_relations if weights is None else weights * of_relations
        return None if weights is None else torch.from_numpy(weights).to(self._device, self._dtype)


class Order:
    """The order of every epoch: a seeded permutation of `n` elements.

    Args:
        n: elements.
        batch_size: positions that are asked for at a time.
        seed: of the run.
    """

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self._n, self._batch_size, self._seed = n, batch_size, seed
        self._cached: tuple[int, int, Int64] | None = None  # epoch, first position, their elements

    def __call__(self, epoch: int, start: int, stop: int) -> Int64:
        """The elements at the positions `start … stop` of an epoch."""
        if self._cached is not None:
            cached_epoch, first, order = self._cached
            if cached_epoch == epoch and first <= start and stop <= first + len(order):
                return order[start - first : stop - first]
        size = max(_POSITIONS // self._batch_size, 1) * self._batch_size
        permutation = Permutation(self._n, key(self._seed, Purpose.ORDER, epoch))
        order = permutation(np.arange(start, min(start + size, self._n)))
        self._cached = epoch, start, order
        return order[: stop - start]
