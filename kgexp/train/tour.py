"""Partitioned training on its way: rows come and go where a visit begins; each visit and pass leaves its figures."""

import math
import time
from typing import Any

from kgexp.sharding.orders import loads
from kgexp.sharding.partitioned import PartitionedTable
from kgexp.tracking.tracker import Tracker
from kgexp.train.heldout import HeldOut
from kgexp.train.memory import size
from kgexp.train.meter import LossMeter
from kgexp.train.visits import Leg, VisitBatches


class Tour:
    """Brings the rows of every step's visit into memory before the step.

    Args:
        table: whose rows these are.
        batches: know the visits.
        meter: has the losses.
        tracker: gets the figures of visits, and a line about each pass.
        parts: slices of a partition, in which loads are told.
        held_out: gives the loss of what visits do not train; None where nothing is held out.
    """

    def __init__(
        self,
        table: PartitionedTable,
        batches: VisitBatches,
        meter: LossMeter,
        tracker: Tracker,
        parts: int,
        held_out: HeldOut | None = None,
    ) -> None:
        self._table, self._batches, self._meter, self._tracker, self._parts = table, batches, meter, tracker, parts
        self._held_out, self._before, self._planned = held_out, math.nan, math.nan
        self._leg: Leg | None = None
        self._share = 1.0  # of the steps of the visit, those that come after the arrival
        self._visit, self._pass = self._counters(), self._counters()

    def arrive(self, step: int) -> None:
        """Before a step is prepared: its rows have to be there."""
        leg = self._batches.leg(step)
        if self._leg == leg:
            return
        self._visit = self._counters()
        if self._leg is None or self._leg.number != leg.number:
            self._pass = self._visit
            legs = self._batches.pass_legs(leg.number)[leg.index :]
            self._planned = loads([leg.visit for leg in legs], self._table.buffer.resident) / self._parts
        self._leg, self._share = leg, (leg.stop - step) / (leg.stop - leg.start)
        self._table.enter(leg.visit, self._batches.next_resident(leg))
        if self._held_out is not None and step == leg.start:
            self._before = self._held_out.loss(leg)

    def state_dict(self) -> dict[str, float]:
        """What a row about the visit under way will say of its beginning, as JSON values."""
        return {"before": self._before}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Takes back a `state_dict`."""
        self._before = state["before"]

    @property
    def stop(self) -> int:
        """One past the last step of the visit."""
        assert self._leg is not None, "arrive first"
        return self._leg.stop

    def depart(self, step: int) -> dict[str, float]:
        """After a step, so many having been trained: the figures of the visit if it ended, to be logged."""
        leg = self._leg
        if leg is None or step != leg.stop:
            return {}
        now = self._counters()
        spent = {name: now[name] - self._visit[name] for name in now}
        row = {
            "visit/loss": self._meter.mean("visit"),
            "visit/triples": float(leg.triples),
            "visit/triples_per_second": self._share * leg.triples / max(spent["seconds"], 1e-9),
            "visit/waited": spent["waited"],
            "visit/loads": spent["loads"] / self._parts,
            "visit/pass": float(leg.number),
        }
        if self._held_out is not None:
            row |= {"visit/held_out_loss_before": self._before, "visit/held_out_loss": self._held_out.loss(leg)}
        if leg.last:
            spent = {name: now[name] - self._pass[name] for name in now}
            row |= {"pass/loads": spent["loads"] / self._parts, "pass/loads_planned": self._planned}
            row["pass/waited"] = spent["waited"] / max(spent["seconds"], 1e-9)
            self._tracker.say(
                f"pass {leg.number + 1}: {spent['loads'] / self._parts:,.4g} loads of partitions "
                f"({self._planned:,.4g} planned), "
                f"{size(int(spent['read']))} read and {size(int(spent['written']))} written, "
                f"{100 * row['pass/waited']:.1f} % of the time waiting for storage"
            )
        return row

    def _counters(self) -> dict[str, Any]:
        """What is counted since the start."""
        buffer, backing = self._table.buffer, self._table.backing
        return {
            "seconds": time.perf_counter(),
            "waited": buffer.waited,
            "loads": buffer.loads,
            "read": backing.read_bytes,
            "written": backing.written_bytes,
        }
