"""Who trains which part of a pass where several trainers share it: a tournament, as pure data.

The partitions are divided into teams. Every two teams that have triples together meet in one match, which one trainer
trains while nobody else has a team of the two. A lock server that hands out what is free when a trainer asks
(PyTorch-BigGraph: Lerer and others, MLSys 2019) leaves 16 to 18 % of the trainers' time unused where each holds two of
2N teams, as those that are free have often met. The circle method, by which clubs plan a season, leaves none: 2N teams
are all paired in each of 2N - 1 rounds. And every trainer knows the whole plan, so rows can be sent ahead of their use.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from kgexp.sharding.covering import Bool
from kgexp.sharding.orders import shuffled

Teams = tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """Two teams that one trainer has for itself during a round; or one team, which meets no other."""

    teams: Teams
    """Ascending."""
    trainer: int


def tournament(needed: Bool, trainers: int, stream: int) -> list[list[Match]]:
    """Rounds of matches, ascending by trainer; a trainer has at most one in a round, as does a team.

    `needed` is bool[Q, Q], which teams (of the head, of the tail) have triples together; a pair counts in either
    direction. A team that is needed with itself alone has a match of its own. `stream` shuffles the teams. The rounds
    are as few as can be where all teams meet, or those of one kind all of another, and the trainers are as many as the
    matches that a round can have; else about as few.
    """
    links = needed | needed.T
    names = shuffled(len(links), stream).tolist()
    pairs = [(names[a], names[b]) for a, b in _circle(len(links)) if links[names[a], names[b]]]
    rounds: list[list[Teams]] = [[(a, b) for a, b in meets.items() if a < b] for meets in _packed(pairs, trainers)]
    for team in names:
        if links[team].sum() == links[team, team] == 1:
            place = next((matches for matches in rounds if len(matches) < trainers), None)
            if place is None:
                rounds.append(place := [])
            place.append((team,))
    return _assigned(rounds, trainers)


def _circle(size: int) -> Iterator[tuple[int, int]]:
    """All pairs of 0 … size-1, round by round: the last stays where it is, the others go around a circle.

    In each round those face each other that are equally far from the one who meets the last. Where the number is odd
    there is no last: who would meet it has a bye.
    """
    last = size - 1 + size % 2
    for top in range(last):
        if last < size:
            yield top, last
        for distance in range(1, (last + 1) // 2):
            yield (top + distance) % last, (top - distance) % last


def _packed(pairs: list[tuple[int, int]], room: int) -> list[dict[int, int]]:
    """Whom each team meets, round by round: each pair in the earliest that has room and neither team."""
    rounds: list[dict[int, int]] = []
    for a, b in pairs:
        place = next((meets for meets in rounds if len(meets) < 2 * room and a not in meets and b not in meets), None)
        if place is None:
            place = _freed(rounds, room, a, b)
        if place is None:
            rounds.append(place := {})
        place[a], place[b] = b, a
    return rounds


def _freed(rounds: list[dict[int, int]], room: int, a: int, b: int) -> dict[int, int] | None:
    """A round that has room and neither team once it has swapped matches with another; None if there is none.

    One round lacks a, the other b. The path from b along matches of the one, the other, the one and so on (a Kempe
    chain) changes rounds, unless it leads to a. Between two kinds of teams it never does: so they need no more rounds
    than a team has matches (Kőnig 1916), if there are trainers enough.
    """
    lacking_a, lacking_b = ([meets for meets in rounds if team not in meets] for team in (a, b))
    for one, two in product(lacking_a, lacking_b):
        if min(len(one), len(two)) == 2 * room:
            continue
        path, here, there = [b], one, two
        while path[-1] in here:
            path.append(here[path[-1]])
            here, there = there, here
        grows = one if len(path) % 2 else two  # by the new match, or by one that it gets
        if path[-1] == a or len(grows) == 2 * room:
            continue
        for team in path:
            out, back = one.pop(team, None), two.pop(team, None)
            if out is not None:
                two[team] = out
            if back is not None:
                one[team] = back
        return one
    return None


def _assigned(rounds: list[list[Teams]], trainers: int) -> list[list[Match]]:
    """As many matches of a round as can be go to a trainer that still has one of their teams from its last match, all
    others to those that had the fewest matches so far."""
    plan = []
    played = [0] * trainers
    holder: dict[int, int] = {}  # of each team: who trained it last, unless its trainer gave it up since
    for teams in rounds:
        kept = _keepers([{holder[team] for team in match if team in holder} for match in teams])
        free = iter(sorted(set(range(trainers)) - set(kept.values()), key=lambda trainer: (played[trainer], trainer)))
        matches = [Match(tuple(sorted(match)), kept[k] if k in kept else next(free)) for k, match in enumerate(teams)]
        plan.append(sorted(matches, key=lambda match: match.trainer))
        busy = {match.trainer for match in matches}
        holder = {team: trainer for team, trainer in holder.items() if trainer not in busy}
        for match in matches:
            holder |= dict.fromkeys(match.teams, match.trainer)
            played[match.trainer] += 1
    return plan


def _keepers(holders: list[set[int]]) -> dict[int, int]:
    """A trainer for as many matches as can be, of those that hold a team of it: a maximum bipartite matching."""
    match_of: dict[int, int] = {}

    def seat(match: int, asked: set[int]) -> bool:
        """Whether a trainer is found, if need be by sending one's match to another (an augmenting path)."""
        for trainer in sorted(holders[match] - asked):
            asked.add(trainer)
            if trainer not in match_of or seat(match_of[trainer], asked):
                match_of[trainer] = match
                return True
        return False

    for match in range(len(holders)):
        seat(match, set())
    return {match: trainer for trainer, match in match_of.items()}
