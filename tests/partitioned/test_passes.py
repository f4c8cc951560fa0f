"""What a pass trains: every triple once, none that is held out, with candidates that are in memory."""

import itertools

import numpy as np
import pytest
import torch
from trained import Trained, cut

from kgexp.errors import ConfigError
from kgexp.train.visits import MILLION, Cut

SHARDINGS = [
    cut(3, 2, slices=3),
    cut(1, 1),
    cut(4, 4),
    cut(5, 2, order="inside_out", mix=False, spread=False),
    cut(4, 3, order="outside_in", slices=2, spread=False),
    cut(3, 2, chunks=3, slices=2),
    cut(3, 2, chunks=2, holdout=0.25, slices=2),
    cut(2, 2, holdout=0.9),
]


def epochs(trained, count):
    """The triples of each of the first epochs, as sorted rows of lists."""
    calendar = trained.batches.calendar
    bounds = [calendar.steps(epoch) for epoch in range(count + 1)]
    return [
        sorted(torch.cat([trained.batches(step).triples for step in range(*span)]).tolist())
        for span in itertools.pairwise(bounds)
    ]


@pytest.mark.parametrize("sharding", SHARDINGS, ids=" ".join)
def test_an_epoch_has_every_triple_once_but_those_held_out(configured, graph, sharding):
    trained = Trained(configured("scoring=negatives", *sharding), graph)
    first, *others = epochs(trained, 3)
    every = sorted(graph.train.triples.tolist())
    assert all(epoch == first for epoch in others), "what is held out is the same in every epoch"
    held = set(map(tuple, every)) - set(map(tuple, first))
    holdout = trained.parts.sharding.holdout
    assert len(held) == len(every) - len(first) == int(len(every) * holdout) == len(every) - trained.batches.triples
    for number in range(trained.parts.sharding.chunks):
        batches = [batch for leg in trained.batches.pass_legs(number) for batch in trained.batches.held_out(leg, 10)]
        scored = [tuple(triple) for batch in batches for triple in batch.triples.tolist()]
        assert len(scored) == len(set(scored)) and set(scored) == held


@pytest.mark.parametrize("sharding", SHARDINGS, ids=" ".join)
def test_any_step_can_be_asked_for_first(configured, graph, sharding):
    """As a resumed run does."""
    config = configured("scoring=negatives", *sharding)
    trained = Trained(config, graph)
    steps = trained.batches.calendar.steps(3)
    asked = [steps - 1, 0, steps // 2, steps // 2 + 1]
    inorder = [trained.batches(step).triples for step in range(steps)]
    for step in asked:
        assert torch.equal(Trained(config, graph).batches(step).triples, inorder[step])
        assert torch.equal(trained.batches(step).triples, inorder[step])


@pytest.mark.parametrize("sharding", SHARDINGS, ids=" ".join)
def test_candidates_come_from_the_visit(configured, graph, sharding):
    trained = Trained(configured("scoring=negatives", "scoring.negatives=200", *sharding), graph)
    slices, scoring = trained.parts.sharding.slices(graph.num_entities), trained.parts.objective.scoring
    for step in range(trained.batches.calendar.steps(1)):
        leg, batch = trained.batches.leg(step), trained.batches(step)
        for side, drawn in scoring.candidates(batch, graph.num_entities, seed=3).items():
            pool = {0: leg.visit.heads, 2: leg.visit.tails}[side.column]
            assert set(pool) <= set(leg.visit.resident)
            assert set(slices.of(drawn.ids.flatten()).tolist()) <= set(pool)
            assert set(slices.of(batch.triples[:, side.column].contiguous()).tolist()) <= set(pool)


def test_epochs_end_where_their_last_chunk_does(configured, graph):
    trained = Trained(configured("scoring=negatives", *cut(3, 2, chunks=3)), graph)
    calendar = trained.batches.calendar
    ends = [calendar.steps(epoch) for epoch in range(4)]
    assert [step for step in range(ends[3] + 1) if calendar.finished(step) is not None] == ends
    assert [calendar.finished(end) for end in ends] == [calendar.epoch(end) for end in ends] == [0, 1, 2, 3]
    thirds = [leg.stop for number in range(3) for leg in trained.batches.pass_legs(number) if leg.last]
    assert [calendar.epoch(step) for step in thirds] == [1 / 3, 2 / 3, 1]
    among = [calendar.epoch(step) for step in range(ends[3])]
    assert np.all(np.diff(among) > 0)


@pytest.mark.parametrize("chunks", [1, 3, 7])
@pytest.mark.parametrize("millionths", [0, 1, 250_000, 333_333, MILLION - 1])
def test_a_cut_counts_what_it_chooses(chunks, millionths):
    whole, positions = Cut(chunks, millionths), np.arange(1000)
    chosen = [whole.trained(positions, chunk) for chunk in range(chunks)]
    assert np.array_equal(np.sum([*chosen, whole.held_out(positions)], axis=0), np.ones(1000))
    bounds = np.array([0, 1, 2, 17, 17, 400, 999, 1000])
    for chunk in range(chunks):
        counts = [whole.count(bounds[[k]], bounds[[k + 1]], chunk) for k in range(len(bounds) - 1)]
        assert counts == [chosen[chunk][a:b].sum() for a, b in itertools.pairwise(bounds)]


def test_more_chunks_than_triples_are_refused(configured, graph):
    with pytest.raises(ConfigError, match=r"sharding\.chunks is 5000, but .* lower it"):
        Trained(configured("scoring=negatives", *cut(3, 2, chunks=5000)), graph)


def test_all_but_all_can_be_held_out(configured, graph):
    assert Trained(configured("scoring=negatives", *cut(2, 2, holdout=0.99999999)), graph).batches.triples >= 1
