"""Evaluation of a table that is not whole in memory: the ranks of the same vectors in one table, as integers."""

import numpy as np
import pytest
import torch
from trained import Trained, cut

from kgexp.data.known import TEST, TRAIN, VALID
from kgexp.evaluation.ranker import Ranker
from kgexp.evaluation.sampled import SampledRanker
from kgexp.optim.sgd import SGD
from kgexp.sharding.local import LocalTable

FILTERS = {"filtered": TRAIN | VALID | TEST, "raw": 0}


def full(*parts):
    return Ranker(*parts, queries=30, block=40)


def sampled(*parts):
    return SampledRanker(*parts, candidates=30, seed=5, queries=30)


def assert_ranks_of(trained, weight, make):
    """The ranks are those of the plain table `weight`."""
    graph, model = trained.graph, trained.parts.objective.model
    counts = make(model, trained.entity, trained.relation, graph).rank("valid", FILTERS)
    expected = make(model, LocalTable("entity", weight, {}, SGD()), trained.relation, graph).rank("valid", FILTERS)
    assert len(counts) == len(expected) > 0
    for name in FILTERS:
        np.testing.assert_array_equal(counts.greater[name], expected.greater[name])
        np.testing.assert_array_equal(counts.equal[name], expected.equal[name])
        np.testing.assert_array_equal(counts.candidates[name], expected.candidates[name])


@pytest.mark.parametrize(
    ("model", "dtype", "files", "prefetch"),
    [
        ("complex", "float64", True, True),
        ("transe", "float32", True, False),
        ("rotate", "float32", False, True),
    ],
)
def test_ranks_are_those_of_one_table_at_any_time(configured, graph, model, dtype, files, prefetch, tmp_path):
    overrides = ("scoring=negatives", f"model={model}", f"train.dtype={dtype}")
    config = configured(*overrides, *cut(4, 2, slices=2, prefetch=prefetch))
    trained = Trained(config, graph, tmp_path if files else None)
    middle = trained.batches.leg(0).start + 1
    initial = Trained(configured(*overrides), graph).entity.state_tensors()["weight"]
    for step in (0, middle, trained.batches.calendar.steps(1), trained.batches.calendar.steps(2) + middle):
        trained.train(step - trained.step)
        weight = trained.entity.read(torch.arange(graph.num_entities))
        if step == 0:
            assert torch.equal(weight, initial)
        for make in (full, sampled):
            assert_ranks_of(trained, weight, make)


def test_reading_does_not_disturb_training(configured, graph, tmp_path):
    """Rows on their way are waited for; what is streamed takes no place in memory."""
    config = configured("scoring=negatives", *cut(4, 2, slices=2))
    alone, watched = (Trained(config, graph, tmp_path / name).train(1) for name in ("alone", "watched"))
    for _ in range(30):
        alone.train(1)
        watched.train(1)
        every = watched.entity.read(torch.arange(graph.num_entities))
        blocks = list(watched.entity.local_blocks(33))
        assert [block.start for block in blocks] == np.cumsum([0, *(len(block.rows) for block in blocks)])[:-1].tolist()
        assert torch.equal(torch.cat([block.rows for block in blocks]), every)
        some = torch.tensor([[500, 3, 3], [0, 499, 250]])
        assert torch.equal(watched.entity.read(some), every[some])
    assert watched.entity.buffer.loads == alone.entity.buffer.loads
    numbers = alone.numbers()
    for name, tensor in watched.numbers().items():
        assert torch.equal(tensor, numbers[name])
