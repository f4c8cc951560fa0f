"""The trainer of a run, from its parts and its tables, with what brings their rows and what others train with it."""

import math

from kgexp.build import build
from kgexp.errors import ConfigError
from kgexp.evaluation.evaluator import Evaluator
from kgexp.scoring.share import ALL
from kgexp.sharding.exchange import ALONE, GroupExchange
from kgexp.sharding.joint_table import JointTable
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.shared_rows import Asynchronous, SharedRows, Synchronous
from kgexp.sharding.table import Table
from kgexp.tracking.tracker import Tracker
from kgexp.train.assembly import Parts
from kgexp.train.averaging import Averaging
from kgexp.train.batches import Batches
from kgexp.train.best import Best
from kgexp.train.calendar import Calendar
from kgexp.train.heldout import HeldOut
from kgexp.train.leasing import Leasing
from kgexp.train.meter import LossMeter
from kgexp.train.plan import Cadence, Plan
from kgexp.train.queries import QueryBatches
from kgexp.train.scheduling import BucketScheduler, Tournament
from kgexp.train.signals import StopSignal
from kgexp.train.stages import Stages
from kgexp.train.together import Together
from kgexp.train.tour import Tour
from kgexp.train.trainer import Save, Trainer
from kgexp.train.visits import VisitBatches

#: Losses that may wait before they are looked at, so that steps need not wait for a GPU or for other ranks.
_PENDING_LOSSES = 64


def trainer_of(
    parts: Parts,
    entity: Table,
    relation: Table,
    evaluator: Evaluator,
    tracker: Tracker,
    stages: Stages,
    save: Save,
    stop: StopSignal,
) -> Trainer:
    """The trainer of the tables, at its first step."""
    config, graph = parts.config, parts.graph
    batches = parts.batches()

    def describe(step: int) -> str:
        h, r, t = parts.batches(ALL)(step).triples[0].tolist()
        names = graph.entities.name(h), graph.relations.name(r), graph.entities.name(t)
        epoch = int(batches.calendar.epoch(step))
        part = step - batches.calendar.steps(epoch)
        return f"epoch {epoch}, batch {part}, which begins with the triple {names}"

    waits = parts.device.type == "cuda" or parts.share.ranks > 1
    together = _together(parts, entity, relation, batches, stop)
    # Trainers that have batches of their own have losses of their own.
    meter = LossMeter(describe, _PENDING_LOSSES if waits else 1, ALONE if together else parts.sharding.exchange)
    tour = None
    if together is None and not isinstance(batches, QueryBatches):
        tour = _tour(parts, entity, relation, batches, meter, tracker)
    schedule = build(config["schedule"], plugins=config["plugins"])
    if not len(graph.valid) and (schedule.learns or config["early_stopping"]["patience"] is not None):
        raise ConfigError(
            f"{graph.name} has no validation triples, which early_stopping.patience and schedule=plateau wait for: "
            "add a valid file, or leave both out."
        )
    plan = Plan.of(config, batches.calendar)
    return Trainer(
        plan=plan,
        objective=parts.objective,
        entity=entity,
        relation=relation,
        batches=batches,
        sharding=parts.sharding,
        schedule=schedule,
        averaging=_averaging(parts, (entity, relation), plan.total, batches.calendar),
        best=Best(**config["early_stopping"]),
        evaluator=evaluator,
        meter=meter,
        tracker=tracker,
        stages=stages,
        save=save,
        validates=parts.validates,
        tour=tour,
        together=together,
        workers=getattr(parts.sharding, "workers", 1),
    )


def _tour(
    parts: Parts, entity: Table, relation: Table, batches: Batches | VisitBatches, meter: LossMeter, tracker: Tracker
) -> Tour | None:
    """What brings the rows of partitions into memory, where there are partitions."""
    sharding = parts.sharding
    if not isinstance(sharding, PartitionedSharding):
        return None
    assert isinstance(entity, PartitionedTable) and isinstance(batches, VisitBatches)
    partitions = sharding.cut(parts.graph.num_entities).parts
    return Tour(entity, batches, meter, tracker, partitions, _held_out(parts, sharding, entity, relation, batches))


def _held_out(
    parts: Parts, sharding: PartitionedSharding, entity: Table, relation: Table, batches: VisitBatches
) -> HeldOut | None:
    if not sharding.holdout:
        return None
    return HeldOut(parts.objective, entity, relation, batches, parts.config["train"]["batch_size"])


def _together(
    parts: Parts, entity: Table, relation: Table, batches: Batches | QueryBatches | VisitBatches, stop: StopSignal
) -> Together | None:
    """What trains passes with other trainers, where there are some."""
    sharding, over, world = parts.sharding, parts.sharding.exchange, parts.world
    if not isinstance(sharding, PartitionedSharding) or not isinstance(over, GroupExchange):
        return None
    assert isinstance(entity, JointTable) and isinstance(batches, VisitBatches)
    pinned, every = sharding.cut(parts.graph.num_entities).pinned, sharding.sync_steps
    tables = [entity.shared_rows(), relation.state_tensors()]
    rows = SharedRows(tables, [optimizer.signed_state for optimizer in parts.optimizers()], parts.dtype)
    scheduler: BucketScheduler
    shared: Synchronous | Asynchronous
    if sharding.scheduler == "tournament":
        scheduler = Tournament(entity, batches, world, every, pinned)
        shared = Synchronous(rows, over)
    else:
        # What a lost trainer has in its memory is lost with it.
        lease = sharding.lease if entity.backing.has_common_files else math.inf
        locks = sharding.locks(world, lease)
        scheduler = Leasing(entity, batches, world, locks, every, pinned, stop, lease)
        shared = Asynchronous(rows, sharding.trainers, world)
    held_out = _held_out(parts, sharding, entity, relation, batches)
    crew = [world.size, sharding.scheduler, list(sharding.slices(parts.graph.num_entities).bounds), every]
    return Together(entity, batches, scheduler, shared, over, world, crew, held_out)


def _averaging(parts: Parts, tables: tuple[Table, ...], total: int, calendar: Calendar) -> Averaging:
    """Of a run of `total` steps. Raises ConfigError where it would never begin."""
    section = parts.config["averaging"]
    cadence, start = Cadence.of(section), section["start"]
    if start is None:
        return Averaging(tables, cadence, None)
    begin = round(start * total)
    if cadence.last(total, calendar) <= begin:
        raise ConfigError(
            f"averaging.start={start} is step {begin} of {total}, after which no average falls due, an epoch being "
            f"{calendar.steps(1)} steps: lower it, or set averaging.every_steps."
        )
    return Averaging(tables, cadence, begin)
