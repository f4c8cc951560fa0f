"""How long a run will take, from the speed that was measured and from when it does what."""

from dataclasses import dataclass
from typing import Any

from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.storage.memory import MemoryStorage
from kgexp.tools.calibration import Speed
from kgexp.train.assembly import Parts
from kgexp.train.memory import size
from kgexp.train.plan import Plan


@dataclass(frozen=True)
class Course:
    """What a run does, in numbers.

    Attributes:
        epoch: triples of an epoch, or queries where these are the examples.
        trained: of the whole training.
        epochs: how many.
        validations: how often the validation split is ranked, unless patience runs out.
        valid, test: queries of each time.
        snapshots: checkpoints that stay for good.
    """

    epoch: int
    trained: int
    epochs: float
    validations: int
    valid: int
    test: int
    snapshots: int

    @classmethod
    def of(cls, parts: Parts) -> "Course":
        """That of the run whose objects these are."""
        batches, evaluation = parts.batches(), parts.config["evaluation"]
        calendar = batches.calendar
        plan = Plan.of(parts.config, calendar)
        valid, limit = len(parts.graph.valid), evaluation["max_valid_triples"]
        return cls(
            epoch=batches.triples,
            trained=round(plan.total * batches.triples / calendar.steps(1)),
            epochs=calendar.epoch(plan.total),
            validations=plan.evaluations(calendar) if parts.validates else 0,
            valid=2 * (valid if limit is None else min(valid, limit)) if parts.validates else 0,
            test=2 * len(parts.graph.test) if "test" in evaluation["splits"] else 0,
            snapshots=plan.snapshot.count(plan.total, calendar),
        )

    def seconds(self, parts: Parts, speed: Speed) -> dict[str, float]:
        """Seconds of each part of the run, each rank doing its own."""
        rate = speed.triples_per_second * _trainers(parts)
        n = parts.graph.num_entities
        own = n / _trainers(parts) if _trainers(parts) > 1 else max(parts.sharding.owners(n).sizes())
        return {
            "initialise": own * speed.per_row,
            "epoch": self.epoch / rate,
            "training": self.trained / rate,
            "validations": self.validations * speed.evaluation(self.valid),
            "test": speed.evaluation(self.test),
        }


def assumptions(parts: Parts, speed: Speed) -> list[str]:
    """What the seconds take for granted, a line each."""
    lines, n, ranks, sharding = [], parts.graph.num_entities, parts.sharding.exchange.ranks, parts.sharding
    if isinstance(sharding, PartitionedSharding):
        if ranks > 1:
            lines.append(f"each of {ranks} trainers trains one part in {ranks} of the triples, and waits for no other")
        if moved := _moved(parts, sharding):
            lines.append(f"partitions come into memory while others are trained, {size(moved)} an epoch")
        if sharding.workers > 1:
            lines.append(f"{sharding.workers} workers are as fast as one")
    elif ranks > 1:
        lines.append(f"each of {ranks} ranks trains its part of every batch, and nothing that they send takes time")
    if ranks > 1:
        lines.append("the ranks are on this machine and share its cores; ranking is counted as if one did it alone")
    if speed.rows < n:
        lines.append(f"{speed.rows:,} rows of {n:,} were in memory, over and over")
    return [*lines, "reading the data and writing checkpoints come on top"]


def as_dict(parts: Parts, course: Course, speed: Speed) -> dict[str, Any]:
    """All of it as JSON values."""
    seconds = course.seconds(parts, speed)
    total = sum(seconds.values()) - seconds["epoch"]
    measured = {"steps": speed.steps, "queries": speed.ranked, "rows": speed.rows, "threads": speed.threads}
    return {
        "examples": "queries" if parts.objective.scoring.by_query else "triples",
        "triples_per_second": speed.triples_per_second * _trainers(parts),
        "queries_per_second": 1 / speed.per_query if speed.per_query else None,
        "seconds": seconds | {"total": total},
        "validations": course.validations,
        "measured": measured,
        "assumptions": assumptions(parts, speed),
    }


def _trainers(parts: Parts) -> int:
    """Who train batches of their own at the same time."""
    return parts.sharding.exchange.ranks if isinstance(parts.sharding, PartitionedSharding) else 1


def _moved(parts: Parts, sharding: PartitionedSharding) -> int:
    """Bytes of slices that come into memory in an epoch."""
    row_bytes = parts.estimate(MemoryStorage()).parts["partitions"] // sharding.rows_in_memory(parts.graph.num_entities)
    n = parts.graph.num_entities
    cut, itinerary = sharding.cut(n), sharding.itinerary(n, parts.config["seed"])
    if cut.buffer >= sum(cut.coming):
        return 0
    loads = sum(itinerary.loads(number) for number in range(sharding.chunks))
    return loads * cut.slices.largest_but(cut.pinned) * row_bytes
