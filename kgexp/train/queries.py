"""Batches of distinct queries, each with the set of all its answers in train.

Step `i` is always the same queries, as it is for triples: see `kgexp.train.batches`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kgexp.data.graph import Graph, Split
from kgexp.data.grouping import grouped
from kgexp.data.sides import Side
from kgexp.errors import ConfigError
from kgexp.randomness import Int64, Purpose, integers, key
from kgexp.scoring.batch import Batch
from kgexp.scoring.share import ALL, Share
from kgexp.scoring.targets import Targets
from kgexp.train.batches import Order
from kgexp.train.calendar import Regular


@dataclass(frozen=True)
class _Queries:
    """The distinct queries of one side.

    Attributes:
        triples: int64[D], positions of the distinct triples of train, sorted by query.
        offsets: int64[q + 1], where each query's triples begin in `triples`.
    """

    triples: Int64
    offsets: Int64

    @classmethod
    def of(cls, split: Split, side: Side) -> "_Queries":
        columns = split.triples[:, side.given], split.triples[:, 1]
        order, begins = grouped(*columns, split.triples[:, side.column])
        distinct = order[begins]
        _, first = grouped(*(column[distinct] for column in columns))  # they are sorted already
        return cls(distinct, np.append(first, len(distinct)))

    def __len__(self) -> int:
        return len(self.offsets) - 1


class QueryBatches:
    """Cuts the distinct queries of train into batches, epoch after epoch; the last of an epoch may be smaller.

    It keeps the sorted positions of the triples and of the queries in memory, 8 bytes each, for every side.

    Args:
        graph: the data.
        sides: whose queries are examples, in the order in which a batch holds them.
        batch_size: queries in a batch.
        seed: of the run.
        dtype: of the weights in the batches: a query's is that of its relation.
        share: the part of every batch that is wanted.

    Raises:
        ConfigError: the triples have weights.
    """

    def __init__(
        self,
        graph: Graph,
        sides: Sequence[Side],
        batch_size: int,
        seed: int,
        dtype: torch.dtype = torch.float32,
        share: Share = ALL,
    ) -> None:
        if graph.train.weights is not None:
            raise ConfigError(
                f"{graph.name} has weights, one a triple, but scoring=kvsall trains queries, which share answers out "
                "of many triples: name the column ignore in dataset.columns, or choose scoring=onevsall."
            )
        self._split, self._n = graph.train, graph.num_entities
        self._relation_weights = None
        if graph.relation_weights is not None:
            self._relation_weights = torch.from_numpy(graph.relation_weights).to(dtype)
        self._queries = {side: _Queries.of(graph.train, side) for side in sides}
        self._seed, self._share = seed, share
        self.triples = sum(len(queries) for queries in self._queries.values())
        self._order = Order([self.triples], batch_size, seed)
        self.calendar = Regular(self._order.steps)

    def __call__(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs: one triple of every query, and all answers."""
        # The sides of a batch are kept apart, and its parts are cut after that: so the order is that of the whole.
        chosen = self._order(*divmod(step, self._order.steps)).elements
        start, stop = self._share.of(len(chosen))
        triples, entities, counts, examples = [], [], [], {}
        first, place, passed = 0, start, 0
        for side, queries in self._queries.items():
            own = chosen[(chosen >= first) & (chosen < first + len(queries))] - first
            passed, own = passed + len(own), own[max(start - passed, 0) : max(stop - passed, 0)]
            begins, sizes = queries.offsets[own], queries.offsets[own + 1] - queries.offsets[own]
            drawn = _integers_below(key(self._seed, Purpose.LABELS, step), place + np.arange(len(own)), sizes)
            triples.append(self._split.triples[queries.triples[begins + drawn]])
            ends = np.cumsum(sizes)
            pairs = np.repeat(begins - (ends - sizes), sizes) + np.arange(sizes.sum())
            entities.append(self._split.triples[queries.triples[pairs], side.column])
            counts.append(sizes)
            examples[side] = torch.arange(place - start, place - start + len(own))
            first, place = first + len(queries), place + len(own)
        answers = self._tensor(counts)
        query = torch.arange(len(answers)).repeat_interleave(answers)
        targets = Targets(query, self._tensor(entities), answers, self._n)
        held = self._tensor(triples)
        weights = None if self._relation_weights is None else self._relation_weights[held[:, 1]]
        return Batch(step, held, weights, examples, targets, self._share, len(chosen))

    def _tensor(self, parts: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _integers_below(stream: int, counters: Int64, highs: Int64) -> Int64:
    """Uniform in {0, …, high-1} for each counter with its own `high` int64[x]."""
    return (integers(stream, counters, 2**31) * highs) >> 31
