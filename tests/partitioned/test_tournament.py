"""Several trainers share a pass: every two teams meet in one match, and nobody waits where all are paired."""

from itertools import chain, combinations, groupby, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.sharding.itinerary import Itinerary
from kgexp.sharding.orders import ORDERS
from kgexp.sharding.tournament import tournament


def complete(teams):
    return np.ones((teams, teams), dtype=bool)


@st.composite
def leagues(draw):
    teams, density, seed = draw(st.integers(1, 11)), draw(st.sampled_from([0.1, 0.4, 1])), draw(st.integers(0, 99))
    needed = np.random.default_rng(seed).random((teams, teams)) < density
    if draw(st.booleans()):  # two kinds, which do not meet their own
        needed[: teams // 2, : teams // 2] = needed[teams // 2 :, teams // 2 :] = False
    return needed, draw(st.integers(1, 5))


@given(leagues(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_teams_meet_once(league, stream):
    needed, trainers = league
    rounds = tournament(needed, trainers, stream)
    links = needed | needed.T
    wanted = {(a, b) for a, b in combinations(range(len(needed)), 2) if links[a, b]}
    alone = {(a,) for a in range(len(needed)) if needed[a, a]} - {(a,) for pair in wanted for a in pair}
    assert sorted(match.teams for matches in rounds for match in matches) == sorted(wanted | alone)
    for matches in rounds:
        teams = [team for match in matches for team in match.teams]
        own = [match.trainer for match in matches]
        assert matches and len(teams) == len(set(teams))
        assert own == sorted(set(own)) and set(own) <= set(range(trainers))


@given(leagues(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_trainers_keep_as_many_teams_as_can_be(league, stream):
    """Against all ways to give the matches of a round to trainers."""
    needed, trainers = league
    holds = [set() for _ in range(trainers)]
    for matches in tournament(needed, trainers, stream):

        def kept(order, holds=tuple(holds), matches=matches):
            return sum(not holds[own].isdisjoint(match.teams) for own, match in zip(order, matches, strict=True))

        best = max(map(kept, permutations(range(trainers), len(matches))))
        assert kept([match.trainer for match in matches]) == best
        for match in matches:
            holds = [teams - set(match.teams) for teams in holds]
        for match in matches:
            holds[match.trainer] = set(match.teams)


@pytest.mark.parametrize("trainers", [1, 2, 3, 4, 8])
def test_two_teams_for_each_trainer_leave_none_idle(trainers):
    rounds = tournament(complete(2 * trainers), trainers, 5)
    assert [len(matches) for matches in rounds] == [trainers] * (2 * trainers - 1)
    for before, after in pairwise(rounds):
        shared = [len(set(a.teams) & set(b.teams)) for a, b in zip(before, after, strict=True)]
        assert shared == [1] * trainers


@pytest.mark.parametrize(
    ("teams", "trainers", "rounds"),
    [(5, 2, 5), (7, 3, 7), (4, 4, 3), (13, 8, 13), (7, 2, 11), (9, 2, 18), (12, 3, 22), (18, 8, 20), (1, 3, 1)],
)
def test_rounds_are_few(teams, trainers, rounds):
    """The matches by the trainers, rounded up; one round for each team where these are odd and have trainers enough."""
    for stream in range(3):
        assert len(tournament(complete(teams), trainers, stream)) == rounds


@pytest.mark.parametrize(
    ("users", "items", "trainers", "rounds"), [(8, 8, 8, 8), (6, 10, 6, 10), (5, 3, 4, 5), (5, 5, 3, 9)]
)
def test_rounds_of_two_kinds_are_few(users, items, trainers, rounds):
    """As many as a team of the smaller kind has matches, where there are trainers for all of these teams."""
    needed = np.zeros((users + items, users + items), dtype=bool)
    needed[users:, :users] = True
    for stream in range(5):
        assert len(tournament(needed, trainers, stream)) == rounds


def test_streams_shuffle_teams():
    plans = [tournament(complete(8), 4, stream) for stream in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    firsts = {match.teams for stream in range(40) for match in tournament(complete(8), 4, stream)[0]}
    assert len(firsts) == 28, "any two teams can meet first"


BIPARTITE = np.kron([[0, 1], [0, 0]], np.ones((6, 6))) > 0
TYPED = np.random.default_rng(3).random((16, 16)) < 0.4

CASES = {
    "byes": {"partitions": 5, "buffer": 2, "slices": 3, "trainers": 2},
    "byes of three": {"partitions": 7, "buffer": 2, "trainers": 3},
    "idle trainers": {"partitions": 4, "buffer": 2, "slices": 3, "trainers": 4},
    "teams of two": {"partitions": 12, "buffer": 4, "trainers": 3},
    "an order in a match": {"partitions": 12, "buffer": 2, "trainers": 3},
    "uneven teams": {"partitions": 11, "buffer": 3, "slices": 3, "trainers": 2},
    "many teams": {"partitions": 12, "buffer": 4, "trainers": 3, "teams": 9},
    "more teams than partitions": {"partitions": 5, "buffer": 3, "trainers": 2, "teams": 40},
    "bipartite": {"partitions": 12, "buffer": 2, "trainers": 2, "needed": BIPARTITE, "types": (6, 6)},
    "types and pinned": {
        "partitions": 7,
        "slices": 2,
        "buffer": 3,
        "trainers": 2,
        "needed": TYPED,
        "types": (3, 4),
        "pinned": (0, 7),
    },
    "only pinned pairs": {
        "partitions": 3,
        "buffer": 2,
        "trainers": 2,
        "needed": np.diag([0, 0, 0, 1]) > 0,
        "pinned": (3,),
    },
    "one partition": {"partitions": 1, "slices": 5, "buffer": 1, "trainers": 3},
    "all pinned": {"partitions": 0, "buffer": 0, "trainers": 2, "pinned": (0, 1)},
}


def build(partitions, buffer, *, slices=1, order="covering", mix=True, spread=False, **more):
    return Itinerary(partitions, slices, buffer, order, 7, mix=mix, spread=spread, **more)


def units(visits):
    """The visits of each unit."""
    return [list(group) for _, group in groupby(visits, lambda visit: visit.unit)]


def slices_of(unit, pinned=()):
    return set(chain.from_iterable(visit.resident for visit in unit)) - set(pinned)


@pytest.mark.parametrize(("mix", "spread"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_trainers_share_a_pass(case, mix, spread):
    for number, order in enumerate(("covering", "random", "chained")):
        itinerary = build(**case, order=order, mix=mix, spread=spread)
        visits, count = itinerary.visits(number), itinerary.slices
        trained = np.sort(np.concatenate([visit.buckets for visit in visits]))
        assert trained.tolist() == np.flatnonzero(itinerary.needed).tolist()
        for visit in visits:
            assert len(visit.resident) <= case["buffer"] * case.get("slices", 1) + len(itinerary.pinned)
            assert set((visit.buckets // count).tolist()) <= set(visit.heads) <= set(visit.resident)
            assert set((visit.buckets % count).tolist()) <= set(visit.tails) <= set(visit.resident)
        own = units(visits)
        assert [unit[0].unit for unit in own] == list(range(len(own)))
        places = [{(visit.round, visit.trainer) for visit in unit} for unit in own]
        assert all(len(place) == 1 for place in places), "a unit has one round and one trainer"
        order_of_units = [place for unit in places for place in unit]
        assert order_of_units == sorted(set(order_of_units))
        assert {when for when, _ in order_of_units} == set(range(order_of_units[-1][0] + 1))
        assert {trainer for _, trainer in order_of_units} <= set(range(case["trainers"]))
        for _, together in groupby(own, lambda unit: unit[0].round):
            here = [slices_of(unit, itinerary.pinned) for unit in together]
            assert sum(map(len, here)) == len(set().union(*here)), "two units of a round share a slice"
        stays = [(visit.unit, resident) for resident, group in groupby(visits, lambda v: v.resident) for visit in group]
        assert stays == [(visit.unit, visit.resident) for visit in visits]


def test_a_match_is_one_stay_where_both_teams_fit():
    for partitions, buffer in ((6, 2), (12, 4), (12, 6)):
        for order in ORDERS:
            visits = build(partitions, buffer, trainers=3, order=order).visits(1)
            assert [visit.unit for visit in visits] == list(range(15))
            assert all(len(visit.resident) == partitions // 3 for visit in visits)


def test_a_trainer_orders_larger_matches_itself():
    """Two teams of two partitions: four pairs between them, and one inside each team when it plays first."""
    own = units(build(12, 2, trainers=3).visits(0))
    assert [len(unit) for unit in own] == [6] * 3 + [4] * 12
    assert all(len(slices_of(unit)) == 4 for unit in own)


def test_types_make_teams():
    """Two teams of users meet two of items, all others stay away: two rounds, in which both trainers are busy."""
    visits = build(12, 6, trainers=2, needed=BIPARTITE, types=(6, 6)).visits(0)
    assert [(visit.round, visit.trainer) for visit in visits] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for visit in visits:
        assert sum(k < 6 for k in visit.resident) == 3


def test_matches_have_orders_of_their_own():
    """In seed and number of the match: else a pass would repeat one order."""
    seen = set()
    for unit in units(build(12, 2, order="random", trainers=3, spread=True).visits(0))[3:]:
        names = sorted(slices_of(unit))
        seen.add(tuple(tuple(names.index(k) for k in visit.resident) for visit in unit))
    assert len(seen) > 6


@pytest.mark.parametrize("mix", [True, False])
def test_one_trainer_counts_stays(mix):
    visits = build(5, 2, mix=mix).visits(0)
    stays = list(groupby(visits, lambda visit: visit.resident))
    assert len(stays) == 10
    for visit in visits:
        assert (visit.round, visit.trainer) == (visit.unit, 0)
    assert [unit[0].resident for unit in units(visits)] == [resident for resident, _ in stays]


@pytest.mark.parametrize("case", [CASES["one partition"], CASES["all pinned"]])
def test_what_fits_one_trainer_is_one_visit(case):
    (visit,) = build(**case).visits(3)
    assert (visit.unit, visit.round, visit.trainer) == (0, 0, 0)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("trainers", [2, 3, 4, 8])
@pytest.mark.parametrize(("times", "buffer"), [(2, 2), (4, 2), (4, 4)])
def test_all_trainers_are_always_busy(trainers, times, buffer, number):
    """A unit begins when its trainer and its slices are free and takes as long as it has buckets."""
    free, ready, work = [0] * trainers, {}, 0
    for unit in units(build(times * trainers, buffer, trainers=trainers).visits(number)):
        slices, trainer, buckets = slices_of(unit), unit[0].trainer, sum(len(visit.buckets) for visit in unit)
        end = max(free[trainer], *(ready.get(k, 0) for k in slices)) + buckets
        free[trainer] = end
        ready |= dict.fromkeys(slices, end)
        work += buckets
    assert work == (times * trainers) ** 2
    assert work / (trainers * max(free)) == 1


def test_loads_of_two_trainers():
    """Four partitions: two each in the first round, and one each in the two that follow."""
    itinerary = build(4, 2, slices=3, trainers=2, pinned=(5,))
    assert [itinerary.loads_of(0, trainer) for trainer in (0, 1)] == [1 + 4 * 3] * 2
    assert itinerary.loads(0) == 2 * (1 + 4 * 3)


@pytest.mark.parametrize("case", ["byes", "teams of two", "an order in a match", "bipartite", "types and pinned"])
def test_loads_go_on_from_the_pass_before(case):
    """A slice stays where it is from one visit of a trainer to its next, if none of another has it between."""
    itinerary = build(**CASES[case], spread=True)
    for number in (0, 1, 2):
        before = itinerary.visits(number - 1) if number else []
        visits, expected = [*before, *itinerary.visits(number)], [0] * itinerary.trainers
        for index, visit in list(enumerate(visits))[len(before) :]:
            last = max((i for i in range(index) if visits[i].trainer == visit.trainer), default=None)
            for k in visit.resident:
                between = [] if last is None or k in itinerary.pinned else visits[last + 1 : index]
                here = last is not None and k in visits[last].resident
                expected[visit.trainer] += not here or any(k in other.resident for other in between)
        assert [itinerary.loads_of(number, trainer) for trainer in range(itinerary.trainers)] == expected
        assert itinerary.loads(number) == sum(expected)


@pytest.mark.parametrize("shared", [{"trainers": 0}, {"teams": 4}, {"trainers": 2, "teams": 1}])
def test_contradictions_are_refused(shared):
    with pytest.raises(ValueError, match="at least one trainer, and two teams where more share"):
        build(6, 2, **shared)
