"""`sharding=partitioned`: some slices of the entity rows are in memory, every other one is in storage."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch._C import _distributed_c10d as c10d

from kgexp.data.vocabulary import EntityType
from kgexp.errors import ConfigError, meant
from kgexp.sharding.covering import Bool
from kgexp.sharding.exchange import Exchange, GroupExchange, Supposed
from kgexp.sharding.groups import connecting, gloo_group
from kgexp.sharding.itinerary import Itinerary
from kgexp.sharding.joint_table import JointTable
from kgexp.sharding.local import OneProcess, local_table
from kgexp.sharding.locks import Locks
from kgexp.sharding.partitioned_table import PartitionedTable
from kgexp.sharding.partitions import Partitions
from kgexp.sharding.rows import TableSpec
from kgexp.sharding.slices import Slices
from kgexp.sharding.table import Table
from kgexp.sharding.trainers import ServedTrainers
from kgexp.world import World


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
        workers: threads that train steps at once, of each trainer.
        ranks: trainers, each of which trains buckets whose partitions nobody else has; `auto` is the launcher's number,
            else one a GPU, else one. Whoever starts the processes reads it.
        timeout: seconds that a trainer waits for one that is not heard of.
        scheduler: `tournament` or `locks`, see `kgexp.train.scheduling` and `kgexp.train.leasing`.
        lease: with locks, seconds of silence after which a trainer loses its unit to another.
        sync_steps: steps between two exchanges of the rows that every trainer has.
        wire_dtype: `bfloat16` sends rows to other trainers at half their size; None sends them as they are.
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
        ranks: int | str = "auto",
        timeout: float = 300.0,
        scheduler: str = "tournament",
        lease: float = 60.0,
        sync_steps: int = 16,
        wire_dtype: str | None = None,
    ) -> None:
        self._partitions, self._buffer, self._slices = partitions, buffer, slices
        self.order, self.mix, self.spread = order, mix, spread
        self.chunks, self.holdout, self.prefetch, self.workers = chunks, holdout, prefetch, workers
        self._of_types = dict(type_partitions or {})
        self.ranks, self.timeout, self.scheduler, self.lease = ranks, timeout, scheduler, lease
        self.sync_steps, self._wire_dtype = sync_steps, None if wire_dtype is None else getattr(torch, wire_dtype)
        self._over: Exchange = Exchange()
        self._trainers: ServedTrainers | None = None
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

    def open(self, world: World, device: torch.device) -> None:
        """See `Sharding.open`."""
        if world.size > 1:
            with connecting(world, self.close):
                group = gloo_group(world.store, "trainers", world.rank, world.size, self.timeout, world.one_machine)
                self._over = GroupExchange(group, torch.device("cpu"), world)
            self._trainers = ServedTrainers(world, self.timeout, self._wire_dtype)

    def suppose(self, ranks: int) -> None:
        """See `Sharding.suppose`."""
        self._over = Supposed(ranks)

    def close(self) -> None:
        """See `Sharding.close`."""
        if self._trainers is not None:
            self._trainers.close()
        if isinstance(self._over, GroupExchange):
            self._over.close()

    @property
    def exchange(self) -> Exchange:
        """See `Sharding.exchange`."""
        return self._over

    @property
    def trainers(self) -> ServedTrainers:
        """The others; where there are some."""
        if self._trainers is None:
            raise RuntimeError("one trainer has no others")
        return self._trainers

    def locks(self, world: World, lease: float) -> Locks:
        """Those under which trainers take units, for so many seconds of silence."""
        store = c10d.PrefixStore("units", world.store)
        return Locks(store, world.rank, world.silence, lease, self.timeout, world.whereabouts)

    def cut(self, num_entities: int) -> Partitions:
        """How the entities are cut."""
        types = self._types or (EntityType("entity", 0, num_entities),)
        counts = [self._of_types.get(name, self._partitions) for name, _, _ in types]
        ranges = [range(start, stop) for _, start, stop in types]
        buffer, coming = self._buffer, sum(count for count in counts if count > 1)
        if self._over.ranks > 1 and coming > 2:  # two teams are all that a trainer has at a time
            teams = self._teams(coming) or min(coming, 2 * self._over.ranks)
            buffer = min(buffer, 2 * -(-coming // teams))
        return Partitions.of(ranges, counts, buffer, self._slices, self._joined)

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
            trainers=self._over.ranks,
            teams=self._teams(sum(cut.coming)),
        )

    def _teams(self, partitions: int) -> int | None:
        """Into how many teams several trainers divide the partitions; None is the fewest that keep all of them busy."""
        if self._over.ranks == 1 or self.scheduler == "tournament" or partitions < 2:
            return None
        # As many as can be, since whoever asks gets what is free.
        return max(2, -(-partitions // max(1, self._buffer // 2)))

    def ahead(self, num_entities: int) -> bool:
        """Whether another thread fetches what comes next: where all is in memory, or nobody knows, nothing does."""
        cut, known = self.cut(num_entities), self._over.ranks == 1 or self.scheduler == "tournament"
        return self.prefetch and known and cut.buffer < sum(cut.coming)

    def slots(self, num_entities: int) -> int:
        """Slices that have room in memory, beside those that stay."""
        cut = self.cut(num_entities)
        return (cut.buffer + self.ahead(num_entities)) * cut.parts

    def share_of_trainer(self, num_entities: int) -> float:
        """The most that a trainer has of the entity rows beside its buffer, of all: what it trained last. With locks
        that can be nearly all, while others train little."""
        coming = sum(self.cut(num_entities).coming)
        if self._over.ranks == 1 or self.scheduler == "locks" or not coming:
            return 1.0
        return min(1.0, 2 * -(-coming // (self._teams(coming) or min(coming, 2 * self._over.ranks))) / coming)

    def rows_in_memory(self, num_entities: int) -> int:
        """See `Sharding.rows_in_memory`."""
        cut = self.cut(num_entities)
        stay = sum(cut.slices.size(k) for k in cut.pinned)
        return stay + self.slots(num_entities) * cut.slices.largest_but(cut.pinned)

    def entity_table(self, spec: TableSpec) -> PartitionedTable:
        """See `Sharding.entity_table`."""
        n, cut = spec.num_rows, self.cut(spec.num_rows)
        if isinstance(self._over, GroupExchange):
            slots, trainers = self.slots(n), self.trainers
            table = JointTable(spec, cut.slices, slots, self.ahead(n), cut.pinned, trainers, self._over)
            trainers.serve(table.backing)
            return table
        return PartitionedTable(spec, cut.slices, self.slots(n), self.ahead(n), cut.pinned)

    def relation_table(self, spec: TableSpec) -> Table:
        """See `Sharding.relation_table`: relations are in memory, a copy of them at every trainer."""
        return local_table(spec, f".{self._over.rank}" if self._over.ranks > 1 else "")
