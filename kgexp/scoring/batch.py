"""A batch of triples, and the rows that it needs, gathered once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.scoring.pool import Pool
from kgexp.scoring.share import ALL, Share
from kgexp.scoring.targets import Targets
from kgexp.transfer import sent


def _none_before() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Batch:
    """The triples of one step, and which of their queries are its examples.

    It is made on the host, where all that follows from it alone is prepared; `to` takes it to the rows.

    Where several ranks train, each has a contiguous part of the whole batch. The numbers that positions decide, and the
    divisor of means, are those of the whole.

    Attributes:
        step: number of the step in the run, from 0; random numbers are drawn for it.
        triples: int64[b, 3].
        weights: float[b], or None when every triple weighs one.
        examples: of each side, the rising positions int64[x] of the triples whose query of that side is one; None
            when every triple gives one for every side that is trained.
        targets: the answers of triple i's one query, where queries have sets of answers; None otherwise.
        share: which part of the whole batch this is.
        whole: triples of the whole batch; None where this is all of it.
        relations_before: gives the relations int64[first] of the whole batch's triples that come before this part.
        examples_before: of each side, how many examples of the whole batch come before this part's; None where every
            triple gives one.
        pools: of each side, the entities that its candidates are drawn from; None where these are all entities.
        begin: where these triples begin among those of the share, of which they may be a piece.
    """

    step: int
    triples: Tensor
    weights: Tensor | None = None
    examples: Mapping[Side, Tensor] | None = None
    targets: Targets | None = None
    share: Share = ALL
    whole: int | None = None
    relations_before: Callable[[], Tensor] = _none_before
    examples_before: Mapping[Side, int] | None = None
    pools: Mapping[Side, Pool] | None = None
    begin: int = 0

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def total(self) -> int:
        """Triples of the whole batch."""
        return len(self.triples) if self.whole is None else self.whole

    @property
    def first(self) -> int:
        """The position in the whole batch of the first triple."""
        return self.share.of(self.total)[0] + self.begin

    @property
    def sizes(self) -> list[int]:
        """How many triples of the whole batch each rank has."""
        return self.share.sizes(self.total)

    def before(self, side: Side) -> int:
        """How many examples of a side come before this part's."""
        return self.first if self.examples_before is None else self.examples_before[side]

    def piece(self, triples: slice) -> "Batch":
        """The same of consecutive ones of its triples; for batches of triples, as queries' sets of answers stay."""
        start, stop = triples.start, triples.stop
        examples, before = self.examples, self.examples_before
        if examples is not None:
            of = {side: torch.searchsorted(at, at.new_tensor([start, stop])).tolist() for side, at in examples.items()}
            before = {side: self.before(side) + first for side, (first, _) in of.items()}
            examples = {side: examples[side][first:last] - start for side, (first, last) in of.items()}
        return replace(
            self,
            triples=self.triples[triples],
            weights=None if self.weights is None else self.weights[triples],
            examples=examples,
            whole=self.total,
            examples_before=before,
            begin=self.begin + start,
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch with its tensors on a device."""
        return replace(
            self,
            triples=sent(self.triples, device),
            weights=None if self.weights is None else sent(self.weights, device),
            examples=self.examples and {side: sent(at, device) for side, at in self.examples.items()},
            targets=None if self.targets is None else self.targets.to(device),
        )

    def pool(self, side: Side, num_entities: int) -> Pool:
        """The entities that candidates of a side are drawn from, of so many in all."""
        return Pool.of([range(num_entities)]) if self.pools is None else self.pools[side]

    def of(self, side: Side, values: Tensor) -> Tensor:
        """Values of triples [b, …] for the examples of a side: [x, …]."""
        return values if self.examples is None else values[self.examples[side]]


@dataclass(frozen=True)
class Candidates:
    """The candidates of one side's examples, which are cut into chunks that share them.

    Attributes:
        ids: int64[c, k].
        mask: bool[x, k], true where a candidate is no negative of an example; None when all are.
    """

    ids: Tensor
    mask: Tensor | None = None

    def to(self, device: torch.device) -> "Candidates":
        """The same candidates on a device."""
        return Candidates(sent(self.ids, device), None if self.mask is None else sent(self.mask, device))


@dataclass(frozen=True)
class Piece:
    """Consecutive triples of a batch, and the candidates of their chunks."""

    batch: Batch
    drawn: Mapping[Side, Candidates]

    def to(self, device: torch.device) -> "Piece":
        """The same piece on a device."""
        return Piece(self.batch.to(device), {side: part.to(device) for side, part in self.drawn.items()})


#: See `Rows.drop`.
Drop = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rows:
    """The rows of one batch, by the places they take: autograd leads from here to the gathered leaves.

    Attributes:
        entities: of each side, the rows float[b, d] of the entities at that side of the triples.
        relations: of each side that is trained, the relation rows float[x, e] that its examples use.
        candidates: of each side that is trained, the candidate rows float[c, k, d] of its chunks; empty for
            techniques that score against all entities.
        masks: of each side that has one, the mask of its candidates: see `Candidates`.
        every_relation: all rows float[k, e] of the relation table where they are candidates; None otherwise.
        drop: from ids int64[…] and their entity rows float[…, d] to the rows after dropout, for a technique that takes
            rows from the table itself; it leaves them as they are unless there is dropout.
    """

    entities: Mapping[Side, Tensor]
    relations: Mapping[Side, Tensor]
    candidates: Mapping[Side, Tensor]
    masks: Mapping[Side, Tensor]
    every_relation: Tensor | None = None
    drop: Drop = lambda ids, rows: rows


def weighted_mean(values: Mapping[Side, Tensor], batch: Batch) -> Tensor:
    """The mean over all examples of weight times value, of their losses or of their penalties.

    Args:
        values: for every side, the values float[x] of its examples.
        batch: has the weights of the triples. A triple of weight 2 counts as two, one of weight 0 not at all; the
            divisor is the number of examples whatever they weigh, so no triple's share hangs on its neighbours.

    Returns:
        a scalar: of a part of a batch, what it adds to the mean of the whole.
    """
    examples = num_examples(batch, len(values))
    if batch.weights is None:
        return torch.cat(list(values.values())).sum() / examples
    return torch.cat([value * batch.of(side, batch.weights) for side, value in values.items()]).sum() / examples


def num_examples(batch: Batch, sides: int) -> int:
    """How many examples the whole batch has, where so many sides are trained."""
    return batch.total * (sides if batch.examples is None else 1)
