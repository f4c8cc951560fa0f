"""The loss of triples that are never trained, visit by visit: whether training a bucket helps what it has not seen."""

import math
from dataclasses import dataclass

import torch

from kgexp.sharding.table import Table
from kgexp.train.step import Objective, prepare, step_loss
from kgexp.train.visits import Leg, VisitBatches


@dataclass(frozen=True)
class HeldOut:
    """Scores what visits hold out, against the candidates that their training has.

    Attributes:
        objective: what is minimised; without its penalty.
        entity, relation: the tables, the rows of the visit in memory.
        batches: has the triples.
        batch_size: triples scored at once.
    """

    objective: Objective
    entity: Table
    relation: Table
    batches: VisitBatches
    batch_size: int

    def loss(self, leg: Leg) -> float:
        """The mean over the triples of a visit that are held out; NaN where there are none.

        Candidates are drawn for the place of a batch in the visit, so they are the same each time.
        """
        total, triples = self.sums(leg)
        return total / triples if triples else math.nan

    @torch.no_grad()
    def sums(self, leg: Leg) -> tuple[float, int]:
        """The sum over them, and how many these are."""
        total, triples = 0.0, 0
        for batch in self.batches.held_out(leg, self.batch_size):
            entity = self.entity
            work = prepare(self.objective, entity.num_rows, batch, threads=entity.team.threads, device=entity.device)
            total += float(step_loss(self.objective, self.entity, self.relation, work)) * len(batch)
            triples += len(batch)
        return total, triples
