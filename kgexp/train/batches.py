"""The batches of a run: step `i` is always the same triples, whoever asks and in whatever order.

An epoch's order is a seeded permutation computed position by position, so nothing the size of the graph is
shuffled or stored; it is computed for a few thousand positions at a time, which is what makes it cheap.

Where entities have types, all triples of a batch are of one kind, so that its candidates have the types of its
entities. Then the triples' positions are kept, kind by kind: 4 bytes each (8 from 2^32 triples on).
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgexp.data.graph import Split
from kgexp.data.kinds import Kinds
from kgexp.data.rowfile import pieces
from kgexp.data.sides import Side
from kgexp.randomness import Float64, Int64, Permutation, Purpose, key
from kgexp.scoring.batch import Batch
from kgexp.scoring.pool import Pool
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
        dtype: of the weights in the batches.
        relation_weights: float64[m], which multiply the triples' own weights; None if all are 1.
        share: the part of every batch that is wanted.
        kinds: of the triples; None where entities have no types.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        dtype: torch.dtype,
        relation_weights: Float64 | None = None,
        share: Share = ALL,
        kinds: Kinds | None = None,
    ) -> None:
        self._split = split
        self._share = share
        self._relation_weights = relation_weights
        self._dtype = dtype
        self.triples = len(split.triples)
        self._kinds, self._places, sizes = kinds, None, [self.triples]
        if kinds is not None and len(kinds) > 1:
            self._places, sizes = by_kind(split, kinds)
        self._order = Order(sizes, batch_size, seed, share)
        self.calendar = Regular(self._order.steps)

    def __call__(self, step: int) -> Batch:
        """The batch of `step`, counted from 0 over all epochs."""
        epoch, part = divmod(step, self._order.steps)
        piece = self._order(epoch, part)
        chosen = self._at(piece.elements)
        triples = torch.from_numpy(self._split.triples[chosen].astype(np.int64))

        def relations_before() -> Tensor:
            before = self._split.triples[self._at(self._order.before(epoch, part)), 1]
            return torch.from_numpy(before.astype(np.int64))

        return Batch(
            step,
            triples,
            self._weights(chosen),
            share=self._share,
            whole=piece.whole,
            relations_before=relations_before,
            pools=None if self._kinds is None else pools(self._kinds, piece.group),
        )

    def _at(self, elements: Int64) -> Int64:
        """The positions in the split of elements of the order."""
        return elements if self._places is None else self._places[elements].astype(np.int64)

    def _weights(self, chosen: Int64) -> Tensor | None:
        """The weights of triples by their position: their own times their relation's."""
        weights = None if self._split.weights is None else self._split.weights[chosen]
        if self._relation_weights is not None:
            of_relations = self._relation_weights[self._split.triples[chosen, 1]]
            weights = of_relations if weights is None else weights * of_relations
        return None if weights is None else torch.from_numpy(weights).to(self._dtype)


def pools(kinds: Kinds, kind: int) -> dict[Side, Pool]:
    """Of each side, the entities of the type that a kind has there."""
    return {side: Pool.of([kinds.ids(kind, side)]) for side in Side}


def by_kind(split: Split, kinds: Kinds) -> tuple[npt.NDArray[np.unsignedinteger], list[int]]:
    """The positions uint[N] of a split's triples sorted by kind, in their order within a kind; and the kinds' sizes."""
    sizes = np.zeros(len(kinds), np.int64)
    for piece in pieces(split.triples):
        sizes += np.bincount(kinds.of_relations[piece[:, 1]], minlength=len(kinds))
    ends, at = np.cumsum(sizes) - sizes, 0
    places: npt.NDArray[np.unsignedinteger] = np.empty(len(split), np.uint32 if len(split) < 2**32 else np.uint64)
    for piece in pieces(split.triples):
        kind = kinds.of_relations[piece[:, 1]]
        order = np.argsort(kind, kind="stable")
        counts = np.bincount(kind, minlength=len(kinds))
        starts = np.cumsum(counts) - counts
        places[np.repeat(ends - starts, counts) + np.arange(len(piece))] = at + order
        ends, at = ends + counts, at + len(piece)
    return places, sizes.tolist()


