"""Grids through the command, with a stand-in for the training: what is run, what is remembered, what is said."""

import json
import math
from pathlib import Path

import pytest
from sweeps import trials

from kgexp.errors import ConfigError
from kgexp.train.note import Note
from kgexp.train.record import Record

HERE = ("-m", "hydra.sweep.dir=s", "tracking=none")


def seeds(outcome):
    return [config["seed"] for config, _ in outcome.runs]


def statuses(folder=Path("s")):
    return [trial["status"] for trial in trials(folder)]


def failing(run_module, bad):
    """The stand-in fails for seeds in `bad`."""
    good = run_module.run

    def run(config, folder):
        if config["seed"] in bad:
            Record(Path(folder)).update(status="failed", error="cursed: take another.")
            raise ConfigError("cursed: take another.")
        return good(config, folder)

    run_module.run = run


def test_a_second_start_runs_what_is_new(kgexp):
    first = kgexp(*HERE, "seed=1,2", "model.dim=6")
    assert (first.code, seeds(first), statuses()) == (0, [1, 2], ["finished"] * 2)
    assert "sweep of 2 trials: 2 finished" in first.out and "best: trial" in first.out
    before = trials(Path("s"))
    again = kgexp(*HERE, "seed=1,2,3", "model.dim=6", "train.threads=1")
    assert (again.code, seeds(again)) == (0, [3])
    assert "sweep of 3 trials" in again.out and "2 of them over" in again.out
    strip = [{key: value for key, value in trial.items() if key != "overrides"} for trial in trials(Path("s"))]
    assert strip[:2] == [{key: value for key, value in trial.items() if key != "overrides"} for trial in before]
    assert [Path(trial["folder"]).name for trial in trials(Path("s"))] == [f"{k}-complex-none" for k in range(3)]
    assert strip[2]["values"] == [6.0] and strip[2]["swept"] == ["seed=3"]


@pytest.mark.parametrize("launcher", ["local", "basic"])
def test_failed_trials_are_tried_again_and_finished_ones_are_not(kgexp, run_module, launcher):
    good = run_module.run
    failing(run_module, {1})
    first = kgexp(*HERE, "seed=0,1,2", f"hydra/launcher={launcher}")
    assert first.code == 4 and seeds(first) == [0, 1, 2]
    assert first.err.splitlines()[-1] == "error: 1 of 3 trials failed, the first with: cursed: take another."
    assert "failed: trial 1 (seed=1): cursed" in first.out and "1 failed, 2 finished" in first.out
    assert statuses() == ["finished", "failed", "finished"]
    assert "Traceback" not in first.err
    run_module.run = good
    again = kgexp(*HERE, "seed=0,1,2")
    assert (again.code, seeds(again), statuses()) == (0, [1], ["finished"] * 3)
    assert trials(Path("s"))[1]["error"] is None and again.runs[0][0]["resume"] == "auto"


def test_trials_that_cannot_be_run_are_failures_of_their_own(kgexp):
    """A contradiction, a bound, a type, a choice that is not there, an unknown key."""
    outcome = kgexp(*HERE, "model.dim=7,-2,many,6", "model=complex")
    assert outcome.code == 4 and statuses() == ["failed"] * 3 + ["finished"]
    for trial, sentence in zip(trials(Path("s")), ("must be even", "model.dim is -2", "a whole number"), strict=False):
        assert sentence in trial["error"] and "\n" not in trial["error"] and trial["values"] is None
    assert "error: 3 of 4 trials failed, the first with: model.dim is 7" in outcome.err
    assert len(outcome.runs) == 1 and "Traceback" not in outcome.err
    choice = kgexp(*HERE, "hydra.sweep.dir=t", "model=complexx,distmult")
    assert choice.code == 4 and statuses(Path("t")) == ["failed", "finished"]
    assert "did you mean complex?" in choice.err and trials(Path("t"))[0]["folder"] is None
    key = kgexp(*HERE, "hydra.sweep.dir=u", "+model.nrom=l1,l2")
    assert key.code == 4 and statuses(Path("u")) == ["failed"] * 2 and key.runs == []
    assert "model.nrom" in key.err


def test_a_key_of_one_of_the_swept_choices_is_for_that_one(kgexp):
    outcome = kgexp(*HERE, "model=transe,complex", "model.norm=l1")
    assert [config["model"]["norm"] for config, _ in outcome.runs] == ["l1"]
    assert statuses() == ["finished", "failed"] and "norm" in trials(Path("s"))[1]["error"]
    assert outcome.code == 4
    assert trials(Path("s"))[0]["swept"] == ["model=transe"]
    null = kgexp(*HERE, "hydra.sweep.dir=t", "model=transe,complex", "model.max_norm=null")
    assert null.code == 0 and len(null.runs) == 2


def test_the_same_value_twice_is_one_trial(kgexp):
    outcome = kgexp(*HERE, "seed=1,1")
    assert seeds(outcome) == [1] and "sweep of 1 trials" in outcome.out


