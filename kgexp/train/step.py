"""The training step: the same five lines wherever rows live."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Candidates, Rows
from kgexp.scoring.dropout import Dropout
from kgexp.scoring.losses import Loss
from kgexp.scoring.regularizers import Regularizer
from kgexp.scoring.relation_prediction import RelationPrediction
from kgexp.scoring.technique import ScoringTechnique
from kgexp.sharding.route import Plan, Planner, local_plan
from kgexp.sharding.table import Table


@dataclass(frozen=True)
class Objective:
    """What is minimised: the model's scores, against whom, by which loss, the penalty on the rows, and a second aim."""

    model: Model
    scoring: ScoringTechnique
    loss: Loss
    regularizer: Regularizer | None
    num_relations: int
    seed: int
    auxiliary: RelationPrediction | None = None


@dataclass(frozen=True)
class Work:
    """A step that is ready to be done: all that follows from the batch and not from the rows."""

    batch: Batch
    drawn: Mapping[Side, Candidates]
    entities: "_Places"
    relations: "_Places"
    plan: Plan


def prepare(objective: Objective, num_entities: int, batch: Batch, planner: Planner = local_plan) -> Work:
    """Chooses examples and candidates of a batch, and plans the way to the rows that they need."""
    batch = objective.scoring.choose(batch, objective.seed)
    drawn = objective.scoring.candidates(batch, num_entities, objective.seed)
    entities = _Places.of(_entity_ids(batch, drawn))
    relations = _Places.of(_relation_ids(objective, batch))
    return Work(batch, drawn, entities, relations, planner(entities.ids, relations.ids))


def train_step(objective: Objective, entity: Table, relation: Table, batch: Batch, factor: float = 1.0) -> Tensor:
    """One step of training on one batch, in this process alone: see `run_step`."""
    return run_step(objective, entity, relation, prepare(objective, entity.num_rows, batch), factor)


def run_step(objective: Objective, entity: Table, relation: Table, work: Work, factor: float = 1.0) -> Tensor:
    """One step of training.

    Args:
        objective: what is minimised.
        entity, relation: the tables; their touched rows are updated.
        work: the batch, prepared; of every rank its own part of it.
        factor: multiplies the learning rates.

    Returns:
        What the rank's part adds to the loss of the batch, the auxiliary one included and the penalty not: a scalar
        apart from autograd. It may be NaN: whoever keeps the tables checks.
    """
    batch, drawn, plan = work.batch, work.drawn, work.plan
    entity_rows, relation_rows, rows = _gathered(objective, entity, relation, work)
    dropped = Dropout(objective.model, objective.seed, batch.step).drop(batch, drawn, rows)
    loss = objective.scoring.loss(objective.model, objective.loss, batch, dropped, entity)
    if objective.auxiliary is not None:
        loss = loss + objective.auxiliary.loss(objective.model, batch, dropped, objective.num_relations)
    total = loss
    if objective.regularizer is not None:
        total = loss + objective.regularizer.penalty(objective.model, batch, rows)
    total.backward()
    # Both gradients are on their way before either is waited for.
    of_entities = entity.begin_update(plan.entity, _gradient(entity_rows))
    of_relations = relation.begin_update(plan.relation, _gradient(relation_rows))
    of_entities(factor, batch.step)
    of_relations(factor, batch.step)
    return loss.detach()


def step_loss(objective: Objective, entity: Table, relation: Table, work: Work) -> Tensor:
    """What `run_step` returns, without a step: nothing is dropped and nothing is updated."""
    _, _, rows = _gathered(objective, entity, relation, work)
    loss = objective.scoring.loss(objective.model, objective.loss, work.batch, rows, entity)
    if objective.auxiliary is not None:
        loss = loss + objective.auxiliary.loss(objective.model, work.batch, rows, objective.num_relations)
    return loss


def _gathered(objective: Objective, entity: Table, relation: Table, work: Work) -> tuple[Tensor, Tensor, Rows]:
    """The gathered leaves of both tables, and the same rows where they are wanted."""
    entity_rows = entity.gather(work.plan.entity)
    relation_rows = relation.gather(work.plan.relation)
    rows = _distribute(objective, work.drawn, work.entities.split(entity_rows), work.relations.split(relation_rows))
    return entity_rows, relation_rows, rows


@dataclass(frozen=True)
class _Places:
    """Distinct ids, and where the rows gathered for them are wanted."""

    ids: Tensor  # int64[u], ascending
    index: Tensor  # int64[all places]: row of `ids`
    shapes: list[torch.Size]

    @classmethod
    def of(cls, wanted: Sequence[Tensor]) -> "_Places":
        ids, index = torch.unique(torch.cat([part.reshape(-1) for part in wanted]), return_inverse=True)
        return cls(ids, index, [part.shape for part in wanted])

    def split(self, rows: Tensor) -> list[Tensor]:
        """The rows float[u, d] spread over the places: float[…, d] for each tensor int64[…] that was wanted."""
        parts = rows.index_select(0, self.index).split([shape.numel() for shape in self.shapes])
        return [part.reshape(*shape, rows.shape[1]) for part, shape in zip(parts, self.shapes, strict=True)]


def _entity_ids(batch: Batch, drawn: Mapping[Side, Candidates]) -> list[Tensor]:
    """The entities of every place: heads, tails, then the candidates of each side."""
    return [batch.triples[:, side.column] for side in Side] + [part.ids for part in drawn.values()]


def _relation_ids(objective: Objective, batch: Batch) -> list[Tensor]:
    """The relation rows of the examples of every side that is trained, then all of them if they are candidates."""
    model, m = objective.model, objective.num_relations
    wanted = [model.relation_rows(batch.of(side, batch.triples[:, 1]), side, m) for side in objective.scoring.sides]
    if objective.auxiliary is not None:
        wanted.append(torch.arange(model.num_relation_rows(m), device=batch.triples.device))
    return wanted


def _distribute(
    objective: Objective, drawn: Mapping[Side, Candidates], entities: list[Tensor], relations: list[Tensor]
) -> Rows:
    """The rows under the names that techniques know them by; the inverse of `_entity_ids` and `_relation_ids`."""
    places, sides = iter(entities), objective.scoring.sides
    every = relations.pop() if objective.auxiliary is not None else None
    own = {side: next(places) for side in Side}
    candidates = {side: next(places) for side in drawn}
    masks = {side: part.mask for side, part in drawn.items() if part.mask is not None}
    return Rows(own, dict(zip(sides, relations, strict=True)), candidates, masks, every)


def _gradient(rows: Tensor) -> Tensor:
    """The gradient of a leaf, zero where the loss does not reach it."""
    return torch.zeros_like(rows) if rows.grad is None else rows.grad
