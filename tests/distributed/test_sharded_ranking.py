"""Filtered ranks of the same rows are the same integers, whoever owns the rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rank_threads import as_ranks

from kgexp.data.graph import Split
from kgexp.data.kinds import Kinds
from kgexp.data.known import TEST, TRAIN, VALID, KnownTriples
from kgexp.evaluation.ranker import Ranker
from kgexp.evaluation.sampled import SampledRanker
from kgexp.models.complex import ComplEx
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.optim.sgd import SGD
from kgexp.sharding.distributed import RowwiseSharding
from kgexp.sharding.rows import Placement, TableSpec
from kgexp.storage.memory import MemoryStorage

N, M = 501, 5
CPU = torch.device("cpu")


def triples(count, seed):
    random = np.random.default_rng(seed)
    return np.stack([random.integers(0, high, count) for high in (N, M, N)], axis=1).astype(np.int32)


@pytest.fixture(scope="module")
def graph():
    parts = [triples(900, 0), triples(80, 1), triples(90, 2)]
    splits = {name: Split(name, part, None) for name, part in zip(("train", "valid", "test"), parts, strict=True)}
    return SimpleNamespace(
        **splits,
        split=splits.__getitem__,
        known=KnownTriples.build(parts, M),
        num_entities=N,
        num_relations=M,
        relation_weights=None,
        kinds=Kinds.of([range(N)], np.zeros((M, 2))),
    )


def rank(graph, model, make, dtype, world, split="test", wire_dtype=None):
    """The counts of the split, with rows in multiples of 1/4: many scores are equal."""

    def initial(width, seed):
        rows = np.random.default_rng(seed).integers(-2, 3, (2 * N, width)) / 4
        if wire_dtype:
            rows += 2.0**-12  # which bfloat16 cannot hold
        rows[7] = rows[300]
        return lambda ids: rows[ids]

    sharding = RowwiseSharding()
    sharding.open(world, CPU)
    m, placement = model.num_relation_rows(M), Placement(CPU, dtype)
    entity = sharding.entity_table(
        TableSpec("entity", N, model.dim, initial(model.dim, 3), SGD(), MemoryStorage(), placement)
    )
    relation = sharding.relation_table(
        TableSpec("relation", m, model.relation_dim, initial(model.relation_dim, 4), SGD(), MemoryStorage(), placement)
    )
    return make(model, entity, relation, graph).rank(split, {"filtered": TRAIN | VALID | TEST, "raw": 0})


def full(*parts):
    return Ranker(*parts, queries=64, block=100)


def sampled(*parts):
    return SampledRanker(*parts, candidates=40, seed=5, queries=33)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("model", [ComplEx(8), TransE(8), RotatE(8)], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("make", [full, sampled])
def test_ranks_are_the_same_integers_for_any_number_of_ranks(graph, make, model, dtype):
    alone = as_ranks(1, lambda world: rank(graph, model, make, dtype, world))[0]
    if make is full:
        assert sum(int(counts.sum()) for counts in alone.equal.values()) > 0
    for count in (2, 3, 4):
        for shard in as_ranks(count, lambda world: rank(graph, model, make, dtype, world)):
            for mine, expected in (
                (shard.greater, alone.greater),
                (shard.equal, alone.equal),
                (shard.candidates, alone.candidates),
            ):
                for name in expected:
                    np.testing.assert_array_equal(mine[name], expected[name])
            assert shard.nonfinite_rows == alone.nonfinite_rows == {"entity": 0, "relation": 0}


@pytest.mark.parametrize("make", [full, sampled])
def test_typed_candidates_are_the_same_for_any_number_of_ranks(graph, make):
    """Ranks own several types, or a part of one."""
    types, ends = [range(100), range(100, 480), range(480, N)], np.array([[0, 1], [1, 1], [1, 2], [2, 0], [0, 0]])

    def moved(split):
        sides = [
            [types[kind][i % len(types[kind])] for i, kind in zip(split[:, c], ends[split[:, 1], c // 2], strict=True)]
            for c in (0, 2)
        ]
        return np.stack([sides[0], split[:, 1], sides[1]], axis=1).astype(np.int32)

    parts = {name: moved(graph.split(name).triples) for name in ("train", "valid", "test")}
    splits = {name: Split(name, part, None) for name, part in parts.items()}
    known = KnownTriples.build(list(parts.values()), M)
    changes = {"split": splits.__getitem__, "known": known, "kinds": Kinds.of(types, ends)}
    typed = SimpleNamespace(**(vars(graph) | splits | changes))
    alone = as_ranks(1, lambda world: rank(typed, ComplEx(8), make, torch.float32, world))[0]
    for shard in as_ranks(3, lambda world: rank(typed, ComplEx(8), make, torch.float32, world)):
        for part in ("greater", "equal", "candidates"):
            for name, expected in getattr(alone, part).items():
                np.testing.assert_array_equal(getattr(shard, part)[name], expected)


def test_rows_that_are_not_finite_are_counted_once(graph):
    model = ComplEx(8)

    def work(world):
        def initial(ids):
            rows = np.ones((len(ids), 8))
            rows[np.isin(ids, (3, 499))] = np.nan
            return rows

        def infinite(ids):
            return np.full((len(ids), 8), np.inf)

        sharding = RowwiseSharding()
        sharding.open(world, CPU)
        make = (MemoryStorage(), Placement(CPU, torch.float32))
        entity = sharding.entity_table(TableSpec("entity", N, 8, initial, SGD(), *make))
        relation = sharding.relation_table(TableSpec("relation", 2 * M, 8, infinite, SGD(), *make))
        return full(model, entity, relation, graph).rank("test", {"filtered": TRAIN})

    alone = as_ranks(1, work)[0]
    assert alone.nonfinite_rows == {"entity": 2, "relation": 2 * M}
    for shard in as_ranks(3, work):
        assert shard.nonfinite_rows == alone.nonfinite_rows
        assert shard.nonfinite == alone.nonfinite > 0


@pytest.mark.parametrize("make", [full, sampled])
def test_rows_are_ranked_as_they_are_though_they_are_rounded_for_training(graph, make):
    model = ComplEx(8)
    alone = as_ranks(1, lambda world: rank(graph, model, make, torch.float32, world, wire_dtype="bfloat16"))[0]
    for shard in as_ranks(3, lambda world: rank(graph, model, make, torch.float32, world, wire_dtype="bfloat16")):
        np.testing.assert_array_equal(shard.greater["filtered"], alone.greater["filtered"])


@pytest.mark.parametrize("make", [full, sampled])
def test_fewer_triples_than_ranks_are_ranked(graph, make):
    one = graph.test.triples[:1]
    alone = as_ranks(1, lambda world: rank(graph, ComplEx(8), make, torch.float32, world, one))[0]
    for shard in as_ranks(4, lambda world: rank(graph, ComplEx(8), make, torch.float32, world, one)):
        np.testing.assert_array_equal(shard.greater["filtered"], alone.greater["filtered"])