def test_a_key_given_beside_a_sweep_file_has_that_value_alone(kgexp):
    outcome = kgexp("sweep=seeds", "hydra.sweep.dir=s", "seed=5")
    assert seeds(outcome) == [5] and len(trials(Path("s"))) == 1


def test_runs_have_the_names_of_their_trials_in_the_group_of_the_sweep(kgexp):
    outcome = kgexp("-m", "hydra.sweep.dir=sweeps/s", "model=transe,complex", "seed=3", "name=mine,theirs")
    named = [(config["tracking"]["group"], config["tracking"]["name"]) for config, _ in outcome.runs]
    labels = [f"model={model} name={name}" for model in ("transe", "complex") for name in ("mine", "theirs")]
    assert named == [("sweeps/s", label) for label in labels]
    assert {config["name"] for config, _ in outcome.runs} == {"mine", "theirs"}
    note = Note.read(outcome.runs[1][1])
    assert note == Note("sweeps/s", "model=transe name=theirs", 1)


def test_groups_and_names_of_the_user_stay(kgexp):
    outcome = kgexp("-m", "hydra.sweep.dir=s", "seed=1,2", "tracking.group=g", "tracking.name=n${seed}")
    assert [(c["tracking"]["group"], c["tracking"]["name"]) for c, _ in outcome.runs] == [("g", "n1"), ("g", "n2")]


@pytest.mark.parametrize("objective", [math.nan, None])
def test_a_run_without_an_objective_has_none(kgexp, run_module, objective):
    """Such as one whose graph has no validation triples."""

    def run(config, folder):
        value = objective if config["seed"] == 0 else 0.5
        Record(Path(folder)).update(status="finished", objective=value)
        return value

    run_module.run = run
    outcome = kgexp(*HERE, "seed=0,1")
    assert outcome.code == 0 and statuses() == ["finished", "finished"]
    assert [trial["values"] for trial in trials(Path("s"))] == [None, [0.5]]


def test_a_run_that_crashes_says_so_in_its_result(kgexp, run_module):
    def run(config, folder):
        if config["seed"] == 0:
            raise ZeroDivisionError("by zero")
        Record(Path(folder)).update(status="finished", objective=0.5)

    run_module.run = run
    outcome = kgexp(*HERE, "seed=0,1")
    assert outcome.code == 4 and "ZeroDivisionError: by zero" in trials(Path("s"))[0]["error"]
    result = json.loads((outcome.runs[0][1] / "result.json").read_text())
    assert result["status"] == "failed" and "by zero" in result["error"]
    assert "by zero" in (outcome.runs[0][1] / "kgexp.log").read_text()


@pytest.mark.parametrize(("objective", "best"), [("realistic/both/mrr", 8), ("realistic/both/mr", 6)])
def test_the_best_trial_is_the_one_that_the_objective_prefers(kgexp, objective, best):
    outcome = kgexp(*HERE, "model.dim=6,8", f"evaluation.objective={objective}")
    assert f"best: trial {[6, 8].index(best)} (model.dim={best})" in outcome.out


def test_objectives_may_be_any_figures_of_the_result(kgexp, run_module):
    def run(config, folder):
        Record(Path(folder)).update(status="finished", objective=0.5, seconds={"train": config["model"]["dim"]})

    run_module.run = run
    objectives = "+hydra.sweeper.objectives={seconds.train: minimize}"
    outcome = kgexp(*HERE, "model.dim=6,8", objectives)
    assert [trial["values"] for trial in trials(Path("s"))] == [[0.5, 6.0], [0.5, 8.0]]
    again = kgexp(*HERE, "model.dim=6,8")
    assert again.code == 2 and "other objectives" in again.err and again.runs == []
    other = kgexp(*HERE, "hydra.sweep.dir=t", "model.dim=6", objectives.replace("minimize", "smaller"))
    assert other.code == 2 and "maximize or minimize" in other.err
    assert outcome.code == 0


def test_trials_need_folders_of_their_own(kgexp):
    outcome = kgexp(*HERE, "hydra.sweep.subdir=${name}", "model.dim=6,8")
    assert outcome.code == 4 and statuses() == ["finished", "failed"]
    assert "hydra.sweep.subdir" in trials(Path("s"))[1]["error"]


def test_intervals_are_for_searches(kgexp):
    outcome = kgexp(*HERE, "optimizer.lr=interval(0.1,0.2)")
    assert outcome.code == 2 and "hydra/sweeper=optuna" in outcome.err and outcome.runs == []


def test_the_run_of_a_trial_can_be_continued_by_itself(kgexp):
    first = kgexp(*HERE, "seed=1,2")
    outcome = kgexp(f"resume={first.runs[1][1]}", "train.epochs=30")
    assert (outcome.code, seeds(outcome)) == (0, [2]) and outcome.runs[0][1] == first.runs[1][1]
