"""What row-wise sharding would send, and what a rank would hold: `kgexp.tools.plan … --ranks 2,4,8`.

No rank is started: which rows each of them wants follows from the batches and the candidates of the run's first steps,
and who owns them from their numbers. `--json` prints every rank's figures; the table has the mean over ranks:

* rows a rank: that it owns; memory a rank: the bound that a run prints before it starts;
* asked: distinct rows that a rank's part of a step wants, and how many of these are remote, that is, of other ranks;
* one by one: the rows that it would want if each place asked for its own and negatives were not shared: head and tail
  of the b triples, and each of k negatives of x examples beside its kept entity, 2b + 2xk; a system that looks up
  triples without merging their ids, with k negatives of its own for each example, sends for so many;
* MB out: what a rank sends a step, entity rows to those who ask and gradients home (ids and relations add little);
* busiest: rows that the busiest rank serves to others, over the mean of all ranks, in the mean over steps.

Techniques that score against all entities ask for the rows of the batch's triples only. They send queries besides:
every rank gets those of all others and sends their gradients back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kgexp.build import build
from kgexp.scoring.share import Share
from kgexp.tools.columns import aligned
from kgexp.train.assembly import Parts
from kgexp.train.memory import size
from kgexp.train.step import Work, prepare

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """What ranks would send in some steps.

    Attributes:
        requests: int64[steps, w, w], of each step the distinct entity rows that a rank wants of each owner.
        one_by_one: int64[steps, w], the rows that a rank would want without shared negatives and merged ids.
        queries: int64[steps, w], query rows of a rank that every other one gets; zero where candidates are drawn.
    """

    requests: Counts
    one_by_one: Counts
    queries: Counts

    @property
    def asked(self) -> Counts:
        """int64[steps, w]: distinct rows that a rank wants."""
        asked: Counts = self.requests.sum(axis=2)
        return asked

    @property
    def own(self) -> Counts:
        """int64[steps, w]: of these, its own."""
        return self.requests.diagonal(axis1=1, axis2=2)

    @property
    def remote(self) -> Counts:
        """int64[steps, w]: the others."""
        return self.asked - self.own

    @property
    def served(self) -> Counts:
        """int64[steps, w]: rows that a rank sends to others."""
        served: Counts = self.requests.sum(axis=1) - self.own
        return served

    @property
    def query_rows(self) -> Counts:
        """int64[steps, w]: query rows that a rank gets of others."""
        of_others: Counts = self.queries.sum(axis=1, keepdims=True) - self.queries
        return of_others

    @property
    def busiest(self) -> float:
        """Served rows of the busiest rank over the mean, in the mean over steps; 1 where nothing is sent."""
        sent = self.served[self.served.any(axis=1)]
        return float((sent.max(axis=1) / sent.mean(axis=1)).mean()) if len(sent) else 1.0


def traffic(parts: Parts, steps: int) -> Traffic:
    """The traffic of the ranks that there are supposed to be, in the first steps of a run."""
    n = parts.graph.num_entities
    owners = parts.sharding.owners(n)
    ranks = owners.ranks
    requests = np.zeros((steps, ranks, ranks), np.int64)
    one_by_one, queries = (np.zeros((steps, ranks), np.int64) for _ in range(2))
    for rank in range(ranks):
        batches = parts.batches(Share(rank, ranks))
        for step in range(steps):
            work = prepare(parts.objective, n, batches(step))
            examples = _examples(parts, work)
            requests[step, rank] = owners.cut(work.plan.entity.ids)
            drawn = sum(x * part.ids.shape[1] for x, part in zip(examples, work.drawn.values(), strict=False))
            one_by_one[step, rank] = 2 * len(work.batch) + 2 * drawn
            queries[step, rank] = 0 if work.drawn else sum(examples)
    return Traffic(requests, one_by_one, queries)


def _examples(parts: Parts, work: Work) -> list[int]:
    """How many examples each side has."""
    return [len(work.batch.of(side, work.batch.triples)) for side in parts.objective.scoring.sides]


def figures(parts: Parts, steps: int) -> dict[str, Any]:
    """The figures of these ranks, as JSON values; lists have one for each rank, in the mean over steps."""
    measured, owners = traffic(parts, steps), parts.sharding.owners(parts.graph.num_entities)
    ranks = owners.ranks
    wire = parts.config["sharding"]["wire_dtype"]
    row = parts.objective.model.dim * (parts.dtype if wire is None else getattr(torch, wire)).itemsize
    query = parts.objective.model.dim * parts.dtype.itemsize
    # Rows go out to those who ask and gradients home; queries go to everybody else, and gradients of theirs back.
    sent = row * (measured.served + measured.remote) + query * ((ranks - 1) * measured.queries + measured.query_rows)
    storage = build(parts.config["storage"], plugins=parts.config["plugins"])
    each = ("asked", "remote", "served", "one_by_one", "query_rows")
    return {
        "ranks": ranks,
        "rows": owners.sizes(),
        "memory_bytes": parts.estimate(storage).total,
        **{name: getattr(measured, name).mean(axis=0).tolist() for name in each},
        "sent_bytes": sent.mean(axis=0).tolist(),
        "busiest": measured.busiest,
    }


def table(plans: Sequence[dict[str, Any]]) -> str:
    """Several `figures` for people, a line each: of ranks' figures the means."""

    def mean(name: str) -> list[str]:
        return [f"{np.mean(plan[name]):,.0f}" for plan in plans]

    columns = {
        "ranks": [str(plan["ranks"]) for plan in plans],
        "rows a rank": [f"{max(plan['rows']):,}" for plan in plans],
        "memory a rank": [size(plan["memory_bytes"]) for plan in plans],
        "asked": mean("asked"),
        "remote": mean("remote"),
        "one by one": mean("one_by_one"),
        "MB out": [f"{np.mean(plan['sent_bytes']) / 1e6:,.1f}" for plan in plans],
        "busiest": [f"{plan['busiest']:.2f}" for plan in plans],
    }
    if any(max(plan["query_rows"]) for plan in plans):
        columns["queries of others"] = mean("query_rows")
    return aligned(columns)
