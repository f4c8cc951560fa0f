"""The answers of queries against all entities: one each, or a set each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.sharding.exchange import Exchange
from kgexp.transfer import sent


@dataclass(frozen=True)
class Targets:
    """Every query's answers, as pairs sorted by query. Values of pairs are called *own* scores and so on.

    Attributes:
        query: int64[p], position of the query, rising, each at least once.
        entity: int64[p], an answer of that query; the pairs are distinct.
        counts: int64[q], answers of each query.
        n: entities there are.
    """

    query: Tensor
    entity: Tensor
    counts: Tensor
    n: int

    @classmethod
    def one_each(cls, answers: Tensor, n: int) -> "Targets":
        """The targets of queries with one answer each, int64[q]."""
        return cls(torch.arange(len(answers), device=answers.device), answers, torch.ones_like(answers), n)

    def to(self, device: torch.device) -> "Targets":
        """The same targets on a device."""
        return Targets(sent(self.query, device), sent(self.entity, device), sent(self.counts, device), self.n)

    def of_all(self, exchange: Exchange, sizes: Sequence[int]) -> "Targets":
        """The targets of the queries of all ranks, of which rank r has `sizes[r]`, in the order of the ranks."""
        if exchange.ranks == 1:
            return self
        counts = exchange.all_gather(self.counts, sizes)
        pairs = [int(part.sum()) for part in counts.split(list(sizes))]
        query = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        return Targets(query, exchange.all_gather(self.entity, pairs), counts, self.n)

    def of_queries(self, some: slice) -> tuple[slice, "Targets"]:
        """Those of some queries in a row: where their pairs are among these, and the targets by themselves."""
        first, last = torch.searchsorted(self.query, self.query.new_tensor([some.start, some.stop])).tolist()
        pairs = slice(first, last)
        return pairs, Targets(self.query[pairs] - some.start, self.entity[pairs], self.counts[some], self.n)

    @property
    def others(self) -> Tensor:
        """int64[q], the entities that are no answer; 1 where there are none, for it is a divisor."""
        return (self.n - self.counts).clamp(min=1)

    def within(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs whose entity is in `start … stop`: their positions, queries and columns, int64[x] each."""
        if start <= 0 and self.n <= stop:  # known without asking the device
            return torch.arange(len(self.entity), device=self.entity.device), self.query, self.entity - start
        pairs = ((self.entity >= start) & (self.entity < stop)).nonzero().squeeze(-1)
        return pairs, self.query[pairs], self.entity[pairs] - start

    def sum(self, values: Tensor) -> Tensor:
        """Values of pairs float[p], summed by query: float[q]. The order of the additions is fixed."""
        return self._reduce(values, "sum")

    def mean(self, values: Tensor) -> Tensor:
        """Values of pairs float[p], their mean by query: float[q]."""
        return self.sum(values) / self.counts

    def logsumexp(self, values: Tensor) -> Tensor:
        """Values of pairs float[p], the logarithm of the sum of their exponentials by query: float[q]."""
        largest = self._reduce(values, "max")
        return largest + self.sum((values - self.spread(largest)).exp()).log()

    def spread(self, values: Tensor) -> Tensor:
        """Values of queries float[q] for each of their pairs: float[p]."""
        return values[self.query]

    def _reduce(self, values: Tensor, how: str) -> Tensor:
        if not len(self.counts):  # a rank may have no queries, and torch cannot reduce nothing
            return values.new_zeros(0)
        # Safe without a check, for which a GPU would have to be waited for: the counts add up to the pairs.
        return torch.segment_reduce(values, how, lengths=self.counts, unsafe=True)
