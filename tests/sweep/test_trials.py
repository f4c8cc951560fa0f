"""`sweep.json`: trials keep their numbers and folders from one start to the next."""

import json

import pytest

from kgexp.errors import ConfigError
from kgexp.sweep.trials import SweepFolder, open_sweep

ONE = {"objective": "maximize"}


def add(sweep: SweepFolder, *seeds: int, shared: tuple[str, ...] = ()) -> list[int]:
    return [sweep.add([*shared, f"seed={seed}"], [f"seed={seed}"]).number for seed in seeds]


def test_an_extended_grid_keeps_its_trials_and_numbers_new_ones_on(tmp_path):
    with open_sweep(tmp_path / "s", ONE) as sweep:
        assert add(sweep, 1, 2, 1) == [0, 1, 0]
        sweep.trials[1].folder, sweep.trials[1].status, sweep.trials[1].values = "1-b", "finished", [0.25]
        sweep.wandb_id = "w"
        sweep.save()
        written = (tmp_path / "s" / "sweep.json").read_text()
    with open_sweep(tmp_path / "s", ONE) as sweep:
        assert add(sweep, 0, 1, 2, 3) == [2, 0, 1, 3]
        assert sweep.wandb_id == "w" and sweep.counts == {"waiting": 3, "finished": 1}
        assert (sweep.trials[1].folder, sweep.trials[1].values) == ("1-b", [0.25])
        assert sweep.place(sweep.trials[1]) == tmp_path / "s" / "1-b"
        assert (tmp_path / "s" / "sweep.json").read_text() == written  # until it is saved
        sweep.save()
    assert [t["number"] for t in json.loads((tmp_path / "s" / "sweep.json").read_text())["trials"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("argument", "new"),
    [
        ("tracking=none", False),
        ("tracking.group=mine", False),
        ("train.threads=2", False),
        ("checkpoint.keep=1", False),
        ("evaluation.block=7", False),
        ("resume=auto", False),
        ("model.dim=6", True),
        ("evaluation.splits=[valid]", True),
        ("train.steps=5", True),
    ],
)
def test_arguments_make_new_trials_where_numbers_depend_on_them(tmp_path, argument, new):
    sweep = SweepFolder(tmp_path, ONE)
    assert add(sweep, 1, 2) == [0, 1]
    assert add(sweep, 1, 2, shared=(argument,)) == ([2, 3] if new else [0, 1])
    assert argument in sweep.trials[2 if new else 0].overrides  # those of the newest start


def test_arguments_that_are_swept_make_trials_whatever_they_are(tmp_path):
    sweep = SweepFolder(tmp_path, ONE)
    threads = [["train.threads=1"], ["train.threads=2"], ["train.threads=1"]]
    assert [sweep.add(["seed=1", *one], one).number for one in threads] == [0, 1, 0]


def test_the_order_of_arguments_makes_no_new_trial(tmp_path):
    sweep = SweepFolder(tmp_path, ONE)
    assert sweep.add(["seed=1", "model.dim=6"], ["seed=1"]).number == sweep.add(["model.dim=6", "seed=1"], []).number


def test_a_folder_keeps_its_objectives(tmp_path):
    with open_sweep(tmp_path, ONE) as sweep:
        sweep.save()
    with pytest.raises(ConfigError, match="other objectives") as refusal, open_sweep(tmp_path, {"x": "minimize"}):
        pass
    assert "hydra.sweep.dir" in str(refusal.value)


def test_a_folder_has_one_leader(tmp_path):
    refused = pytest.raises(ConfigError, match="in use by process")
    with open_sweep(tmp_path, ONE), refused, open_sweep(tmp_path, ONE):
        pass
    with open_sweep(tmp_path, ONE):
        pass


@pytest.mark.parametrize(
    ("result", "values"),
    [
        ({"objective": 0.5, "seconds": {"train": 2}}, [0.5, 2.0]),
        ({"objective": None, "seconds": {"train": 2}}, None),
        ({"objective": float("nan"), "seconds": {"train": 2}}, None),
        ({"objective": 0.5, "seconds": None}, None),
        ({}, None),
    ],
)
def test_objectives_are_dotted_keys_of_the_result(tmp_path, result, values):
    sweep = SweepFolder(tmp_path, {"objective": "maximize", "seconds.train": "minimize"})
    assert sweep.objective_values(result) == values
