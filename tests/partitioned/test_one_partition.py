"""With one partition `sharding=partitioned` is `sharding=none`: losses, tables and checkpoints have the same bits."""

import pytest
import torch
from trained import Trained, assert_equal, cut, saved, state_of

from kgexp.train.averaging import Averaging
from kgexp.train.plan import Cadence

STEPS = 31  # two epochs and a piece of the third
OVERRIDES = [
    ("scoring=negatives", "loss=logistic"),
    ("scoring=negatives", "scoring.sides=bernoulli", "scoring.mask=known", "scoring.chunk_size=9", "model=transe"),
    ("scoring=negatives", "scoring.sides=head", "scoring.chunk_size=1", "scoring.degree_exponent=0.7"),
    ("scoring=negatives", "scoring.mask=equal", "scoring.degree_exponent=1.0", "scoring.uniform_share=0.3"),
    ("scoring=negatives", "model.entity_dropout=0.3", "model.relation_dropout=0.2", "optimizer=adam"),
    ("scoring=negatives", "regularizer=lp", "regularizer.weighted=false", "optimizer=adam", "optimizer.clip=0.1"),
    ("scoring=negatives", "train.dtype=float32", "train.table_dtype=bfloat16", "train.state_dtype=bfloat16"),
    ("scoring=onevssample", "scoring.samples=40", "loss=softmax", "optimizer=rowwise_adagrad"),
    ("scoring=onevssample", "scoring.samples=9999", "model.entity_dropout=0.3", "auxiliary=relation_prediction"),
    ("scoring=onevsall", "loss=softmax", "optimizer=sgd", "model=rotate"),
    ("scoring=onevsall", "loss=margin_ranking", "scoring.block=70", "scoring.sides=tail", "regularizer=lp"),
    ("scoring=onevsall", "regularizer=lp", "regularizer.weighted=false", "auxiliary=relation_prediction"),
    ("scoring=onevsall", "train.dtype=float32", "train.table_dtype=bfloat16", "optimizer=adam"),
    ("scoring=kvsall", "loss=softmax", "loss.label_smoothing=0.1", "scoring.block=100", "model=rotate"),
    ("scoring=kvsall", "loss=logistic", "model.entity_dropout=0.3", "optimizer=adam"),
]
WEIGHTED = [("scoring=negatives",), ("scoring=onevsall", "loss=softmax", "regularizer=lp")]


def assert_invisible(configured, graph, overrides, tmp_path):
    expected = Trained(configured(*overrides), graph).train(STEPS)
    one = Trained(configured(*overrides, *cut(1, 4)), graph).train(STEPS)
    assert expected.numbers()["losses"].unique().numel() > STEPS // 2
    assert_equal(one.numbers(), expected.numbers())
    state = state_of(expected.entity)
    written = [trained.save(tmp_path / name).open(STEPS) for trained, name in ((one, "one"), (expected, "none"))]
    assert_equal(*(saved(checkpoint, state) for checkpoint in written))


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_every_technique_and_option(configured, graph, overrides, tmp_path):
    assert_invisible(configured, graph, overrides, tmp_path)


@pytest.mark.parametrize("overrides", WEIGHTED, ids=" ".join)
def test_weights_of_triples_and_relations(configured, weighted, weighted_graph, overrides, tmp_path):
    assert_invisible(configured, weighted_graph, (*weighted, *overrides), tmp_path)


@pytest.mark.parametrize("scoring", ["kvsall", "onevsall"])
def test_partitions_that_all_fit_are_the_blocks_of_one_table(configured, graph, scoring):
    """Of kvsall, whose queries are in no bucket, they are nothing else."""
    overrides = (f"scoring={scoring}", "loss=logistic")
    expected = Trained(configured(*overrides), graph).train(8)
    three = Trained(configured(*overrides, *cut(3, 3)), graph).train(40)
    assert three.numbers()["losses"].isfinite().all() and three.step == 40
    if scoring == "kvsall":
        again = Trained(configured(*overrides, *cut(3, 3)), graph).train(8).numbers()
        for name, tensor in expected.numbers().items():
            assert (again[name] - tensor).abs().max() < 1e-9, name


@pytest.mark.parametrize("partitions", [1, 3])
def test_averages_take_the_place_of_rows_that_are_all_in_memory(configured, graph, partitions, tmp_path):
    """Also after a checkpoint has been read, before the next step."""
    overrides = ("scoring=negatives", "averaging.start=0.0", "averaging.every_steps=1", *cut(partitions, 4))
    trained = Trained(configured(*overrides), graph)
    averaging = Averaging(tuple(trained.tables.values()), Cadence(0, 1), 0)
    mean = 0
    for step in range(1, 4):
        trained.train(1)
        averaging.update(step, trained.batches.calendar)
        mean = mean + trained.numbers()["entity"] / 3
    weights = trained.numbers()["entity"]
    checkpoint = trained.save(tmp_path).open(3)
    other = Trained(configured(*overrides), graph)
    for table in other.tables.values():
        checkpoint.load(table)
    for one in (trained, other):
        swapped = Averaging(tuple(one.tables.values()), Cadence(0, 1), 0, count=3, first=1)
        with swapped.in_place():
            assert (one.entity.read(torch.arange(graph.num_entities)) - mean).abs().max() < 1e-12
        assert torch.equal(one.entity.read(torch.arange(graph.num_entities)), weights)
