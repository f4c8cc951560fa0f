"""Training in this process, without a run's folder: losses of the steps and tables after them."""

import torch

from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import prepare, run_step


def begun(config, graph, storage=None):
    """The parts of a run and its new tables."""
    parts = Parts.of(config, graph, torch.device("cpu"))
    return parts, *parts.tables(storage or MemoryStorage())


def train(config, graph, steps, storage=None):
    """The losses float[steps], and the rows of both tables."""
    parts, entity, relation = begun(config, graph, storage)
    batches, losses = parts.batches(), []
    for step in range(steps):
        if hasattr(batches, "leg"):
            leg = batches.leg(step)
            entity.enter(leg.visit, batches.after(leg).visit.resident)
        work = prepare(parts.objective, graph.num_entities, batches(step), parts.sharding.plan)
        losses.append(run_step(parts.objective, entity, relation, work))
    rows = entity.read(torch.arange(graph.num_entities)), relation.read(torch.arange(relation.num_rows))
    return torch.stack(losses), *rows
