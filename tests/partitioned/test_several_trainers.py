"""What several trainers make of the rows is what a plain loop over their plan makes of them."""

import pytest
import torch
from crew import QUIET, run_by, steps_seen
from plain_crew import PlainCrew
from trained import cut

from kgexp.data.load import load
from kgexp.sharding.ledger import Ledger
from kgexp.train.step import prepare

NEGATIVES = ("scoring=negatives", "scoring.negatives=20")
ADAM = (*NEGATIVES, "optimizer=adam")
TAGS_STAY = "sharding.type_partitions={tag: 1}"
CASES = [
    (2, ADAM, cut(4, 2, slices=2, sync_steps=2)),
    (2, (*NEGATIVES, "storage=local"), cut(5, 4, slices=2, sync_steps=3, order="inside_out")),
    (3, NEGATIVES, cut(5, 2, mix=False, spread=False, sync_steps=1, prefetch=False)),
    (3, ADAM, cut(7, 2, slices=2, prefetch=False, sync_steps=5, chunks=2)),
]
OF_TYPES = [
    (2, ADAM, (*cut(4, 2, slices=2, sync_steps=2), TAGS_STAY)),
    (3, ("scoring=onevsall", "storage=local"), (*cut(3, 3, sync_steps=2), TAGS_STAY)),
    (2, NEGATIVES, (*cut(1, 2, sync_steps=1), "sharding.type_partitions={user: 6}")),
]


def assert_close(checkpoint, expected):
    for name, numbers in expected.items():
        table, key = name.split(".")
        saved = checkpoint.tensor(table, key)
        torch.testing.assert_close(saved.read(0, saved.shape[0]), numbers, rtol=1e-11, atol=1e-12, msg=name)


def compare(config, graph, trainers, folder):
    plain = PlainCrew(config, graph, trainers).run(2)
    assert_close(run_by(trainers, config, folder), plain.numbers)


def epochs(sharding):
    """Of two passes."""
    return f"train.epochs={1 if 'sharding.chunks=2' in sharding else 2}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("trainers", "overrides", "sharding"), CASES, ids=str)
def test_rows_are_those_of_a_plain_loop(configured, graph, trainers, overrides, sharding, tmp_path):
    compare(configured(*QUIET, *overrides, *sharding, epochs(sharding)), graph, trainers, tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("trainers", "overrides", "sharding"), OF_TYPES, ids=str)
def test_types_that_stay_are_trained_by_all(configured, typed, trainers, overrides, sharding, tmp_path):
    config = configured(*typed, *QUIET, *overrides, *sharding, epochs(sharding))
    compare(config, load(config["dataset"]), trainers, tmp_path)


@pytest.mark.timeout(60)
def test_most_trainers_may_be_idle_and_a_type_one_entity(configured, lonely, tmp_path):
    sharding = (*cut(3, 2, sync_steps=2), "sharding.type_partitions={country: 1}")
    config = configured(*lonely, *QUIET, *ADAM, *sharding, "train.epochs=2")
    compare(config, load(config["dataset"]), 4, tmp_path)


LOCKS = "sharding.scheduler=locks"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("trainers", "storage", "sharding"),
    [
        (3, "local", cut(7, 2, slices=2, sync_steps=1)),
        (2, "memory", cut(5, 4, chunks=2, sync_steps=3, prefetch=False)),
    ],
    ids=str,
)
def test_under_locks_every_row_is_trained_as_often_as_it_should_be(
    configured, graph, trainers, storage, sharding, tmp_path, monkeypatch
):
    """The counts of Adam do not know by whom, or in which order; nor do those of relations, which are summed."""
    config = configured(*QUIET, *ADAM, *sharding, LOCKS, f"storage={storage}", epochs(sharding))
    compare_counts(config, graph, trainers, tmp_path, monkeypatch)


@pytest.mark.timeout(60)
def test_the_first_rank_may_train_nothing(configured, lonely, tmp_path, monkeypatch):
    """It writes what all have: relations, and the type that stays."""
    hand_out = Ledger.hand_out

    def but_the_first(ledger, units, rank, near):
        return hand_out(ledger, units, rank, near) if rank else None

    monkeypatch.setattr(Ledger, "hand_out", but_the_first)
    sharding = (*cut(3, 2), LOCKS, "sharding.type_partitions={country: 1}", "train.epochs=2")
    config = configured(*lonely, *QUIET, *ADAM, *sharding)
    compare_counts(config, load(config["dataset"]), 2, tmp_path, monkeypatch)


def compare_counts(config, graph, trainers, folder, monkeypatch):
    plain = PlainCrew(config, graph, trainers)
    counts = {name: torch.zeros_like(table) for name, table in plain.numbers.items() if name.endswith("step")}
    steps = plain.batches.calendar.steps(config["train"]["epochs"])
    for step in range(steps):
        plan = prepare(plain.parts.objective, graph.num_entities, plain.batches(step)).plan
        counts["entity.step"][plan.entity.ids] += 1
        counts["relation.step"][plan.relation.ids] += 1
    seen = steps_seen(monkeypatch)
    checkpoint = run_by(trainers, config, folder)
    assert sorted(seen) == list(range(steps)) and checkpoint.step == steps
    assert_close(checkpoint, counts)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("storage", "buffer"), [("local", 2), ("memory", 2), ("memory", 4)])
def test_under_locks_trainers_go_on_from_each_others_rows(configured, graph, storage, buffer, tmp_path, monkeypatch):
    """Of three teams two can be trained at a time: one unit after the other, here by one trainer after the other. Where
    a buffer holds all partitions a pass is one unit."""
    sharding = (*cut(3, buffer, slices=2, prefetch=storage == "local"), LOCKS, f"storage={storage}", "train.epochs=2")
    config = configured(*QUIET, *ADAM, "optimizer.relation_lr=1e-300", *sharding)  # relations are asynchronous
    hand_out = Ledger.hand_out

    def in_turn(ledger, units, rank, near):
        return hand_out(ledger, units, rank, near) if ledger.leases % 2 == rank else None

    monkeypatch.setattr(Ledger, "hand_out", in_turn)
    seen = steps_seen(monkeypatch)
    checkpoint = run_by(2, config, tmp_path)
    plain = PlainCrew(config, graph, 2).run_steps(seen)
    assert seen != sorted(seen) or len({*seen}) == checkpoint.step
    assert_close(checkpoint, {name: rows for name, rows in plain.numbers.items() if name.startswith("entity")})
