"""Where the time of a step goes, and what it moves: seen in steps that are not those that are timed."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from kgexp.data.sides import Side
from kgexp.sharding.rows import WEIGHT
from kgexp.sharding.table import Table
from kgexp.tools.benchmarks.steps import Steps
from kgexp.tools.measuring import now
from kgexp.train.step import Objective, Work

#: Stages of a step in their order; the third one is what is left: the loss with its backward pass.
STAGES = ("prepare", "gather", "loss", "update")


def by_stage(steps: Steps, numbers: range, device: torch.device) -> dict[str, float]:
    """Milliseconds of each stage of a step, a mean; nothing is prepared meanwhile. Every rank calls it."""
    spent: dict[str, float] = defaultdict(float)
    with _watched(spent, device, steps.entity, steps.relation):
        for number in numbers:
            begin = now(device)
            work = steps.prepare(number)
            prepared = now(device)
            steps.run(work)
            spent["prepare"] += prepared - begin
            spent["run"] += now(device) - prepared
    spent["loss"] = max(0.0, spent.pop("run") - spent["gather"] - spent["update"])
    return {stage: 1000 * spent[stage] / len(numbers) for stage in STAGES}


def examples(objective: Objective, work: Work) -> dict[Side, int]:
    """Examples of each side in this rank's part of a step: queries that are scored."""
    return {side: len(work.batch.of(side, work.batch.triples[:, 1])) for side in objective.scoring.sides}


def candidates(objective: Objective, work: Work, entity: Table) -> int:
    """Scores of this rank's examples, those of their own answers apart."""
    every = entity.num_candidates  # where none are drawn
    of = {side: work.drawn[side].ids.shape[-1] if work.drawn else every for side in objective.scoring.sides}
    return sum(count * of[side] for side, count in examples(objective, work).items())


def moved(work: Work, entity: Table, relation: Table) -> dict[str, int]:
    """Bytes of a step: of the rows that are gathered, and of those that are read and written back with their optimizer
    state; of a rank's entities all, where it scores its examples against all."""
    gathered = updated = 0
    for table, ids in ((entity, work.plan.entity.ids), (relation, work.plan.relation.ids)):
        rows = len(ids) if table is relation or work.drawn else table.local_rows
        kept = {name: t.nbytes // max(1, len(t)) for name, t in table.state_tensors().items()}
        gathered += rows * kept[WEIGHT]
        updated += 2 * rows * sum(kept.values())
    return {"gathered": gathered, "updated": updated, "total": gathered + updated}


@contextmanager
def _watched(spent: dict[str, float], device: torch.device, *tables: Table) -> Iterator[None]:
    """Inside, the tables add the seconds of their operations to `spent`."""

    def timed(stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any) -> Any:
            begin = now(device)
            result = work(*given)
            end = now(device)
            spent[stage] += end - begin
            # The rest of an update is a function of its own.
            return timed(stage, result) if callable(result) else result

        return watched

    def watch(table: Table, stages: Mapping[str, str]) -> None:
        for method, stage in stages.items():
            setattr(table, method, timed(stage, getattr(table, method)))  # hides the method of its class

    try:
        for table in tables:
            watch(table, {"gather": "gather", "begin_update": "update"})
        yield
    finally:
        for table in tables:
            for method in ("gather", "begin_update"):
                delattr(table, method)
