"""Batches of typed graphs: of one kind each, with candidates of its types."""

from collections import Counter

import numpy as np
import pytest
import torch

from kgexp.data.graph import Split
from kgexp.data.kinds import Kinds
from kgexp.data.sides import Side
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevssample import OneVsSample
from kgexp.scoring.samplers import Degree
from kgexp.scoring.share import ALL, Share
from kgexp.train.batches import Batches, Order, by_kind

CPU = torch.device("cpu")
TYPES = [range(40), range(40, 57), range(57, 60)]
ENDS = np.array([[0, 1], [0, 0], [1, 2], [0, 1], [2, 2]])  # of relations; nothing in train has the last
KINDS = Kinds.of(TYPES, ENDS)


def random_split(n=1003, seed=0):
    random = np.random.default_rng(seed)
    relation = random.integers(0, 4, n)
    ends = [[random.choice(TYPES[t]) for t in ENDS[relation, side]] for side in (0, 1)]
    return Split("train", np.stack([ends[0], relation, ends[1]], axis=1).astype(np.int32), np.arange(n) / 2)


SPLIT = random_split()


def make(seed=0, size=40, share=ALL, kinds=KINDS):
    return Batches(SPLIT, size, seed, torch.float64, None, share, kinds)


def kind_of(triples):
    (kind,) = set(KINDS.of_relations[triples[:, 1].numpy()].tolist())
    return kind


def test_every_batch_is_of_one_kind_and_an_epoch_holds_every_triple_once():
    batches = make()
    sizes = Counter(KINDS.of_relations[SPLIT.triples[:, 1]].tolist())
    steps = sum(-(-size // 40) for size in sizes.values())
    assert batches.calendar.steps(1) == steps and len(sizes) == 3
    sequences = []
    for epoch in range(2):
        epoch_batches = [batches(epoch * steps + i) for i in range(steps)]
        rows = [(*t, w) for b in epoch_batches for t, w in zip(b.triples.tolist(), b.weights.tolist(), strict=True)]
        assert sorted(rows) == sorted((*t, w) for t, w in zip(SPLIT.triples.tolist(), SPLIT.weights, strict=True))
        sequences.append([kind_of(b.triples) for b in epoch_batches])
        for batch, kind in zip(epoch_batches, sequences[-1], strict=True):
            assert all(batch.pool(side, 60).ids(np.arange(99))[0] == KINDS.ids(kind, side).start for side in Side)
            assert [batch.pool(side, 60).size for side in Side] == [len(KINDS.ids(kind, side)) for side in Side]
    assert sequences[0] != sequences[1] and sequences[0] != sorted(sequences[0])  # kinds interleave


def test_a_batch_depends_on_its_step_alone(monkeypatch):
    expected = [make()(i).triples for i in range(30)]
    assert not torch.equal(make(seed=1)(0).triples, expected[0])
    monkeypatch.setattr("kgexp.train.batches._POSITIONS", 100)
    pieces = make()
    assert all(torch.equal(pieces(i).triples, expected[i]) for i in [*range(30), 5, 4])


def test_shares_make_up_the_whole_batch():
    of_ranks = [make(share=Share(rank, 3)) for rank in range(3)]
    for step in range(30):
        whole, parts = make()(step), [batches(step) for batches in of_ranks]
        assert torch.equal(torch.cat([part.triples for part in parts]), whole.triples)
        assert {part.total for part in parts} == {len(whole)}
        assert torch.equal(parts[2].relations_before(), torch.cat([parts[0].triples, parts[1].triples])[:, 1])


def test_one_kind_changes_nothing():
    one = Kinds.of([range(60)], np.zeros((5, 2), np.int64))
    for step in (0, 7, 40):
        typed, plain = make(kinds=one)(step), make(kinds=None)(step)
        assert torch.equal(typed.triples, plain.triples) and torch.equal(typed.weights, plain.weights)


def test_groups_of_an_order_without_elements_change_nothing():
    plain, with_empty = Order([70, 13, 1], 10, 3), Order([0, 70, 13, 0, 1], 10, 3)
    assert plain.steps == with_empty.steps == 7 + 2 + 1
    for part in range(10):
        one, two = plain(2, part), with_empty(2, part)
        assert np.array_equal(one.elements, two.elements) and one.whole == two.whole == len(one.elements)
        assert [1, 2, 4][one.group] == two.group


def test_places_by_kind_do_not_depend_on_pieces(monkeypatch):
    places, sizes = by_kind(SPLIT, KINDS)
    kinds = KINDS.of_relations[SPLIT.triples[:, 1]]
    np.testing.assert_array_equal(places, np.argsort(kinds, kind="stable"))
    assert sizes == np.bincount(kinds, minlength=4).tolist() and places.itemsize == 4
    monkeypatch.setattr("kgexp.train.batches.pieces", lambda array: (array[i : i + 100] for i in range(0, 1003, 100)))
    np.testing.assert_array_equal(by_kind(SPLIT, KINDS)[0], places)


@pytest.mark.parametrize(
    "scoring",
    [
        NegativeSampling(13, 7),
        NegativeSampling(13, 7, degree_exponent=0.75, uniform_share=0.2),
        OneVsSample(11, mask="none"),
        OneVsSample(1000, mask="none"),
    ],
    ids=["uniform", "degree", "sample", "all"],
)
def test_negatives_have_the_type_of_what_they_replace(scoring):
    if getattr(scoring, "degree_exponent", 0):
        scoring._sampler = Degree(SPLIT.triples, 60, 0.75, 0.2)
    batches, seen = make(), set()
    for step in range(30):
        batch = batches(step)
        for side, drawn in scoring.candidates(batch, 60, 0).items():
            ids = KINDS.ids(kind_of(batch.triples), side)
            assert ((drawn.ids >= ids.start) & (drawn.ids < ids.stop)).all()
            if isinstance(scoring, OneVsSample):
                assert drawn.ids.shape[1] == min(scoring.negatives, len(ids))
            seen |= {(side, ids, int(i)) for i in drawn.ids.unique()}
    for ids in {ids for _, ids, _ in seen}:
        assert {i for _, of, i in seen if of == ids} == set(ids)
