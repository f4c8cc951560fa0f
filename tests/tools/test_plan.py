"""What a run will need: the figures of its bound and of its files are those of a real run."""

import json

import numpy as np
import pytest
import torch
from rank_threads import as_ranks
from small_graph import graph_folder  # noqa: F401 - a fixture

from kgexp.data.load import load_together
from kgexp.optim.adagrad import Adagrad
from kgexp.run import run
from kgexp.sharding.local import local_table
from kgexp.sharding.route import Route
from kgexp.sharding.rows import Placement, TableSpec
from kgexp.storage.memory import MemoryStorage
from kgexp.tools import plan
from kgexp.tools.choices import Chooser, Room, recommended
from kgexp.tools.composing import composed, with_choices
from kgexp.tools.folded import FoldedTable
from kgexp.tools.needs import parts_of
from kgexp.train.assembly import Parts

NEGATIVES = ("scoring=negatives", "scoring.negatives=5", "scoring.chunk_size=7", "loss=logistic")
PARTITIONED = (*NEGATIVES, "sharding=partitioned", "sharding.partitions=6", "sharding.buffer=2", "storage=local")


@pytest.fixture
def arguments(graph_folder, tmp_path, monkeypatch):  # noqa: F811
    """Of a small graph, in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = ("dataset=files", f"dataset.path={graph_folder}", f"dataset.cache={tmp_path / 'cache'}")
    own = ("model.dim=6", "train.device=cpu", "train.threads=1", "train.batch_size=101", "train.epochs=3")
    return [*data, *own, "tracking=none", "evaluation.every_epochs=2"]


def planned(capsys, *arguments):
    """The figures that the command prints."""
    assert plan.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("sharding", [("sharding=none",), ("sharding=none", "storage=local"), PARTITIONED])
def test_what_is_planned_is_what_a_run_takes(arguments, tmp_path, capsys, sharding):
    given = [*arguments, *sharding, "checkpoint.keep=1", "checkpoint.every_epochs=1", "checkpoint.snapshot_epochs=2"]
    figures = planned(capsys, *given, "--calibration", "0.2")
    config = composed(given)
    (tmp_path / "run").mkdir()
    run(config, str(tmp_path / "run"))
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert figures["needs"]["memory"]["total"] == result["memory_estimate"]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    validations = sum(any(name.startswith("valid/") for name in row) for row in rows)
    assert figures["time"]["validations"] == validations == 2

    sizes = {path: path.stat().st_size for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}
    disk = figures["needs"]["disk"]
    tensors = sum(n for path, n in sizes.items() if path.suffix == ".safetensors")
    # Headers of files, which small ones have too, and what is no rows: a few kB each.
    assert tensors <= disk["total"] + 2000 * len(sizes)
    assert disk["parts"]["snapshots"] < sum(sizes.values())
    seconds = figures["time"]["seconds"]
    assert all(value > 0 for value in seconds.values())
    assert seconds["total"] == pytest.approx(sum(seconds.values()) - seconds["total"] - seconds["epoch"])


LOCKS = (*PARTITIONED, "sharding.scheduler=locks")


@pytest.mark.parametrize("sharding", [("sharding=rowwise",), ("sharding=replicated",), PARTITIONED, LOCKS])
def test_ranks_that_are_supposed_need_what_ranks_need(arguments, sharding):
    config = composed([*arguments, *sharding])
    cpu = torch.device("cpu")

    def bound(world):
        parts = Parts.of(config, load_together(config["dataset"], world), cpu, world)
        estimate = parts.estimate(MemoryStorage())
        world.barrier("the estimate")
        parts.sharding.close()
        return estimate

    supposed = parts_of(config).supposing(config, 3).estimate(MemoryStorage())
    assert as_ranks(3, bound) == [supposed] * 3
    assert supposed.ranks == 3


def test_the_simplest_that_fits_is_recommended(arguments):
    config = composed([*arguments, *NEGATIVES, "model.dim=600"])
    choices = list(Chooser(config, parts_of(config), 0).choices(4))
    bounds = {choice.arguments: choice.needs.memory.total for choice in choices}

    def best(memory, devices):
        return recommended(choices, Room(memory, devices)).arguments

    one, four = bounds["sharding=none",], bounds["sharding=rowwise", "sharding.ranks=4"]
    assert four < one
    assert best(one, 4) == ("sharding=none",)
    assert best(one - 1, 4) == ("sharding=rowwise", "sharding.ranks=4")
    # Four ranks on two devices need twice as much of each.
    of_four = next(choice for choice in choices if choice.arguments[1:] == ("sharding.ranks=4",))
    assert of_four.fits(Room(2 * four, 2)) and not of_four.fits(Room(2 * four - 1, 2))
    # The fewest partitions, of one trainer.
    for partitions in (32, 64):
        arguments = ("sharding=partitioned", f"sharding.partitions={partitions}", "sharding.ranks=1", "storage=local")
        assert best(bounds[arguments], 1) == arguments
    assert recommended(choices, Room(min(bounds.values()) - 1, 1)) is None


@pytest.mark.parametrize("choice", [{"sharding": "rowwise"}, {"sharding": "partitioned", "storage": "local"}])
def test_a_choice_is_the_run_of_its_arguments(arguments, choice):
    pasted = composed([*arguments, *(f"{group}={name}" for group, name in choice.items()), "sharding.ranks=3"])
    assert with_choices(composed(arguments), choice, {"sharding.ranks": 3}) == pasted


def test_nothing_fits(arguments, capsys):
    given = [*arguments, *NEGATIVES, "model.dim=600", "--calibration", "0", "--memory", "200kB"]
    assert plan.main(given) == 0
    told = capsys.readouterr().out
    assert "nothing fits 200 kB: " in told and "yes" not in told
    assert "the run needs " in told and "model.dim=" in told


def test_choices_that_rules_refuse_are_told(arguments, capsys):
    given = [*arguments, "scoring=kvsall", "--calibration", "0.1", "--memory", "1GB"]
    assert plan.main(given) == 0
    told = capsys.readouterr().out
    assert "refused, sharding=partitioned: scoring=kvsall needs all answers of a query in memory at once" in told
    assert "queries/s" in told and told.rstrip().endswith("the simplest that fits: sharding=none")


def test_sizes_that_cannot_be_read_are_refused(arguments):
    for wrong in ("8", "eightGB", "8 parsecs", "-1GB"):
        with pytest.raises(SystemExit):
            plan.main([*arguments, "--memory", wrong])


@pytest.mark.parametrize(
    "overrides",
    [
        ("scoring=onevsall", "sharding=rowwise", "sharding.ranks=3"),
        ("scoring=onevsall", "sharding=partitioned", "sharding.partitions=5", "sharding.buffer=2"),
        (*PARTITIONED, "sharding.ranks=2", "evaluation=sampled", "optimizer=adam", "averaging.start=null"),
        (*NEGATIVES, "averaging.start=0.5", "evaluation=none", "train.state_dtype=bfloat16"),
    ],
)
def test_the_calibration_leaves_nothing_behind(arguments, tmp_path, capsys, overrides):
    threads = torch.get_num_threads()
    time = planned(capsys, *arguments, *overrides, "--calibration", "0.1")["time"]
    assert time["triples_per_second"] > 0 and time["seconds"]["total"] > 0
    assert (time["queries_per_second"] is None) == ("evaluation=none" in overrides)
    assert torch.get_num_threads() == threads
    assert not any((tmp_path / "here").iterdir())
    assert not any((tmp_path / "cache").glob("buckets*")), "triples are counted, not sorted"


def spec(n):
    draws = np.random.default_rng(0).normal(size=(n, 4))
    placement = Placement(torch.device("cpu"), torch.float64)
    return TableSpec("entity", n, 4, lambda ids: draws[ids], Adagrad(lr=0.1), MemoryStorage(), placement)


def test_rows_are_in_memory_over_and_over():
    folded = FoldedTable.of(spec(17), 5)
    whole = folded.read(torch.arange(17))
    assert torch.equal(whole, whole[torch.arange(17) % 5])
    blocks = list(folded.local_blocks(4, ids=range(3, 17)))
    assert [block.start for block in blocks] == [3, 5, 9, 10, 14, 15]
    assert torch.equal(torch.cat([block.rows for block in blocks]), whole[3:])
    assert sum(len(block.rows) for block in folded.showing(0.5).local_blocks(4)) == 9


def test_a_folded_table_with_room_for_all_is_a_table():
    folded, table = FoldedTable.of(spec(17), 40), local_table(spec(17))
    route = Route(torch.tensor([2, 5, 16]))
    for each in (folded, table):
        for block in each.local_blocks(6, grad=True):
            block.grad.add_(1.0)
        each.update(route, torch.ones(3, 4, dtype=torch.float64))
        each.update(route, torch.full((3, 4), 2.0, dtype=torch.float64))
    assert torch.equal(folded.gather(route), table.gather(route))
    for name, tensor in table.state_tensors().items():
        assert torch.equal(folded.state_tensors()[name], tensor)


def test_ranks_share_the_memory_of_devices():
    assert Room(100, 1).of_rank(4) == 25 and Room(100, 4).of_rank(4) == 100 and Room(100, 3).of_rank(4) == 50
