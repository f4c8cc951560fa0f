"""Runs of a search: they end early where others fared better, on all ranks at once, and are as ever where not."""

import json

import pytest

pytest.importorskip("optuna")

import optuna
from rank_threads import as_ranks

from kgexp.run import run
from kgexp.train.note import Note
from kgexp.train.pruning import STUDY, pruner, storage

SETTINGS = (
    *("train.epochs=3", "train.threads=1", "evaluation.every_epochs=1", "tracking.mode=disabled"),
    "tracking.progress=none",
)


def begin(sweep, others: float, name: str = "median") -> optuna.Study:
    """A study in which four trials had these values after each epoch, and the fifth is running; its note."""
    settings = {"name": name, "startup_trials": 4, "warmup_epochs": 1}
    study = optuna.create_study(
        storage=storage(sweep / STUDY), study_name="kgexp", direction="maximize", pruner=pruner(**settings)
    )
    for _ in range(4):
        trial = study.ask()
        for epoch in (1, 2):
            trial.report(others, 100 * epoch)
            trial.should_prune()
        study.tell(trial, others)
    Note("s", "seed=1", study.ask().number, f"../{STUDY}", settings).write(sweep / "4-x")
    return study


def result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(("ranks", "name"), [(1, "median"), (2, "median"), (1, "halving")])
def test_a_trial_that_fares_worse_than_others_ends_early(tmp_path, configured, ranks, name):
    study = begin(tmp_path, 0.99, name)
    sharding = ("sharding=rowwise", "sharding.ranks=2") if ranks > 1 else ()
    config = configured(*SETTINGS, *sharding)
    values = as_ranks(ranks, lambda world: run(config, str(tmp_path / "4-x"), world))
    found = result(tmp_path / "4-x")
    assert (found["status"], found["epoch"], found["ranks"]) == ("pruned", 1, ranks)
    assert values[0] == found["objective"] < 0.99
    assert found["metrics"] and not any(name.startswith("test/") for name in found["metrics"])
    assert not (tmp_path / "4-x" / "test_relations.tsv").exists()
    assert study.trials[4].intermediate_values == {100: found["objective"]}


def test_a_trial_that_fares_better_is_as_without_a_search(tmp_path, configured):
    study = begin(tmp_path, 0.0)
    config = configured(*SETTINGS)
    for name in ("4-x", "alone"):
        (tmp_path / name).mkdir(exist_ok=True)
        run(config, str(tmp_path / name))
    assert result(tmp_path / "4-x")["status"] == "finished"
    assert result(tmp_path / "4-x")["metrics"] == result(tmp_path / "alone")["metrics"]
    assert sorted(study.trials[4].intermediate_values) == [100, 200]  # nothing is to be decided at the end


def test_a_trial_that_is_over_in_its_study_is_not_judged_again(tmp_path, configured):
    study = begin(tmp_path, 0.99)
    study.tell(4, state=optuna.trial.TrialState.PRUNED)
    run(configured(*SETTINGS), str(tmp_path / "4-x"))
    assert result(tmp_path / "4-x")["status"] == "finished" and study.trials[4].intermediate_values == {}


def test_a_run_that_was_moved_away_from_its_study_goes_on(tmp_path, configured):
    begin(tmp_path, 0.99)
    (tmp_path / STUDY).rename(tmp_path / "elsewhere")
    run(configured(*SETTINGS), str(tmp_path / "4-x"))
    assert result(tmp_path / "4-x")["status"] == "finished" and not (tmp_path / STUDY).exists()
