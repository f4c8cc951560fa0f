"""The training step: the same five lines wherever rows live.

A batch is computed piece by piece, each small enough for the cache and by one thread of the table's team: the piece
takes its rows out of the gathered ones, and leaves the gradient of every place where it has put them. What the places
of a row have gathered is added up in the order of the places, so neither threads nor chance change a bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.base import Model
from kgexp.scoring.batch import Batch, Candidates, Piece, Rows
from kgexp.scoring.dropout import Dropout
from kgexp.scoring.loss import Loss
from kgexp.scoring.regularizers import Regularizer
from kgexp.scoring.relation_prediction import RelationPrediction
from kgexp.scoring.technique import ScoringTechnique, piece_size
from kgexp.sharding.route import Plan, Planner, local_plan
from kgexp.sharding.table import Table
from kgexp.train.places import Places

_HOST = torch.device("cpu")


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
    """A step that is ready to be done: all that follows from the batch and not from the rows.

    The batch and its candidates `drawn` are on the host, everything else is where the rows are.
    """

    batch: Batch
    drawn: Mapping[Side, Candidates]
    pieces: Sequence[Piece]
    entities: Places
    relations: Places
    plan: Plan


def prepare(
    objective: Objective,
    num_entities: int,
    batch: Batch,
    planner: Planner = local_plan,
    threads: int = 1,
    device: torch.device = _HOST,
) -> Work:
    """Chooses examples and candidates of a batch, and plans the way to the rows that they need; cuts it for threads.

    All of it is done on the host, and sent where the rows are, `device`, in the end: a GPU is not waited for.
    """
    batch = objective.scoring.choose(batch, objective.seed)
    drawn = objective.scoring.candidates(batch, num_entities, objective.seed)
    size = piece_size(len(batch), objective.model.dim, threads, device)
    if objective.auxiliary is not None:  # every piece would have all relations among its places
        size = None
    pieces = objective.scoring.pieces(batch, drawn, size)
    entities = Places.of([_entity_ids(piece) for piece in pieces])
    relations = Places.of([_relation_ids(objective, piece.batch) for piece in pieces])
    plan = planner(entities.ids, relations.ids)
    there = [piece.to(device) for piece in pieces] if device.type != "cpu" else pieces
    return Work(batch, drawn, there, entities.to(device), relations.to(device), plan.to(device))


def train_step(objective: Objective, entity: Table, relation: Table, batch: Batch, factor: float = 1.0) -> Tensor:
    """One step of training on one batch, in this process alone: see `run_step`."""
    work = prepare(objective, entity.num_rows, batch, threads=entity.team.threads, device=entity.device)
    return run_step(objective, entity, relation, work, factor)


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
    plan, step = work.plan, work.batch.step
    rows = entity.gather(plan.entity), relation.gather(plan.relation)
    by_place = work.entities.room(rows[0]), work.relations.room(rows[1])

    def learn(number: int) -> Tensor:
        piece = work.pieces[number]
        of_entities, of_relations = _placed(work, number, rows, learns=True)
        placed = _named(objective, piece, of_entities, of_relations)
        dropped = Dropout(objective.model, objective.seed, step).drop(piece.batch, piece.drawn, placed)
        loss = _loss(objective, piece.batch, dropped, entity)
        total = loss
        if objective.regularizer is not None:
            total = loss + objective.regularizer.penalty(objective.model, piece.batch, placed)
        gradients = _gradients(total, of_entities + of_relations)
        work.entities.leave(number, gradients[: len(of_entities)], by_place[0])
        work.relations.leave(number, gradients[len(of_entities) :], by_place[1])
        return loss.detach()

    losses = entity.team.map(learn, range(len(work.pieces)))
    # Both gradients are on their way before either is waited for.
    of_entities = entity.begin_update(plan.entity, work.entities.total(by_place[0], entity.team))
    of_relations = relation.begin_update(plan.relation, work.relations.total(by_place[1], entity.team))
    of_entities(factor, step)
    of_relations(factor, step)
    return torch.stack(losses).sum()


@torch.no_grad()
def step_loss(objective: Objective, entity: Table, relation: Table, work: Work) -> Tensor:
    """What `run_step` returns, without a step: nothing is dropped and nothing is updated."""
    rows = entity.gather(work.plan.entity), relation.gather(work.plan.relation)

    def loss(number: int) -> Tensor:
        piece = work.pieces[number]
        return _loss(objective, piece.batch, _named(objective, piece, *_placed(work, number, rows)), entity)

    return torch.stack(entity.team.map(loss, range(len(work.pieces)))).sum()


def _loss(objective: Objective, batch: Batch, rows: Rows, entity: Table) -> Tensor:
    loss = objective.scoring.loss(objective.model, objective.loss, batch, rows, entity)
    if objective.auxiliary is not None:
        loss = loss + objective.auxiliary.loss(objective.model, batch, rows, objective.num_relations)
    return loss


def _gradients(total: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Zero where the loss does not reach a leaf."""
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]


def _placed(
    work: Work, number: int, rows: tuple[Tensor, Tensor], learns: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """The rows of a piece at every place, of both tables."""
    places = (work.entities, work.relations)
    of_entities, of_relations = (
        [part.requires_grad_(learns) for part in place.put(number, own.detach())]
        for place, own in zip(places, rows, strict=True)
    )
    return of_entities, of_relations


def _entity_ids(piece: Piece) -> list[Tensor]:
    """The entities of every place: heads, tails, then the candidates of each side."""
    return [piece.batch.triples[:, side.column] for side in Side] + [part.ids for part in piece.drawn.values()]


def _relation_ids(objective: Objective, batch: Batch) -> list[Tensor]:
    """The relation rows of the examples of every side that is trained, then all of them if they are candidates."""
    model, m = objective.model, objective.num_relations
    wanted = [model.relation_rows(batch.of(side, batch.triples[:, 1]), side, m) for side in objective.scoring.sides]
    if objective.auxiliary is not None:
        wanted.append(torch.arange(model.num_relation_rows(m), device=batch.triples.device))
    return wanted


def _named(objective: Objective, piece: Piece, entities: Sequence[Tensor], relations: Sequence[Tensor]) -> Rows:
    """The rows under the names that techniques know them by; the inverse of `_entity_ids` and `_relation_ids`."""
    places, sides = iter(entities), objective.scoring.sides
    own = {side: next(places) for side in Side}
    candidates = {side: next(places) for side in piece.drawn}
    masks = {side: part.mask for side, part in piece.drawn.items() if part.mask is not None}
    every = relations[-1] if objective.auxiliary is not None else None
    return Rows(own, dict(zip(sides, relations, strict=False)), candidates, masks, every)
