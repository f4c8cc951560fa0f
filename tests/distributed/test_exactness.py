"""Sharding is invisible: whoever owns the rows, the same losses and the same tables."""

import os
from pathlib import Path

import pytest
import torch
from rank_threads import as_ranks

from kgexp.data.load import load
from kgexp.scoring.share import Share
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import prepare, run_step
from kgexp.world import ALONE

#: All techniques with all optimizers and models take a quarter of an hour; what always runs is a part of it.
EVERYTHING = os.environ.get("KGEXP_TEST_EXACTNESS") == "everything"
ALWAYS_LONG = (("negatives", "adagrad", "complex"),)
LONG, SHORT = 200, 8
TECHNIQUES = {
    "negatives": ("scoring=negatives", "scoring.negatives=11", "scoring.chunk_size=17", "loss=logistic"),
    "onevssample": ("scoring=onevssample", "scoring.samples=40", "loss=softmax"),
    "onevsall": ("scoring=onevsall", "loss=softmax"),
    "kvsall": ("scoring=kvsall", "loss=logistic"),
}
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "sgd")
MODELS = ("complex", "transe", "rotate")


def train(config, graph, world, steps):
    """The losses of the steps and the tables after them."""
    parts = Parts.of(config, graph, torch.device("cpu"), world)
    entity, relation = parts.tables(MemoryStorage())
    batches, losses = parts.batches(), []
    for step in range(steps):
        work = prepare(parts.objective, graph.num_entities, batches(step), parts.sharding.plan)
        losses.append(run_step(parts.objective, entity, relation, work))
    total = parts.sharding.exchange.all_sum(torch.stack(losses))
    rows = entity.read(torch.arange(graph.num_entities)), relation.read(torch.arange(relation.num_rows))
    return total, *rows


def assert_invisible(configured, graph, overrides, ranks, steps, sharding="rowwise", rtol=1e-9):
    alone = train(configured(*overrides), graph, ALONE, steps)
    assert alone[0].isfinite().all() and len(alone[0].unique()) > steps // 2
    config = configured(*overrides, f"sharding={sharding}")
    for count in ranks:
        shards = as_ranks(count, lambda world: train(config, graph, world, steps))
        for one in shards:
            torch.testing.assert_close(one[0], alone[0], rtol=rtol, atol=0)
            for mine, expected in zip(one[1:], alone[1:], strict=True):
                torch.testing.assert_close(mine, expected, rtol=rtol, atol=rtol)
            assert torch.equal(one[2], shards[0][2]), "relation rows have the same bits on all ranks"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_any_number_of_ranks_trains_what_one_process_does(configured, graph, technique, optimizer, model):
    overrides = (*TECHNIQUES[technique], f"optimizer={optimizer}", f"model={model}")
    if optimizer == "sgd":
        overrides += ("optimizer.lr=1.0",)
    long = EVERYTHING or (technique, optimizer, model) in ALWAYS_LONG
    assert_invisible(configured, graph, overrides, (1, 2, 3, 4) if long else (3,), LONG if long else SHORT)


@pytest.mark.parametrize("sharding", ["rowwise", "replicated"])
@pytest.mark.parametrize(
    "overrides",
    [
        ("scoring=negatives", "scoring.sides=bernoulli", "scoring.mask=known", "scoring.chunk_size=9", "model=transe"),
        ("scoring=negatives", "scoring.sides=head", "scoring.chunk_size=1", "scoring.degree_exponent=0.7"),
        ("scoring=onevsall", "loss=margin_ranking", "scoring.block=70", "scoring.sides=tail"),
        ("scoring=onevsall", "loss=self_adversarial", "model.reciprocal=true", "auxiliary=relation_prediction"),
        ("scoring=kvsall", "loss=softmax", "loss.label_smoothing=0.1", "scoring.block=100", "model=rotate"),
        ("scoring=kvsall", "model.entity_dropout=0.3", "model.relation_dropout=0.2", "scoring.block=64"),
        ("scoring=onevssample", "model.entity_dropout=0.3", "model.relation_dropout=0.2", "scoring.mask=known"),
        ("scoring=negatives", "regularizer=lp", "regularizer.weighted=false", "optimizer=adam", "optimizer.clip=0.1"),
        ("scoring=onevsall", "regularizer=lp", "regularizer.weighted=false", "optimizer=adam"),
        ("scoring=negatives", "train.batch_size=2", "scoring.chunk_size=1"),
        ("scoring=onevsall", "train.batch_size=2"),
        ("scoring=kvsall", "train.batch_size=2"),
    ],
    ids=" ".join,
)
def test_every_option_is_the_same_on_three_ranks(configured, graph, overrides, sharding):
    assert_invisible(configured, graph, overrides, (3,), SHORT, sharding)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_types_are_the_same_on_three_ranks(configured, typed, technique):
    overrides = (*typed, *TECHNIQUES[technique])
    graph = load(configured(*overrides)["dataset"])
    assert len(graph.kinds) == 3
    assert_invisible(configured, graph, overrides, (3,), 30)


@pytest.mark.skipif("KGEXP_TEST_GRAPHS" not in os.environ, reason="KGEXP_TEST_GRAPHS names no folder with FB15k-237")
@pytest.mark.parametrize("technique", ["negatives", "onevsall"])
def test_in_float32_the_first_losses_of_a_real_graph_are_equal(configured, technique):
    overrides = (
        f"dataset.path={Path(os.environ['KGEXP_TEST_GRAPHS'], 'FB15k-237')}",
        *(f"scoring={technique}", "loss=softmax", "train.dtype=float32", "train.batch_size=1000"),
        *("model.dim=100", "model.init_scale=0.1", "optimizer.lr=0.1"),
    )
    graph = load(configured(*overrides)["dataset"])
    alone, _, _ = train(configured(*overrides), graph, ALONE, 20)
    config = configured(*overrides, "sharding=rowwise")
    for ranks in (2, 3, 4):
        losses, _, _ = as_ranks(ranks, lambda world: train(config, graph, world, 20))[0]
        worst = ((losses - alone) / alone).abs().max().item()
        print(f"FB15k-237, ComplEx, {technique}, {ranks} ranks: 20 losses within {worst:.1e}")
        assert worst < 1e-5


def test_only_distinct_remote_rows_travel(configured, graph):
    """Rows go out to those who ask, gradients come home, and no other rows are exchanged."""
    config, ranks, steps = configured(*TECHNIQUES["negatives"], "sharding=rowwise"), 3, 2

    def sent(world):
        parts = Parts.of(config, graph, torch.device("cpu"), world)
        entity, relation = parts.tables(MemoryStorage())
        batches, counts, ids = parts.batches(), [], []
        for step in range(steps):
            work = prepare(parts.objective, graph.num_entities, batches(step), parts.sharding.plan)
            before = parts.sharding.exchange.sent
            run_step(parts.objective, entity, relation, work)
            counts.append(parts.sharding.exchange.sent - before)
            triples, drawn = (
                work.batch.triples[:, [0, 2]].flatten(),
                [part.ids.flatten() for part in work.drawn.values()],
            )
            ids.append(set(torch.cat([triples, *drawn]).tolist()))
        return counts, ids

    of_ranks = as_ranks(ranks, sent)
    own = [range(*Share(rank, ranks).of(graph.num_entities)) for rank in range(ranks)]
    for rank, (counts, ids) in enumerate(of_ranks):
        for step in range(steps):
            gradients = len(ids[step] - set(own[rank]))
            rows = sum(len(other[step] & set(own[rank])) for i, (_, other) in enumerate(of_ranks) if i != rank)
            assert counts[step] == rows + gradients
