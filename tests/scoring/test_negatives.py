"""Negatives: from which distribution, for which side, and which of them take no part."""

import numpy as np
import pytest
import torch

from kgexp.data.known import KnownTriples
from kgexp.data.sides import Side
from kgexp.scoring.batch import Batch
from kgexp.scoring.masks import equal_mask, known_mask
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevssample import OneVsSample
from kgexp.scoring.pool import Pool
from kgexp.scoring.samplers import Degree


def chi_squared(drawn, probabilities):
    """The statistic of counts against expectations, with its mean and standard deviation under the hypothesis."""
    counts = np.bincount(drawn, minlength=len(probabilities))
    expected = probabilities * len(drawn)
    assert (counts[expected == 0] == 0).all()
    positive = expected > 0
    freedom = positive.sum() - 1
    value = ((counts - expected)[positive] ** 2 / expected[positive]).sum()
    return value, freedom, (2 * freedom) ** 0.5


@pytest.mark.parametrize(("exponent", "share"), [(0.0, 0.0), (1.0, 0.0), (0.75, 0.25), (2.0, 1.0)])
def test_negatives_have_the_distribution_of_degrees(world, exponent, share):
    n = world.n + 1  # the last entity has no triple
    triples = world.graph.train.triples
    degrees = np.array([(triples[:, [0, 2]] == e).sum() for e in range(n)], float)
    if exponent:
        weights = degrees**exponent
        drawn = Degree(triples, n, exponent, share).draw(5, np.arange(200_000), Pool.of([range(n)]))
    else:
        weights = np.ones(n)
        scoring = NegativeSampling(200_000, degree_exponent=exponent, uniform_share=share)
        drawn = scoring.candidates(Batch(0, world.triples), n, 5)[Side.TAIL].ids.numpy()[0]
    probabilities = (1 - share) * weights / weights.sum() + share / n
    value, mean, deviation = chi_squared(drawn, probabilities)
    assert abs(value - mean) < 4 * deviation


def test_the_technique_draws_by_degree_once_it_knows_the_graph(world):
    scoring = NegativeSampling(50_000, degree_exponent=2.0, uniform_share=0.1)
    scoring.prepare(world.graph)
    drawn = scoring.candidates(Batch(0, world.triples), world.n, 5)[Side.HEAD].ids.numpy()[0]
    degrees = np.bincount(world.graph.train.triples[:, [0, 2]].reshape(-1), minlength=world.n).astype(float)
    value, mean, deviation = chi_squared(drawn, 0.9 * degrees**2 / (degrees**2).sum() + 0.1 / world.n)
    assert abs(value - mean) < 4 * deviation


def test_bernoulli_chooses_the_side_by_the_relation(world):
    # One head with nine tails in relation 0: tph = 9, hpt = 1; relation 1 the other way round.
    forward = np.array([(0, 0, t) for t in range(1, 10)] + [(h, 1, 0) for h in range(1, 10)], np.int32)
    world.graph.known = KnownTriples.build([np.repeat(forward, 2, axis=0)], world.graph.num_relations)
    scoring = NegativeSampling(3, chunk_size=7, sides="bernoulli")
    scoring.prepare(world.graph)
    triples = torch.from_numpy(forward.astype(np.int64)).repeat(1000, 1)
    batch = scoring.choose(Batch(3, triples), seed=0)
    tails, heads = batch.examples[Side.TAIL], batch.examples[Side.HEAD]
    assert sorted(torch.cat([tails, heads]).tolist()) == list(range(len(triples)))
    for relation, share in ((0, 0.9), (1, 0.1)):
        assert (triples[heads, 1] == relation).sum().item() / 9000 == pytest.approx(share, abs=0.015)
    assert torch.equal(scoring.choose(Batch(3, triples[:50]), 0).examples[Side.HEAD], heads[heads < 50])
    assert not torch.equal(scoring.choose(Batch(4, triples), 0).examples[Side.HEAD], heads)
    drawn = scoring.candidates(batch, world.n, 0)
    assert [len(drawn[side].ids) for side in (Side.TAIL, Side.HEAD)] == [-(-len(x) // 7) for x in (tails, heads)]


def test_a_sample_holds_no_entity_twice_and_all_of_them_if_it_may(world):
    batch = Batch(2, world.triples)
    ids = OneVsSample(samples=20).candidates(batch, world.n, 1)[Side.TAIL].ids
    assert ids.shape == (1, 20) and len(set(ids[0].tolist())) == 20
    everyone = OneVsSample(samples=1000).candidates(batch, world.n, 1)[Side.HEAD].ids
    assert sorted(everyone[0].tolist()) == list(range(world.n))
    drawn = np.concatenate(
        [
            OneVsSample(samples=20).candidates(Batch(step, world.triples), world.n, 1)[Side.TAIL].ids[0]
            for step in range(150)
        ]
    )
    counts = np.bincount(drawn, minlength=world.n)
    assert abs(counts - 150 * 20 / world.n).max() < 5 * (150 * 20 / world.n) ** 0.5


@pytest.mark.parametrize("chunk_size", [1, 4, 13, 1000])
@pytest.mark.parametrize("side", Side)
def test_masks_are_those_of_sets(world, side, chunk_size):
    triples = world.triples.numpy()
    chunks = -(-len(triples) // chunk_size)
    ids = np.random.default_rng(0).integers(0, world.n, (chunks, 90))  # more than there are: some twice
    chunk = np.arange(len(triples)) // chunk_size
    equal = equal_mask(side, triples, ids, chunk)
    known = known_mask(side, triples, ids, chunk, world.graph.known)
    train = {tuple(triple) for triple in world.graph.train.triples.tolist()}
    for i, (h, r, t) in enumerate(triples.tolist()):
        drawn = ids[i // chunk_size].tolist()
        assert equal[i].tolist() == [e == (h, t)[side] for e in drawn]
        completed = [(e, r, t) if side is Side.HEAD else (h, r, e) for e in drawn]
        assert known[i].tolist() == [triple in train for triple in completed]
    assert known.sum() > equal.sum() > 0


def test_masks_of_no_examples_are_empty(world):
    none, ids = world.triples.numpy()[:0], np.zeros((0, 5), np.int64)
    chunk = np.zeros(0, np.int64)
    assert equal_mask(Side.TAIL, none, ids, chunk).shape == (0, 5)
    assert known_mask(Side.TAIL, none, ids, chunk, world.graph.known).shape == (0, 5)
