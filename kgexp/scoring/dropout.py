"""Dropout of the rows that a step scores: inverted, number by number, from a hash instead of a generator.

A number is kept with probability 1 - p and then multiplied by 1 / (1 - p) (Srivastava et al., JMLR 2014, inverted).
Which ones are kept is a hash of the seed, the step and:

* for what a triple brings (its head, its tail, a relation row for every side), the side and the triple's position in
  the batch: an entity or relation that occurs in many triples is dropped afresh in each;
* for what many queries are scored against (sampled candidates, the blocks of an all-entity technique, an answer that
  is taken from a block, all relations), the row's number: one mask a step, so an entity is the same one in every block
  and chunk.

So neither the blocks' size nor threads nor who owns which rows change a step.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.lanes import lanes
from kgexp.models.base import Model
from kgexp.randomness import Purpose, key
from kgexp.scoring.batch import Batch, Candidates, Rows

# Sixteen random bits decide about a number.
_LANE = 1 << 16


class Dropout:
    """The dropout of one step.

    Args:
        model: has the probabilities.
        seed: of the run.
        step: number of the step.
    """

    def __init__(self, model: Model, seed: int, step: int) -> None:
        self._model, self._seed, self._step = model, seed, step

    def drop(self, batch: Batch, drawn: Mapping[Side, Candidates], rows: Rows) -> Rows:
        """The rows of the batch with numbers dropped; `drawn` are the candidates whose rows they hold."""
        if not (self._model.entity_dropout or self._model.relation_dropout):
            return rows
        place = torch.arange(batch.first, batch.first + len(batch), device=batch.triples.device)
        entities = {side: self._entities(part, place, side) for side, part in rows.entities.items()}
        relations = {side: self._relations(part, batch.of(side, place), side) for side, part in rows.relations.items()}
        candidates = {side: self.by_id(drawn[side].ids, part) for side, part in rows.candidates.items()}
        every = None if rows.every_relation is None else self._every_relation(rows.every_relation)
        return replace(
            rows, entities=entities, relations=relations, candidates=candidates, every_relation=every, drop=self.by_id
        )

    def by_id(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Entity rows float[…, d] that many queries are scored against, with their ids int64[…]."""
        return dropped(rows, ids, self._model.entity_dropout, key(self._seed, Purpose.ENTITY_DROPOUT, self._step))

    def _entities(self, rows: Tensor, place: Tensor, side: Side) -> Tensor:
        stream = key(self._seed, Purpose.ENTITY_DROPOUT, self._step, side)
        return dropped(rows, place, self._model.entity_dropout, stream)

    def _relations(self, rows: Tensor, place: Tensor, side: Side) -> Tensor:
        stream = key(self._seed, Purpose.RELATION_DROPOUT, self._step, side)
        return dropped(rows, place, self._model.relation_dropout, stream)

    def _every_relation(self, rows: Tensor) -> Tensor:
        stream = key(self._seed, Purpose.RELATION_DROPOUT, self._step)
        return dropped(rows, torch.arange(len(rows), device=rows.device), self._model.relation_dropout, stream)


def dropped(rows: Tensor, counters: Tensor, p: float, stream: int) -> Tensor:
    """Rows float[…, d] with each number dropped with probability p, as the stream has it for counters int64[…].

    The probability is rounded to a multiple of 2⁻¹⁶, below one; the kept numbers are scaled by what it is then.
    """
    least = min(round(p * _LANE), _LANE - 1)
    if not least:
        return rows
    keep = lanes(stream, counters, rows.shape[-1]) >= least - _LANE // 2  # the lanes are signed
    return rows * keep.to(rows.dtype).mul_(_LANE / (_LANE - least))
