"""The stays of a pass, and which trainer has each of them when: in its own order inside a match of a tournament."""

from dataclasses import dataclass

import numpy as np

from kgexp.randomness import Purpose, key
from kgexp.sharding.covering import Bool, Int64
from kgexp.sharding.orders import Stay, stays
from kgexp.sharding.tournament import tournament


@dataclass(frozen=True)
class Turn:
    """A stay and its place in the pass; see `Visit` for the numbers."""

    stay: Stay
    unit: int = 0
    round: int = 0
    trainer: int = 0


def turns(
    order: str, needed: Bool, buffer: int, teams: int, trainers: int, seed: int, number: int, *, ahead: bool
) -> list[Turn]:
    """Pass `number` in which each bucket of `needed`, bool[P, P], is in exactly one stay: by rounds, then trainers.

    One trainer follows one order (see `stays`). Of several, each follows it in every match over the partitions of its
    two teams alone: it trains the buckets between the teams, and those inside a team that no match before has trained.
    A team is P / teams partitions that follow one another, so of one type where they can be.
    """
    if trainers == 1:
        alone = stays(order, len(needed), buffer, seed, number, needed=needed, ahead=ahead)
        return [Turn(stay, k, k) for k, stay in enumerate(alone)]
    members = np.array_split(np.arange(len(needed)), teams)
    team = np.repeat(np.arange(teams), [len(own) for own in members])
    meet = np.zeros((teams, teams), dtype=bool)
    np.logical_or.at(meet, (team[:, None], team), needed)
    stream = key(seed, Purpose.PASS, number, 3)
    plan: list[Turn] = []
    left, unit = needed.copy(), 0
    for when, matches in enumerate(tournament(meet, trainers, stream)):
        for match in matches:
            own = np.concatenate([members[k] for k in match.teams])
            block = np.ix_(own, own)
            held = min(buffer, len(own))
            way = "covering" if held == len(own) else order  # all are in memory at once: in one stay
            inside = stays(way, len(own), held, key(stream, unit), number, needed=left[block], ahead=ahead)
            plan += [Turn(_renamed(stay, own), unit, when, match.trainer) for stay in inside]
            left[block] = False
            unit += 1
    return plan


def _renamed(stay: Stay, names: Int64) -> Stay:
    """With `names`, int64[partitions], ascending, in place of 0, 1, …."""
    resident = tuple(names[list(stay.resident)].tolist())
    return Stay(resident, tuple((int(names[i]), int(names[j])) for i, j in stay.buckets))