class Piece(NamedTuple):
    """The share of a batch.

    Attributes:
        elements: int64[x].
        group: that all of the batch are of.
        whole: how many elements the whole batch has.
    """

    elements: Int64
    group: int
    whole: int


class Order:
    """The order of every epoch, cut into batches: a seeded permutation of each group of elements.

    A batch holds elements of one group, and the batches of all groups come in a seeded order.

    Args:
        sizes: elements of each group, which are numbered group by group.
        batch_size: elements of a batch; the last one of a group may be smaller.
        seed: of the run.
        share: the part of every batch that is wanted; nothing else of it is computed.
        which: tells several orders of an epoch apart.
    """

    def __init__(
        self, sizes: Sequence[int], batch_size: int, seed: int, share: Share = ALL, which: tuple[int, ...] = ()
    ) -> None:
        self._groups = np.flatnonzero(sizes).tolist()  # whether there are empty ones changes nothing
        self._sizes = [int(sizes[group]) for group in self._groups]
        self._firsts = [0, *np.cumsum(self._sizes).tolist()]  # element of each group
        self._begins = [0, *np.cumsum([-(-size // batch_size) for size in self._sizes]).tolist()]  # batch of each
        self._batch_size, self._seed, self._share, self._which = batch_size, seed, share, which
        self.steps: int = self._begins[-1]
        self._epoch, self._parts = -1, range(0)  # which pieces are computed
        self._pieces: list[Piece] = []

    def __call__(self, epoch: int, part: int) -> Piece:
        """The share of batch `part` of an epoch."""
        if epoch != self._epoch or part not in self._parts:
            parts = range(part, min(part + max(_POSITIONS * self._share.ranks // self._batch_size, 1), self.steps))
            self._epoch, self._parts, self._pieces = epoch, parts, self._compute(epoch, parts)
        return self._pieces[part - self._parts.start]

    def before(self, epoch: int, part: int) -> Int64:
        """The elements of batch `part` that come before the share."""
        ((group, positions),) = self._cut(epoch, range(part, part + 1))
        return self._elements(epoch, group, [positions[: self._share.of(len(positions))[0]]])[0]

    def _compute(self, epoch: int, parts: range) -> list[Piece]:
        cuts = self._cut(epoch, parts)
        shares = [positions[slice(*self._share.of(len(positions)))] for _, positions in cuts]
        elements: dict[int, Int64] = {}
        for group in {group for group, _ in cuts}:
            mine = [i for i, cut in enumerate(cuts) if cut[0] == group]
            elements.update(zip(mine, self._elements(epoch, group, [shares[i] for i in mine]), strict=True))
        return [Piece(elements[i], self._groups[group], len(whole)) for i, (group, whole) in enumerate(cuts)]

    def _cut(self, epoch: int, parts: range) -> list[tuple[int, range]]:
        """Of whole batches, which of the groups with elements they are of, and the positions in its permutation."""
        numbers = list(parts)
        if len(self._sizes) > 1:
            numbers = Permutation(self.steps, key(self._stream(epoch), 0))(numbers).tolist()
        cuts = []
        for number in numbers:
            group = bisect_right(self._begins, number) - 1
            first = (number - self._begins[group]) * self._batch_size
            cuts.append((group, range(first, min(first + self._batch_size, self._sizes[group]))))
        return cuts

    def _elements(self, epoch: int, group: int, spans: Sequence[range]) -> list[Int64]:
        """The elements at ranges of positions in the permutation of a group."""
        stream = self._stream(epoch) if len(self._sizes) == 1 else key(self._stream(epoch), 1 + group)
        positions = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        elements = self._firsts[group] + Permutation(self._sizes[group], stream)(positions)
        return np.split(elements, np.cumsum([len(span) for span in spans])[:-1])

    def _stream(self, epoch: int) -> int:
        return key(self._seed, Purpose.ORDER, epoch, *self._which)
