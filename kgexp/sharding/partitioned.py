"""`sharding=partitioned`: some slices of the entity rows are in memory, every other one is in storage."""

from collections.abc import Mapping, Sequence

import numpy as np

from kgexp.data.vocabulary import EntityType
from kgexp.errors import ConfigError, meant
from kgexp.sharding.covering import Bool
from kgexp.sharding.itinerary import Itinerary
from kgexp.sharding.local import OneProcess, local_table
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.partitions import Partitions
from kgexp.sharding.rows import TableSpec
from kgexp.sharding.slices import Slices
from kgexp.sharding.table import Table


class PartitionedSharding(OneProcess):
    """Trains tables larger than memory: partition by partition, each made of slices that every pass groups anew.

    Args:
        partitions: into which the entities are cut, those of each type, P; a type that is one stays in memory.
        buffer: how many are in memory to be trained, beside those that stay, B; all of them where there are fewer.
        slices: ranges of ids that make up a partition.
        order: in which partitions come, see `orders`.
        mix: see `Itinerary`.
        spread: see `Itinerary`.
        chunks: passes that an epoch is cut into; each has its part of every bucket.
        holdout: share of the triples of every bucket that are never trained.
        prefetch: whether another thread moves slices while others are trained; it needs room for one partition more.
        workers: threads that train steps at once.
        type_partitions: partitions of types that are cut in another number, by name.
    """

    def __init__(
        self,
        partitions: int,
        buffer: int = 4,
        slices: int = 1,
        order: str = "covering",
        mix: bool = True,
        spread: bool = True,
        chunks: int = 1,
        holdout: float = 0.0,
        prefetch: bool = True,
        workers: int = 1,
        type_partitions: Mapping[str, int] | None = None,
    ) -> None:
        self._partitions, self._buffer, self._slices = partitions, buffer, slices
        self.order, self.mix, self.spread = order, mix, spread
        self.chunks, self.holdout, self.prefetch, self.workers = chunks, holdout, prefetch, workers
        self._of_types = dict(type_partitions or {})
        self._types: Sequence[EntityType] = ()
        self._joined: Bool = np.ones((1, 1), dtype=bool)

    def divide(self, types: Sequence[EntityType], joined: Bool) -> None:
        """Takes the types of the entities before anything is cut, and which (head type, tail type) a relation joins:
        bool[T, T]. Without it there is one.

        Raises:
            ConfigError: partitions are set for a type that there is not.
        """
        names = [name for name, _, _ in types]
        for name in self._of_types:
            if name not in names:
                raise ConfigError(
                    f"sharding.type_partitions names {name}, but the types of dataset.relation_types are "
                    f"{', '.join(names)}{meant(name, names)}"
                )
        self._types, self._joined = types, joined

    def cut(self, num_entities: int) -> Partitions:
        """How the entities are cut."""
        types = self._types or (EntityType("entity", 0, num_entities),)
        counts = [self._of_types.get(name, self._partitions) for name, _, _ in types]
        ranges = [range(start, stop) for _, start, stop in types]
        return Partitions.of(ranges, counts, self._buffer, self._slices, self._joined)

    def slices(self, num_entities: int) -> Slices:
        """The ranges of ids that this makes."""
        return self.cut(num_entities).slices

    def itinerary(self, num_entities: int, seed: int) -> Itinerary:
        """Which slices are in memory when, and what is trained meanwhile."""
        cut = self.cut(num_entities)
        return Itinerary(
            sum(cut.coming),
            cut.parts,
            cut.buffer,
            self.order,
            seed,
            mix=self.mix,
            spread=self.spread,
            needed=cut.needed,
            pinned=cut.pinned,
            types=cut.coming,
        )

    def ahead(self, num_entities: int) -> bool:
        """Whether another thread fetches what comes next: where all is in memory nothing does."""
        cut = self.cut(num_entities)
        return self.prefetch and cut.buffer < sum(cut.coming)

    def slots(self, num_entities: int) -> int:
        """Slices that have room in memory, beside those that stay."""
        cut = self.cut(num_entities)
        return (cut.buffer + self.ahead(num_entities)) * cut.parts

    def rows_in_memory(self, num_entities: int, ranks: int | None = None) -> int:
        """See `Sharding.rows_in_memory`."""
        cut = self.cut(num_entities)
        stay = sum(cut.slices.size(k) for k in cut.pinned)
        return stay + self.slots(num_entities) * cut.slices.largest_but(cut.pinned)

    def entity_table(self, spec: TableSpec) -> PartitionedTable:
        """See `Sharding.entity_table`."""
        n, cut = spec.num_rows, self.cut(spec.num_rows)
        return PartitionedTable(spec, cut.slices, self.slots(n), self.ahead(n), cut.pinned)

    def relation_table(self, spec: TableSpec) -> Table:
        """See `Sharding.relation_table`: relations are in memory."""
        return local_table(spec)
