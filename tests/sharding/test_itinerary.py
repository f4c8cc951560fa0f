"""Every pair of slices is trained once a pass, while both are in memory, and no two passes are alike."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.sharding.itinerary import Itinerary
from kgexp.sharding.orders import ORDERS


@st.composite
def itineraries(draw):
    partitions, slices, pinned = draw(st.integers(0, 6)), draw(st.integers(1, 3)), draw(st.integers(0, 2))
    pinned = pinned if partitions else pinned + 1
    mix = draw(st.booleans())
    total = partitions * slices + pinned
    numbers = draw(st.permutations(range(total)))
    cuts = draw(st.sets(st.integers(0, partitions), max_size=3)) | {0, partitions}
    types = np.diff(sorted(cuts)).tolist()
    buffer = draw(st.integers(min(2, partitions), partitions))
    density, seed = draw(st.sampled_from([0, 0.05, 0.4, 1])), draw(st.integers(0, 99))
    needed = np.random.default_rng(seed).random((total, total)) < density
    itinerary = Itinerary(
        partitions,
        slices,
        buffer,
        draw(st.sampled_from(ORDERS)),
        seed,
        mix=mix,
        spread=mix and draw(st.booleans()),
        needed=draw(st.sampled_from([None, needed])),
        pinned=tuple(sorted(numbers[:pinned])),
        types=draw(st.sampled_from([(), tuple(types)])),
    )
    return itinerary, buffer * slices + pinned


@given(itineraries(), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_every_needed_pair_is_trained_once_while_it_is_in_memory(case, number):
    itinerary, room = case
    visits, count = itinerary.visits(number), itinerary.slices
    trained = np.sort(np.concatenate([visit.buckets for visit in visits]))
    assert trained.dtype == np.int64 and trained.tolist() == np.flatnonzero(itinerary.needed).tolist()
    for visit in visits:
        resident = set(visit.resident)
        assert list(visit.resident) == sorted(resident) and len(resident) <= room
        assert set(itinerary.pinned) <= resident
        assert visit.buckets.tolist() == sorted(visit.buckets.tolist())
        assert set((visit.buckets // count).tolist()) <= set(visit.heads) <= resident
        assert set((visit.buckets % count).tolist()) <= set(visit.tails) <= resident
        if itinerary.mix:
            assert visit.heads == visit.tails == visit.resident


def build(order="covering", *, partitions=4, slices=3, buffer=2, mix=True, spread=False, **more):
    return Itinerary(partitions, slices, buffer, order, 7, mix=mix, spread=spread, **more)


def test_a_pass_depends_on_its_number_alone():
    one, two = build(spread=True), build(spread=True)
    two.visits(1), two.visits(0)  # in another sequence
    for number in (0, 1, 2):
        for a, b in zip(one.visits(number), two.visits(number), strict=True):
            assert a.resident == b.resident and np.array_equal(a.buckets, b.buckets)


def test_passes_group_the_slices_anew():
    """Four partitions of three slices: twelve of the 66 pairs share one, others in each pass."""
    itinerary, met = build(mix=False), set()
    for number in range(12):
        groups = {visit.heads for visit in itinerary.visits(number)}
        assert sorted(a for group in groups for a in group) == list(range(12))
        pairs = {pair for group in groups for pair in combinations(group, 2)}
        assert len(pairs) == 12 and pairs != met
        met |= pairs
    assert len(met) > 50  # 60 are expected


def test_slices_are_grouped_with_those_of_their_type():
    """Two partitions of the slices 1 to 6, one type, and three of 8 to 16, another; 0 and 7 stay."""
    itinerary, met = build(mix=False, partitions=5, pinned=(0, 7), types=(2, 3)), set()
    for number in range(6):
        groups = {tuple(k for k in visit.heads if k not in (0, 7)) for visit in itinerary.visits(number)}
        assert sorted(a for group in groups for a in group) == [*range(1, 7), *range(8, 17)]
        assert all(group[-1] < 7 or group[0] > 7 for group in groups)
        met |= groups
    assert len(met) > 20


def test_one_type_is_grouped_as_without_types():
    one, two = build(types=(4,)), build()
    for a, b in zip(one.visits(2), two.visits(2), strict=True):
        assert a.resident == b.resident and np.array_equal(a.buckets, b.buckets)


def test_pairs_that_no_relation_joins_are_not_visited():
    """Three partitions of users, which sit with two of items: six loads of users are none too many."""
    needed = np.zeros((5, 5), bool)
    needed[:3, 3:] = True
    visits = build("covering", partitions=5, slices=1, buffer=2, types=(3, 2), needed=needed).visits(0)
    assert sorted(tuple(visit.resident) for visit in visits) == [(u, i) for u in range(3) for i in (3, 4)]
    assert sorted(int(b) for visit in visits for b in visit.buckets) == np.flatnonzero(needed).tolist()


def test_where_all_slices_stay_there_is_one_visit():
    for mix in (True, False):
        (visit,) = build(partitions=0, buffer=0, mix=mix, pinned=(0, 1, 2)).visits(4)
        assert visit.resident == visit.heads == visit.tails == (0, 1, 2) and visit.buckets.tolist() == list(range(9))


def test_loads_go_on_from_the_pass_before():
    itinerary = build(pinned=(12, 13))
    held, expected = set(), []
    for number in range(3):
        expected.append(0)
        for visit in itinerary.visits(number):
            expected[-1] += len(set(visit.resident) - held)
            held = set(visit.resident)
    assert [itinerary.loads(number) for number in (2, 0, 1)] == [expected[2], expected[0], expected[1]]
    assert expected[0] == 7 * 3 + 2  # seven loads of partitions; the pinned ones come once


def test_spread_trains_a_pair_at_any_of_its_stays():
    """Slice pairs inside a partition are held by several stays: the first takes all, or each a like share."""
    eager, spread = ([len(v.buckets) for v in build(partitions=6, slices=8, spread=s).visits(0)] for s in (False, True))
    assert sum(eager) == sum(spread) == 48 * 48 and len(eager) == len(spread) == 15
    # Each of the fifteen stays has 128 pairs across its partitions; the first has all pairs inside its two as well.
    assert eager[0] == 128 + 128 and min(eager) == 128
    assert max(spread) < 190 and np.mean(spread) == pytest.approx(153.6)
    itinerary = build(partitions=6, slices=8, spread=True)
    for visit in itinerary.visits(0):
        a, b = visit.buckets // 48, visit.buckets % 48
        assert set(visit.buckets.tolist()) == set((b * 48 + a).tolist())


def test_without_mixing_a_bucket_is_a_visit():
    visits = build("inside_out", mix=False).visits(0)
    assert len(visits) == 16
    for visit in visits:
        pairs = {(a, b) for a in visit.heads for b in visit.tails}
        assert len(visit.heads) == len(visit.tails) == 3
        assert {(a // 12, a % 12) for a in visit.buckets.tolist()} == pairs


def test_one_partition_is_one_visit():
    (visit,) = build(partitions=1, buffer=1, slices=5).visits(3)
    assert visit.resident == visit.heads == visit.tails == (0, 1, 2, 3, 4)
    assert visit.buckets.tolist() == list(range(25))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": False, "spread": True}, "spread needs mix"),
        ({"pinned": (3, 3)}, "pinned is .* distinct slices below 14"),
        ({"pinned": (13,)}, "pinned is .* distinct slices below 13"),
        ({"types": (1, 2)}, "together they must have the 4 partitions"),
        ({"needed": np.ones((4, 4), dtype=bool)}, r"it must be \(12, 12\)"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
