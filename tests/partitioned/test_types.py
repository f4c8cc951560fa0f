"""Partitions of typed graphs: of one type each, with candidates of the right type that are in memory."""

import numpy as np
import pytest
import torch
from test_moving_rows import Plain
from trained import Trained, assert_equal, cut

from kgexp.data.load import load
from kgexp.data.sides import Side
from kgexp.errors import ConfigError
from kgexp.sharding.partitions import Partitions

NEGATIVES = ("scoring=negatives", "scoring.negatives=60", "scoring.chunk_size=17", "train.batch_size=40")
ONE_STAYS = "sharding.type_partitions={tag: 1, item: 3}"
SHARDINGS = [
    (*cut(4, 2, slices=3), ONE_STAYS),
    (*cut(3, 3), "sharding.type_partitions={tag: 1}"),
    (*cut(5, 2, order="inside_out", mix=False, spread=False), "sharding.type_partitions={item: 1, tag: 1}"),
    (*cut(1, 2), "sharding.type_partitions={user: 6}"),
    (*cut(4, 2, chunks=2, holdout=0.25, slices=2), "sharding.type_partitions={user: 1, tag: 2}"),
    cut(2, 2, slices=2),  # of tags too, of which there are three
    cut(1, 1),
]


@pytest.fixture(scope="module")
def typed_graph(configured, typed):
    return load(configured(*typed)["dataset"])


def trained_on(configured, typed, typed_graph, *overrides):
    return Trained(configured(*typed, *overrides), typed_graph)


def named(case):
    return " ".join(case)


@pytest.mark.parametrize("sharding", SHARDINGS, ids=named)
def test_a_pass_has_every_triple_once_in_batches_of_one_kind(configured, typed, typed_graph, sharding):
    trained = trained_on(configured, typed, typed_graph, *NEGATIVES, *sharding)
    kinds, slices = typed_graph.kinds, trained.parts.sharding.slices(typed_graph.num_entities)
    every, held = sorted(typed_graph.train.triples.tolist()), []
    for leg in trained.batches.pass_legs(0):
        held += trained.batches.held_out(leg, 10)
    steps = trained.batches.calendar.steps(1)
    batches, sequence = [trained.batches(step) for step in range(steps)], []
    rows = torch.cat([batch.triples for batch in batches + held]).tolist()
    assert sorted(rows) == every
    assert sum(map(len, held)) == int(len(every) * trained.parts.sharding.holdout)
    for step, batch in [*enumerate(batches), *((None, batch) for batch in held)]:
        (kind,) = set(kinds.of_relations[batch.triples[:, 1].numpy()].tolist())
        sequence.append(kind)
        for side, drawn in trained.parts.objective.scoring.candidates(batch, typed_graph.num_entities, 3).items():
            ids = kinds.ids(kind, side)
            assert ((drawn.ids >= ids.start) & (drawn.ids < ids.stop)).all()
            if step is not None:
                visit = trained.batches.leg(step).visit
                here = {Side.HEAD: visit.heads, Side.TAIL: visit.tails}[side]
                assert set(slices.of(torch.cat([drawn.ids.flatten(), batch.triples[:, side.column]])).tolist()) <= {
                    *here
                }
    assert sequence != sorted(sequence)


@pytest.mark.parametrize("sharding", SHARDINGS, ids=named)
def test_moving_rows_changes_nothing(configured, typed, typed_graph, sharding):
    config = configured(*typed, *NEGATIVES, *sharding, "optimizer=adam")
    steps = 80
    trained = Trained(config, typed_graph).train(steps)
    assert_equal(trained.numbers(), Plain(config, typed_graph).train(steps).numbers())


def test_a_type_of_one_partition_stays_in_memory(configured, typed, typed_graph):
    trained = trained_on(
        configured, typed, typed_graph, *NEGATIVES, *cut(4, 2, slices=2), "sharding.type_partitions={item: 1}"
    )
    sharding, n = trained.parts.sharding, typed_graph.num_entities
    (k,) = sharding.cut(n).pinned
    _, start, stop = typed_graph.entities.types[1]
    assert sharding.slices(n).ids(k) == range(start, stop)
    for number in range(3):
        assert all(k in leg.visit.resident for leg in trained.batches.pass_legs(number))
    # Its rows, and in every other place the largest of the other slices: 300 users in 8, two partitions and one more.
    assert sharding.rows_in_memory(n) == len(trained.entity.state_tensors()["weight"]) == (stop - start) + 6 * 38
    trained.train(trained.batches.calendar.steps(1))
    assert trained.entity.buffer.holds(k)


@pytest.mark.parametrize(
    "overrides",
    [
        ("scoring=negatives", "scoring.degree_exponent=0.7", "scoring.mask=known", "optimizer=adam"),
        ("scoring=negatives", "scoring.sides=bernoulli", "model.entity_dropout=0.3"),
        ("scoring=onevssample", "scoring.samples=20", "loss=softmax"),
        ("scoring=onevsall", "loss=softmax", "regularizer=lp", "regularizer.weighted=false"),
        ("scoring=kvsall", "loss=softmax", "scoring.block=100"),
    ],
    ids=named,
)
def test_types_of_one_partition_are_no_partitions(configured, typed, typed_graph, overrides):
    expected = trained_on(configured, typed, typed_graph, *overrides).train(40)
    one = trained_on(configured, typed, typed_graph, *overrides, *cut(1, 4)).train(40)
    assert expected.numbers()["losses"].unique().numel() > 20
    assert_equal(one.numbers(), expected.numbers())


def test_a_type_that_there_is_not_is_named(configured, typed, typed_graph):
    with pytest.raises(ConfigError, match=r"names itme, but the types .* are user, item, tag; did you mean item\?"):
        trained_on(configured, typed, typed_graph, *NEGATIVES, *cut(2, 2), "sharding.type_partitions={itme: 1}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("dataset.relation_types=null",), "sharding.type_partitions names tag, but dataset.relation_types=null"),
        (("sharding.partitions=1", "sharding.buffer=1", "sharding.type_partitions={tag: 2}"), "sharding.buffer is 1"),
        (
            ("scoring=kvsall", "sharding.buffer=2"),
            "sharding.partitions, and whatever sharding.type_partitions names, to 1",
        ),
    ],
)
def test_contradictions_are_refused(configured, typed, overrides, message):
    with pytest.raises(ConfigError, match=message):
        configured(*typed, *NEGATIVES[:1], *cut(2, 2), "sharding.type_partitions={tag: 1}", *overrides)


def test_partitions_cut_every_type_evenly():
    joined = np.array([[False, True], [True, True]])
    cut = Partitions.of([range(11), range(11, 14)], [2, 1], 5, 3, joined)
    assert cut.buffer == 2 and cut.parts == 1 and cut.slices.bounds == (0, 5, 11, 14) and cut.pinned == (2,)
    assert cut.needed.tolist() == [[False, False, True], [False, False, True], [True, True, True]]
    cut = Partitions.of([range(11), range(11, 14)], [3, 2], 2, 2, joined)
    assert cut.coming == (3, 2) and cut.slices.bounds == (0, 1, 3, 5, 7, 9, 11, 11, 12, 13, 14)
    assert cut.slice_types.tolist() == [0] * 6 + [1] * 4 and cut.pinned == () and cut.slices.largest == 2
