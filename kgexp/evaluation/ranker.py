"""Filtered ranking against all entities, exact for any block size, batch, number of threads and sharding.

Where entities have types, all are those of the type that the query's relation has on the side of the answer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgexp.data.graph import Graph
from kgexp.data.known import TRAIN
from kgexp.data.sides import Side
from kgexp.evaluation.batches import Batch, batches
from kgexp.evaluation.compare import Comparison, Known, Queries, scored_at_once
from kgexp.evaluation.counts import RankCounts, distinct, sample
from kgexp.evaluation.tally import Scratch
from kgexp.models.base import Model
from kgexp.randomness import Int64
from kgexp.sharding.table import Block, Table
from kgexp.team import Team, cut

_PARTS = 2  # of a block that each thread does, if they are large enough
_PIECES = 8  # that a part has at most; each of them is scored at once


class Ranker:
    """Counts, for the head and tail query of every triple, the entities that score higher than the answer and
    those that score as high.

    Args:
        model: scores.
        entity: rows float[n, d].
        relation: rows float[model.num_relation_rows(m), e].
        graph: for its splits and known triples.
        queries: of a batch, at most. Memory is that of their rows and, for each of torch's threads, of some 2^19
            scores (on a GPU 2^23) and as many flags as queries times an eighth of `block`, or fewer.
        block: entities whose rows are read at once.
        progress: called with (queries done, queries in all) after every batch.
    """

    def __init__(
        self,
        model: Model,
        entity: Table,
        relation: Table,
        graph: Graph,
        *,
        queries: int = 1024,
        block: int = 16384,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.model, self.entity, self.relation, self.graph = model, entity, relation, graph
        self.queries, self.block, self._progress = queries, block, progress
        self._threads, self._scratch = Team(), Scratch()

    @torch.no_grad()
    def rank(
        self,
        split: str | npt.NDArray[np.integer],
        filters: Mapping[str, int],
        max_triples: int | None = None,
    ) -> RankCounts:
        """Ranks the distinct triples of a split, given by name or as [N, 3].

        `filters` maps a name to the splits whose known triples are no candidates (`TRAIN | VALID`, …; 0 for
        none, which is raw ranking); all of them cost one pass. `max_triples` ranks a fixed sample of that
        size.
        """
        name = split if isinstance(split, str) else "triples"
        lines = self.graph.split(split).triples if isinstance(split, str) else split
        unique = distinct(lines)
        triples = sample(unique, max_triples)
        counts = np.zeros((3, len(filters), len(triples), 2), dtype=np.int64)
        nonfinite = in_train = done = 0
        with _full_precision():
            for side in Side:
                for batch in self._batches(side, triples):
                    counts[:, :, batch.places, side.value], nan = self._rank(batch, list(filters.values()))
                    nonfinite += nan
                    in_train += int(((batch.own & TRAIN) != 0).sum()) if side is Side.TAIL else 0
                    done += len(batch)
                    if self._progress is not None:
                        self._progress(done, 2 * len(triples))
        greater, equal, candidates = (dict(zip(filters, part, strict=True)) for part in counts)
        return RankCounts(
            split=name,
            triples=triples,
            greater=greater,
            equal=equal,
            candidates=candidates,
            total=len(unique),
            duplicates=len(lines) - len(unique),
            in_train=in_train,
            nonfinite=nonfinite,
            nonfinite_rows=nonfinite_rows(self.entity, self.relation, self.block),
        )

    def _batches(self, side: Side, triples: Int64) -> Iterator[Batch]:
        """Batches of queries whose answers have one type."""
        kinds = self.graph.kinds
        types = kinds.type_at(side, triples[:, 1])
        for number, ids in enumerate(kinds.types):
            places = np.flatnonzero(types == number)
            for batch in batches(self.graph.known, side, triples[places], self.queries, ids):
                yield replace(batch, places=places[batch.places])

    def _rank(self, batch: Batch, masks: list[int]) -> tuple[Int64, int]:
        """int64[3, f, b]: greater, equal and |C| under each mask, and the number of NaN scores."""
        queries = self._make_queries(batch)
        found, candidates, nan = self._count(batch, queries, masks)
        # What each rank has counted, of its rows, adds up: integers, so in any order.
        counts = torch.cat([found.flatten(), found.new_tensor([nan])])
        counts = self.entity.exchange.all_sum(counts).cpu()
        greater, equal = counts[:-1].reshape(found.shape).numpy()
        lost = ~queries.scored.cpu().numpy()
        greater[:, lost], equal[:, lost] = candidates[:, lost] - 1, 0
        return np.stack([greater, equal, candidates]), int(counts[-1]) + int(lost.sum())

    def _make_queries(self, batch: Batch) -> Queries:
        side, device, asked = batch.side, self.entity.device, batch.queries
        relations = torch.from_numpy(asked[:, 1].copy())
        ids = self.model.relation_rows(relations, side, self.graph.num_relations)
        given = self._read(asked[:, side.given])
        rows = self.model.query(side, given, self.relation.read(ids.to(self.relation.device)).to(device).double())
        asks = torch.from_numpy(batch.asks).to(device)
        return Queries.of(self.model, rows, self._read(batch.answers), asks, self.entity.dtype)

    def _read(self, ids: Int64) -> Tensor:
        return self.entity.read(torch.from_numpy(ids.copy()).to(self.entity.device)).double()

    def _count(self, batch: Batch, queries: Queries, masks: list[int]) -> tuple[Tensor, Int64, int]:
        """int64[2, f, b], greater and equal among the candidates; |C| int64[f, b]; the number of NaN
        scores."""
        device = self.entity.device
        found = torch.zeros((2, len(masks), len(batch)), dtype=torch.int64, device=device)
        answers = torch.from_numpy(batch.answers.copy()).to(device)
        query, entity, splits = (torch.from_numpy(x).to(device) for x in (batch.query, batch.entity, batch.splits))
        nan = 0

        def count(part: Block) -> tuple[Tensor, int]:
            comparison = Comparison(self.model, queries, part.rows, answers - part.start, self._scratch)
            pairs = batch.between(part.start, part.stop)
            known = Known(query[pairs], entity[pairs] - part.start, splits[pairs])
            return comparison.counts(known, masks)

        for block in self.entity.local_blocks(self.block, ids=batch.ids):
            parts = [
                Block(block.start + some.start, block.rows[some]) for some in self._cut(len(block.rows), len(batch))
            ]
            for counts, missing in self._team().map(count, parts):
                found += counts
                nan += missing
        return found, np.stack([batch.candidates(mask) for mask in masks]), nan

    def _cut(self, rows: int, queries: int) -> list[slice]:
        """The parts of so many rows that threads do: enough for each to have some, and of several pieces that fit the
        cache."""
        most = _PIECES * scored_at_once(queries, self.entity.device)
        return cut(rows, max(most // _PIECES, min(most, rows // (_PARTS * self._team().threads))))

    def _team(self) -> Team:
        """As many threads as torch has now; what a GPU does comes from one."""
        threads = torch.get_num_threads() if self.entity.device.type == "cpu" else 1
        if self._threads.threads != threads:
            self._threads = Team(threads)
        return self._threads


def working_bytes(queries: int, block: int, dim: int, itemsize: int, device: torch.device) -> int:
    """The memory that ranking takes beside the tables, with what threads torch has: rows of queries and answers as they
    come and in float64; and in every thread scores, once for the queries and twice for their answers, with flags and
    what an error bound looks at."""
    piece = min(block, scored_at_once(queries, device))
    part = min(block, _PIECES * piece)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    of_thread = queries * (3 * piece * itemsize + 4 * part) + part * dim * itemsize
    return queries * 6 * dim * torch.float64.itemsize + threads * of_thread


def nonfinite_rows(entity: Table, relation: Table, block: int) -> dict[str, int]:
    """How many rows of each table hold a NaN or an infinity."""
    found = {}
    for table in (entity, relation):
        mine = torch.zeros(1, dtype=torch.int64, device=table.device)
        for piece in table.local_blocks(block):
            # Nothing is kept of a block: among blocks that are read from files it would split the free memory up.
            if not bool(piece.rows.sum().isfinite()):  # else all are: a tenth of the time
                mine += (~piece.rows.isfinite().all(dim=1)).sum()
        found[table.name] = int(table.exchange.all_sum(mine))
    return found


@contextmanager
def _full_precision() -> Iterator[None]:
    """Keeps matrix products from rounding their operands (TF32, bfloat16): the error bounds assume the
    dtype."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
