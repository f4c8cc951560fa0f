"""Negative sampling: every triple against a few random entities, shared by the triples of a chunk."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kgexp.data.graph import Graph
from kgexp.data.known import TRAIN, KnownTriples
from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.randomness import Float64, Int64, Purpose, key, uniform
from kgexp.scoring.batch import Batch, Candidates, Piece, Rows, num_examples
from kgexp.scoring.loss import Loss
from kgexp.scoring.masks import Bool, equal_mask, known_mask
from kgexp.scoring.pool import Pool
from kgexp.scoring.sampled import Examples, rows_at_once, sampled_loss
from kgexp.scoring.samplers import Degree, Sampler, Uniform
from kgexp.scoring.technique import Extent, ScoringTechnique
from kgexp.sharding.table import Table
from kgexp.team import cut

#: Candidates that a triple of a piece may bring: of its own, before the piece is made smaller, and of those that its
#: chunk shares, before it is made larger.
_OWN = 4

PURPOSE = {Side.HEAD: Purpose.HEAD_NEGATIVES, Side.TAIL: Purpose.TAIL_NEGATIVES}


class NegativeSampling(ScoringTechnique):
    """Negatives drawn with replacement, the same for all examples of a chunk.

    Sharing makes the scores of a chunk one matrix product, which is what makes sampling fast. Against all entities
    there is `OneVsAll`.

    Args:
        negatives: how many a side.
        chunk_size: examples that share their negatives; 1 draws negatives for every example by itself.
        sides: see `ScoringTechnique`; or `bernoulli`, one query a triple: the head query with probability
            tph / (tph + hpt), of the relation's mean tails per head and heads per tail (Wang et al., AAAI 2014).
        degree_exponent, uniform_share: see `samplers.Degree`; exponent 0 draws uniformly.
        mask: which drawn candidates take no part: `none`; those `equal` to the answer; or those `known`, which
            complete the query to a triple of train.
    """

    def __init__(
        self,
        negatives: int = 150,
        chunk_size: int = 1000,
        sides: str = "both",
        degree_exponent: float = 0.0,
        uniform_share: float = 0.0,
        mask: str = "none",
    ) -> None:
        self.bernoulli = sides == "bernoulli"
        super().__init__("both" if self.bernoulli else sides)
        self.negatives = negatives
        self.chunk_size = chunk_size
        self.degree_exponent = degree_exponent
        self.uniform_share = uniform_share
        self.mask = mask
        self._sampler: Sampler = Uniform()
        self._known: KnownTriples | None = None
        self._head_shares: Float64 | None = None

    def prepare(self, graph: Graph) -> None:
        """See `ScoringTechnique.prepare`."""
        triples = graph.train.triples
        if self.degree_exponent:
            self._sampler = Degree(triples, graph.num_entities, self.degree_exponent, self.uniform_share)
        if self.bernoulli:
            of = graph.known.relation_counts(TRAIN)
            # tph = N / heads and hpt = N / tails; a relation that train lacks is never asked for.
            self._head_shares = of.tails / np.maximum(of.heads + of.tails, 1)
        self._known = graph.known

    def choose(self, batch: Batch, seed: int) -> Batch:
        """See `ScoringTechnique.choose`."""
        if not self.bernoulli:
            return batch
        assert self._head_shares is not None, "prepare comes first"
        shares = self._head_shares
        stream = key(seed, Purpose.SIDES, batch.step)

        def heads(relations: Tensor, first: int) -> Tensor:
            drawn = uniform(stream, np.arange(first, first + len(relations)))
            return torch.from_numpy(drawn < shares[relations.numpy()])

        earlier = int(heads(batch.relations_before(), 0).sum())
        head = heads(batch.triples[:, 1], batch.first)
        return replace(
            batch,
            examples={Side.TAIL: (~head).nonzero().squeeze(-1), Side.HEAD: head.nonzero().squeeze(-1)},
            examples_before={Side.TAIL: batch.first - earlier, Side.HEAD: earlier},
        )

    def candidates(self, batch: Batch, num_entities: int, seed: int) -> Mapping[Side, Candidates]:
        """See `ScoringTechnique.candidates`."""
        drawn = {}
        for side in self.sides:
            triples, before = batch.of(side, batch.triples), batch.before(side)
            chunks = range(before // self.chunk_size, -(-(before + len(triples)) // self.chunk_size))
            stream, pool = key(seed, PURPOSE[side], batch.step), batch.pool(side, num_entities)
            ids = self._draw(stream, chunks if len(triples) else range(0), pool)
            mask = None
            if self.mask != "none":
                chunk = (before % self.chunk_size + np.arange(len(triples))) // self.chunk_size
                mask = self._mask(side, triples.numpy(), ids, chunk)
            drawn[side] = Candidates(torch.from_numpy(ids), None if mask is None else torch.from_numpy(mask))
        return drawn

    @property
    def kept_bytes(self) -> int:
        """See `ScoringTechnique.kept_bytes`."""
        return self._sampler.kept_bytes

    def pieces(self, batch: Batch, drawn: Mapping[Side, Candidates], size: int | None) -> list[Piece]:
        """See `ScoringTechnique.pieces`: none has parts of two chunks unless it has all of one of them."""
        if size is None:
            return [Piece(batch, drawn)]
        offset, pieces, size = batch.first % self.chunk_size, [], self._piece(size, self.negatives)
        whole = max(size // self.chunk_size, 1) * self.chunk_size  # triples of a piece, or several pieces of one chunk
        for start in range(-offset, len(batch), whole):
            chunks = range(max(start, 0), min(start + whole, len(batch)))
            for part in cut(len(chunks), size):
                piece = batch.piece(slice(chunks.start + part.start, chunks.start + part.stop))
                pieces.append(Piece(piece, {side: self._of_piece(side, batch, piece, drawn[side]) for side in drawn}))
        return pieces or [Piece(batch, drawn)]

    def loss(self, model: Model, loss: Loss, batch: Batch, rows: Rows, entity: Table) -> Tensor:
        """See `ScoringTechnique.loss`."""
        sides = [self._side(model, loss, side, batch, rows) for side in self.sides]
        return torch.stack(sides).sum()

    def placed_entities(self, extent: Extent) -> int:
        """See `ScoringTechnique.placed_entities`."""
        # A part that begins within a chunk ends in one more; every piece of a chunk has its candidates.
        chunks = min(-(-extent.batch // self.chunk_size) + 1, -(-extent.whole // self.chunk_size))
        pieces = chunks
        if extent.piece is not None:
            size = self._piece(extent.piece, self._drawn(extent))
            pieces = chunks * max(1, -(-min(self.chunk_size, extent.batch) // size))
            if self.bernoulli:  # pieces are of triples, and chunks of the examples of a side
                pieces += chunks
        return 2 * extent.batch + len(self.sides) * pieces * self._drawn(extent)

    def working_numbers(self, extent: Extent) -> int:
        """See `ScoringTechnique.working_numbers`."""
        sides, dim, piece, k = len(self.sides), extent.dim, extent.batch, self._drawn(extent)
        scores, at_once = piece * k, 1
        if extent.piece is not None:
            piece = self._piece(extent.piece, k)
            scores, at_once = min(piece, rows_at_once(k)) * k, min(extent.threads, -(-extent.batch // piece))
        rows, distinct = self.placed_entities(extent), self._distinct(extent)
        # Rows: those gathered, the gradients of all places, and their sums; of the relations the last two.
        kept = (2 * distinct + rows + 2 * sides * extent.batch) * dim
        # Of the pieces under way: rows and gradients of their places, queries and what they are made of, scores.
        chunks = max(1, piece // self.chunk_size)
        placed = (2 + sides) * piece + sides * chunks * k
        masks = 0 if self.mask == "none" else sides * extent.batch * k // 4
        return kept + at_once * ((2 * placed + 6 * piece) * dim + 4 * scores) + masks

    def _piece(self, size: int, k: int) -> int:
        """Triples of a piece: fewer where they bring many candidates of their own, more where they share many."""
        return max(1, size * _OWN // max(_OWN, k // self.chunk_size), min(self.chunk_size, k // _OWN))

    def _drawn(self, extent: Extent) -> int:
        """The candidates of a chunk."""
        return self.negatives

    def _distinct(self, extent: Extent) -> int:
        """The most different entities that a batch has in its places."""
        return min(extent.entities, self.placed_entities(replace(extent, piece=None)))

    def _draw(self, stream: int, chunks: range, pool: Pool) -> Int64:
        """The ids int64[c, k] of the candidates of chunks, by their numbers in the whole batch."""
        counters = np.arange(chunks.start * self.negatives, chunks.stop * self.negatives)
        return self._sampler.draw(stream, counters.reshape(-1, self.negatives), pool)

    def _mask(self, side: Side, triples: Int64, ids: Int64, chunk: Int64) -> Bool:
        """See `Candidates.mask`; `chunk` int64[x] has the row of `ids` that each example uses."""
        if self.mask == "equal":
            return equal_mask(side, triples, ids, chunk)
        assert self._known is not None, "prepare comes first"
        return known_mask(side, triples, ids, chunk, self._known)

    def _of_piece(self, side: Side, batch: Batch, piece: Batch, drawn: Candidates) -> Candidates:
        """Of a batch's candidates, those of a piece of it."""
        before, examples = piece.before(side), len(piece.of(side, piece.triples))
        behind, first = before - batch.before(side), batch.before(side) // self.chunk_size
        last = -(-(before + examples) // self.chunk_size) if examples else before // self.chunk_size
        mask = None if drawn.mask is None else drawn.mask[behind : behind + examples]
        return Candidates(drawn.ids[before // self.chunk_size - first : last - first], mask)

    def _side(self, model: Model, loss: Loss, side: Side, batch: Batch, rows: Rows) -> Tensor:
        """What one side's examples add to the loss."""
        share: Tensor | float = 1 / num_examples(batch, len(self.sides))
        if batch.weights is not None:
            share = batch.of(side, batch.weights) * share
        offset = batch.before(side) % self.chunk_size
        examples = Examples(model, loss, side, self.chunk_size, offset, rows.masks.get(side), share)
        own, answers = (batch.of(side, rows.entities[which]) for which in (side.other, side))
        return sampled_loss(own, rows.relations[side], answers, rows.candidates[side], examples)
