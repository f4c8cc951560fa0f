"""Training in this process without a run around it, and checkpoints of what was trained."""

import torch

from kgexp.checkpoint.store import CheckpointStore
from kgexp.storage.local import LocalStorage
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import prepare, run_step


def cut(partitions, buffer, **options):
    """The overrides of `sharding=partitioned`; slices=1 unless they are given."""
    options = {"partitions": partitions, "buffer": buffer, "slices": 1} | options
    return ("sharding=partitioned", *(f"sharding.{name}={str(value).lower()}" for name, value in options.items()))


def opened(folder):
    """`storage=local` whose rows are beside the checkpoints of `folder`; `storage=memory` for None."""
    storage = MemoryStorage() if folder is None else LocalStorage()
    if folder is not None:
        storage.open(folder)
    return storage


class Trained:
    """A model that is trained step by step."""

    def __init__(self, config, graph, folder=None, tables=None):
        self.graph, self.parts, self.step, self.losses = graph, Parts.of(config, graph, torch.device("cpu")), 0, []
        self.entity, self.relation = tables or self.parts.tables(opened(folder))
        self.batches = self.parts.batches()

    def arrive(self):
        """What comes before a step."""
        if hasattr(self.batches, "leg") and hasattr(self.entity, "enter"):
            leg = self.batches.leg(self.step)
            self.entity.enter(leg.visit, self.batches.next_resident(leg))

    def train(self, steps):
        """So many more steps."""
        for _ in range(steps):
            self.arrive()
            work = prepare(self.parts.objective, self.graph.num_entities, self.batches(self.step))
            self.losses.append(run_step(self.parts.objective, self.entity, self.relation, work))
            self.step += 1
        return self

    @property
    def tables(self):
        return {"entity": self.entity, "relation": self.relation}

    def numbers(self):
        """Losses and rows, by what they are."""
        rows = {name: table.read(torch.arange(table.num_rows)) for name, table in self.tables.items()}
        return rows | {"losses": torch.stack(self.losses)}

    def save(self, folder, keep=2, best=None):
        """A checkpoint in `folder/checkpoints`."""
        store = CheckpointStore(folder / "checkpoints", keep)
        store.save(self.step, self.tables, {"best": {"step": best}, "model_weight": "weight"}, {}, {})
        return store


def assert_equal(one, other):
    """The same tensors, bit for bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), f"{name} differs"


def saved(checkpoint, state=("weight",)):
    """All tensors of a checkpoint."""
    readers = {f"{table}.{key}": checkpoint.tensor(table, key) for table in ("entity", "relation") for key in state}
    return {name: reader.read(0, reader.shape[0]) for name, reader in readers.items()}


def state_of(table):
    """Names of the tensors of a table."""
    return tuple(table.state_tensors())
