"""Several trainers in one process and in turn, slowly: what a tournament should make of the rows."""

from itertools import groupby

import torch
from test_moving_rows import whole

from kgexp.sharding.itinerary import Itinerary
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import prepare, run_step


class PlainCrew:
    """Each trainer has whole tables of its own, and rows are copied from one to the others after each round."""

    def __init__(self, config, graph, trainers):
        self.graph, self.every = graph, config["sharding"]["sync_steps"]
        counts = [
            config["sharding"]["type_partitions"].get(t.name, config["sharding"]["partitions"])
            for t in graph.entities.types
        ]
        coming = sum(count for count in counts if count > 1)
        buffer, teams = config["sharding"]["buffer"], min(coming, 2 * trainers)
        if config["sharding"]["scheduler"] == "locks":
            teams = -(-coming // (buffer // 2))
        # A match is all that a trainer has in memory: two teams.
        buffer = min(buffer, 2 * -(-coming // teams))
        config = config | {"sharding": config["sharding"] | {"buffer": buffer}}
        self.parts = Parts.of(config, graph, torch.device("cpu"))
        sharding, cut = self.parts.sharding, self.parts.sharding.cut(graph.num_entities)
        self.slices, self.pinned = cut.slices, cut.pinned
        sharding.entity_table = whole
        sharding.itinerary = lambda n, seed: Itinerary(
            coming,
            cut.parts,
            cut.buffer,
            sharding.order,
            seed,
            mix=sharding.mix,
            spread=sharding.spread,
            needed=cut.needed,
            pinned=cut.pinned,
            types=cut.coming,
            trainers=trainers,
            teams=teams,
        )
        self.batches = self.parts.batches()
        self.tables = [self.parts.tables(MemoryStorage()) for _ in range(trainers)]

    def run(self, passes):
        """Trains so many passes."""
        for number in range(passes):
            for _, legs in groupby(self.batches.pass_legs(number), lambda leg: leg.visit.round):
                self.round(list(legs))
        return self

    def run_steps(self, steps):
        """The first trainer alone trains these steps."""
        for step in steps:
            self.step(0, self.batches.leg(step), step)
        return self

    def round(self, legs):
        """Units that are trained at the same time: shared rows are exchanged at points, all others at the end."""
        steps = {}
        for leg in legs:
            steps.setdefault(leg.visit.trainer, []).extend((leg, step) for step in range(leg.start, leg.stop))
        points = max(-(-len(own) // self.every) for own in steps.values())
        for point in range(points):
            before = [rows.clone() for rows in self.shared(0)]
            for trainer, own in steps.items():
                for leg, step in own[len(own) * point // points : len(own) * (point + 1) // points]:
                    self.step(trainer, leg, step)
            copies = [list(self.shared(trainer)) for trainer in range(len(self.tables))]
            for base, *rows in zip(before, *copies, strict=True):
                total = base + sum(own - base for own in rows)
                for own in rows:
                    own.copy_(total)
        for leg in legs:
            for k in set(leg.visit.resident).difference(self.pinned):
                self.hand_out(leg.visit.trainer, self.slices.ids(k))

    def step(self, trainer, leg, step):
        entity, relation = self.tables[trainer]
        entity.candidates = [self.slices.ids(k) for k in sorted({*leg.visit.heads, *leg.visit.tails})]
        objective = self.parts.objective
        run_step(objective, entity, relation, prepare(objective, self.graph.num_entities, self.batches(step)))

    def shared(self, trainer):
        """Views of the rows that each trainer trains."""
        entity, relation = self.tables[trainer]
        yield from (tensor.data for tensor in relation.state_tensors().values())
        for k in self.pinned:
            ids = self.slices.ids(k)
            yield from (tensor.data[ids.start : ids.stop] for tensor in entity.state_tensors().values())

    def hand_out(self, trainer, ids):
        """Rows of entities that one trainer has trained go to all others."""
        for name, tensor in self.tables[trainer][0].state_tensors().items():
            for entity, _ in self.tables:
                entity.state_tensors()[name].data[ids.start : ids.stop] = tensor.data[ids.start : ids.stop]

    @property
    def numbers(self):
        """Rows and optimizer state, by what they are called in checkpoints."""
        return {f"{table.name}.{key}": t.data for table in self.tables[0] for key, t in table.state_tensors().items()}
