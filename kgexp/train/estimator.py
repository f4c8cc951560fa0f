"""What a run will hold in memory, from its configuration and its data: the figures of `kgexp.train.memory`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kgexp.data.graph import Graph
from kgexp.evaluation.ranker import working_bytes
from kgexp.optim.base import RowOptimizer
from kgexp.scoring.all_entities import AllEntities
from kgexp.scoring.share import Share
from kgexp.scoring.technique import Extent, piece_size
from kgexp.sharding.base import Sharding
from kgexp.sharding.partitioned import PartitionedSharding
from kgexp.sharding.rows import Placement
from kgexp.storage.base import Storage
from kgexp.train.memory import Estimate
from kgexp.train.step import Objective

#: Bytes of a number in float64, in which rows are drawn and queries ranked; of an id.
_DOUBLE = _ID = 8

#: Bytes of a triple's position.
_PLACE = 4

#: Bytes of hashes, of what makes them and of masks for every number that dropout decides about.
_HASH_BYTES = 7

#: Bytes besides, at most, while rows are drawn, loaded or scored again, some at a time; malloc may keep them for later.
_PIECE_BYTES = 12 << 20

#: Bytes of a slice that are written at a time.
_WRITE_BYTES = 8 << 20

#: Bytes of what connects a rank to others: two groups, threads, and what malloc sets aside for each of these.
_CONNECTION_BYTES = 8 << 20


#: Copies of the rows that all trainers have, at most, while these are exchanged.
_COPIES = 6


def kept_checkpoints(config: Mapping[str, Any]) -> int:
    """Checkpoints on disk between two saves, at most, snapshots aside: the newest, and the best of them besides."""
    return int(config["checkpoint"]["keep"]) + 1


@dataclass(frozen=True)
class Estimator:
    """Adds up what training and evaluation take, from above.

    Attributes:
        config: the resolved configuration.
        graph: the data.
        objective: what is minimised.
        sharding: who owns the rows.
        placement: of the tables' numbers, as far as it does not depend on the sharding.
        optimizer: of the entity rows.
        triples: bytes of triples that batches hold.
    """

    config: dict[str, Any]
    graph: Graph
    objective: Objective
    sharding: Sharding
    placement: Placement
    optimizer: RowOptimizer
    triples: int

    @property
    def device(self) -> torch.device:
        """Of the rows."""
        return self.placement.device

    @property
    def dtype(self) -> torch.dtype:
        """Of computing."""
        return self.placement.dtype

    @property
    def relation_rows(self) -> int:
        """Rows of the relation table."""
        return self.objective.model.num_relation_rows(self.graph.num_relations)

    def estimate(self, storage: Storage) -> Estimate:
        """The memory that training and evaluation will take on a rank, with tables in `storage`."""
        ranks = self.sharding.exchange.ranks
        model, scoring, extent = self.objective.model, self.objective.scoring, self._extent(ranks)
        itemsize = self.dtype.itemsize
        evaluation = self.config["evaluation"]
        block = min(extent.rows, evaluation["block"])
        work = (scoring.working_numbers(extent) + self._auxiliary_numbers(extent)) * itemsize
        ranking = working_bytes(self._queries, block, model.dim, itemsize, self.device)
        if self.placement.weight_dtype is not None:  # rows that are scored are copies
            work += scoring.placed_entities(extent) * model.dim * itemsize
            ranking += block * model.dim * itemsize
        parts = {
            "a step": (work + self._dropout_bytes(extent)) * getattr(self.sharding, "workers", 1),  # each has its own
            "ranking": ranking if evaluation["splits"] else 0,
        }
        if kept := scoring.kept_bytes + self._query_bytes + self._kind_bytes:
            parts["indices"] = kept
        state, whole = 0, sum(self._table_bytes(extent.entities, model.dim))
        if self.device.type == "cpu":
            parts["pieces of rows"] = self._piece_bytes(extent)
        entity = self._table_bytes(extent.rows, model.dim)
        relation = self._table_bytes(self.relation_rows, model.relation_dim)
        checkpoint = whole + sum(relation)
        if ranks > 1:
            shared = _COPIES * sum(relation) if self._partitioned else self._exchange_bytes(extent)
            parts["exchange"] = shared + (_CONNECTION_BYTES if self.device.type == "cpu" else 0)
        if self.config["sharding"].get("state_device") not in (None, self.device.type):
            entity, state, relation = (entity[0], 0), entity[1] + relation[1], (relation[0], 0)
        if isinstance(self.sharding, PartitionedSharding):
            # On a GPU they are not: they stay in the memory of the machine.
            kept = math.ceil(whole * self.sharding.share_of_trainer(extent.entities))
            absent = {"absent partitions": kept} if storage.in_memory and self.device.type == "cpu" else {}
            parts = {"partitions": sum(entity), **absent, "relation table": sum(relation)} | parts
            if self.triples:
                parts["triples"] = self.triples
            parts["moving slices"] = self._moving_bytes(self.sharding, extent)
            # What is written before the next checkpoint is one more.
            copies = kept_checkpoints(self.config) + 1
            files = 0 if storage.in_memory else checkpoint
            return Estimate(parts, 0, ranks, disk=copies * checkpoint, checkpoint=checkpoint, files=files)
        if not storage.in_memory:
            return Estimate(parts, 0, ranks, checkpoint=checkpoint, files=ranks * (sum(entity) + sum(relation)))
        parts = {"entity table": sum(entity), "relation table": sum(relation)} | parts
        return Estimate(parts, state, ranks, checkpoint=checkpoint)

    def _extent(self, ranks: int) -> Extent:
        """The most that a step can be for one of so many ranks."""
        scoring, triples = self.objective.scoring, len(self.graph.train)
        n = self.graph.num_entities
        whole = min(int(self.config["train"]["batch_size"]), triples * (len(scoring.sides) if scoring.by_query else 1))
        owners, own = self.sharding.owners(n), max(Share(0, 1 if self._partitioned else ranks).sizes(whole))
        rows = self.sharding.rows_in_memory(n)
        dim, threads = self.objective.model.dim, torch.get_num_threads()
        if self.device.type != "cpu" or getattr(self.sharding, "workers", 1) > 1:
            threads = 1  # of a step
        piece = piece_size(own, dim, threads, self.device) if self.objective.auxiliary is None else None
        return Extent(own, whole if owners.ranks > 1 else own, rows, n, dim, threads, piece)

    @property
    def _partitioned(self) -> bool:
        """Whether ranks have batches of their own."""
        return isinstance(self.sharding, PartitionedSharding)

    def _piece_bytes(self, extent: Extent) -> int:
        """Bytes of rows that are drawn, loaded or scored again in one thread."""
        return min(_PIECE_BYTES, 3 * extent.rows * self.objective.model.dim * _DOUBLE)

    def _moving_bytes(self, sharding: PartitionedSharding, extent: Extent) -> int:
        """Bytes beside the slices in memory: their ids; where others are not, one that was never stored, drawn for a
        checkpoint or an evaluation; on the CPU what is written of one at once, and the other thread's pieces."""
        slices = sharding.slices(extent.entities)
        ids = _ID * extent.rows
        if extent.rows >= extent.entities or self.device.type != "cpu":
            return ids
        slice_bytes = sum(self._table_bytes(slices.largest, extent.dim))
        pieces = self._piece_bytes(extent) if sharding.prefetch else 0
        return ids + slice_bytes + min(_WRITE_BYTES, slice_bytes) + pieces

    @property
    def _queries(self) -> int:
        """How many are ranked at once: no more than a split has."""
        evaluation = self.config["evaluation"]
        most = max((len(self.graph.split(name)) for name in evaluation["splits"]), default=0)
        return min(int(evaluation["queries"]), most)

    @property
    def _query_bytes(self) -> int:
        """Bytes of the sorted queries that batches of queries keep: of each side a place a triple and one a query."""
        scoring = self.objective.scoring
        return 2 * _ID * len(scoring.sides) * len(self.graph.train) if scoring.by_query else 0

    @property
    def _kind_bytes(self) -> int:
        """Bytes of the positions of triples sorted by kind that batches of triples keep."""
        if self.objective.scoring.by_query or self._partitioned or len(self.graph.kinds) == 1:
            return 0
        return _PLACE * len(self.graph.train)

    def _exchange_bytes(self, extent: Extent) -> int:
        """Bytes that rows take on their way: what this rank sends and gets, both ways, and its sum for each row."""
        scoring = self.objective.scoring
        wanted = min(extent.entities, scoring.placed_entities(extent))
        if extent.rows == extent.entities and isinstance(scoring, AllEntities):
            wanted = extent.rows  # the gradient of all rows is summed over ranks
        # Of this step and of the next, which is planned meanwhile: ids, who wants them, and where they stand.
        return wanted * (5 * extent.dim * self.dtype.itemsize + 2 * 8 * _ID)

    def _auxiliary_numbers(self, extent: Extent) -> int:
        """The most numbers that the auxiliary objective holds in a step."""
        auxiliary, scoring, model = self.objective.auxiliary, self.objective.scoring, self.objective.model
        if auxiliary is None:
            return 0
        examples = extent.batch * (1 if scoring.by_query else len(scoring.sides))
        return auxiliary.working_numbers(examples, self.relation_rows, model.dim, model.relation_dim)

    def _dropout_bytes(self, extent: Extent) -> int:
        """Bytes that dropout adds to a step: hashes and masks, the factors, the rows and their gradient."""
        model, scoring = self.objective.model, self.objective.scoring
        numbers = 0
        if model.entity_dropout:
            numbers += scoring.placed_entities(extent) * model.dim
        if model.relation_dropout:
            every = 0 if self.objective.auxiliary is None else self.relation_rows
            numbers += (len(scoring.sides) * extent.batch + every) * model.relation_dim
        return numbers * (3 * self.dtype.itemsize + _HASH_BYTES)

    def _table_bytes(self, rows: int, dim: int) -> tuple[int, int]:
        """Bytes of a table's weights, and of its optimizer state."""
        shapes = {"weight": (rows, dim)} | self.optimizer.state_shapes(rows, dim)
        weight, *state = (
            math.prod(shape) * self.placement.dtype_of(self.optimizer, name).itemsize for name, shape in shapes.items()
        )
        return weight, sum(state)
