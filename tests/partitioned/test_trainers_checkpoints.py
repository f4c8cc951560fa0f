"""Checkpoints do not know how many trainers wrote them; what stopped within a pass goes on with the same bits."""

import json
import shutil
from contextlib import closing

import pytest
import torch
from crew import QUIET, run_by, steps_seen
from rank_threads import as_ranks
from trained import assert_equal, cut, opened, saved

from kgexp.checkpoint.store import CheckpointStore
from kgexp.train.assembly import Parts

ADAM = ("scoring=negatives", "scoring.negatives=20", "optimizer=adam", *QUIET)
STATE = ("weight", "exp_avg", "exp_avg_sq", "step")
CREW = cut(5, 2, slices=2, sync_steps=2)
#: Who reads and writes: how many ranks, their sharding, and whether rows are in files between visits.
KINDS = {
    "none": (1, (), False),
    "rowwise": (2, ("sharding=rowwise",), False),
    "one": (1, cut(3, 2), True),
    "other": (2, cut(4, 2), True),
    "same": (3, CREW, True),
    "memory": (3, CREW, False),
}
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def written(configured, tmp_path_factory):
    """A checkpoint of three trainers."""
    return run_by(3, configured(*ADAM, *CREW, "train.epochs=1"), tmp_path_factory.mktemp("written"))


def rewritten(configured, graph, kind, checkpoint, folder):
    """The checkpoint that others write who have read one, in a copy of its folder."""
    shutil.copytree(checkpoint.path.parent, folder / "checkpoints")
    checkpoint = CheckpointStore(folder / "checkpoints", 9).open(checkpoint.step)
    ranks, sharding, files = KINDS[kind]
    config = configured(*ADAM, *sharding)

    def work(world):
        parts = Parts.of(config, graph, torch.device("cpu"), world)
        with closing(parts.sharding):
            tables = dict(zip(("entity", "relation"), parts.tables(opened(folder if files else None)), strict=True))
            for table in tables.values():
                checkpoint.load(table)
            rows = tables["entity"].read(torch.arange(world.rank, graph.num_entities, 2))
            store = CheckpointStore(folder / "checkpoints", 9, world)
            store.save(checkpoint.step + 1, tables, {"model_weight": "weight"}, {}, {})
            world.barrier("the end")
            return rows

    rows = as_ranks(ranks, work)
    weight = saved(checkpoint)["entity.weight"]
    assert all(torch.equal(part, weight[rank::2]) for rank, part in enumerate(rows))
    return CheckpointStore(folder / "checkpoints", 9).open(checkpoint.step + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_anybody_reads_what_trainers_wrote_and_back(configured, graph, written, kind, tmp_path):
    expected = saved(written, STATE)
    assert expected["entity.step"].max() > 1
    there = rewritten(configured, graph, kind, written, tmp_path / "there")
    assert_equal(saved(there, STATE), expected)
    assert_equal(saved(rewritten(configured, graph, "same", there, tmp_path / "back"), STATE), expected)


def told(folder):
    """The mean losses of epochs, as the log has them."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["train/epoch_loss"] for row in rows if "train/epoch_loss" in row]


PRECISIONS = {
    "float64": (),
    "bfloat16": ("train.dtype=float32", "train.table_dtype=bfloat16", "train.state_dtype=bfloat16"),
}


@pytest.mark.parametrize(
    ("storage", "apart", "precision"),
    [("local", False, "bfloat16"), ("memory", False, "float64"), ("memory", True, "float64")],
)
def test_who_stops_within_a_pass_goes_on_with_the_same_bits(
    configured, lonely, precision, storage, apart, tmp_path, monkeypatch
):
    """`apart`: rank 0 alone has a folder that lasts."""
    sharding = (*CREW, "sharding.type_partitions={country: 1}", f"storage={storage}")
    config = configured(*lonely, *ADAM, *sharding, *PRECISIONS[precision], "train.epochs=2")
    straight = run_by(3, config, tmp_path / "straight")
    total = straight.step
    stops = (total // 5, total - total // 6)
    steps_seen(monkeypatch, stops)
    positions = []
    for _ in stops:
        stopped = run_by(3, config, tmp_path / "stopped", apart=apart, resume="auto")
        positions.append(stopped.state["together"])
        assert stopped.step < total
    assert None not in positions and positions[0]["number"] == 0 and positions[1]["number"] == 1
    resumed = run_by(3, config, tmp_path / "stopped", apart=apart, resume="auto")
    assert resumed.step == total and resumed.state["together"] is None
    assert_equal(saved(resumed, STATE), saved(straight, STATE))
    assert told(tmp_path / "stopped") == pytest.approx(told(tmp_path / "straight"), rel=1e-6)


@pytest.mark.parametrize("apart", [False, True])
def test_under_locks_no_unit_is_trained_again_after_a_stop(configured, lonely, apart, tmp_path, monkeypatch):
    sharding = (*cut(5, 2), "sharding.scheduler=locks", "sharding.type_partitions={country: 1}")
    config = configured(*lonely, *ADAM, *sharding, "train.epochs=2")
    seen, total = steps_seen(monkeypatch, (4, 13)), 0
    while total < 3 and (checkpoint := run_by(2, config, tmp_path, apart=apart, resume="auto")).state["together"]:
        total += 1
        assert checkpoint.step == len(seen)
    assert total == 2 and sorted(seen) == list(range(checkpoint.step))


def test_other_trainers_begin_the_pass_anew(configured, lonely, tmp_path, monkeypatch):
    config = configured(*lonely, *ADAM, *CREW, "train.epochs=1")
    seen = steps_seen(monkeypatch, [8])
    stopped = run_by(3, config, tmp_path)
    assert stopped.state["together"] is not None
    seen.clear()
    finished = run_by(2, config, tmp_path, resume="auto")
    assert sorted(seen) == list(range(finished.step)) and finished.step > stopped.step
