"""Searches through the command, with a known function in place of the training."""

import json
import sys
from pathlib import Path

import pytest
from sweeps import trials

pytest.importorskip("optuna")

import optuna

from kgexp.errors import NonFiniteError
from kgexp.train.note import Note
from kgexp.train.pruning import Pruning, storage
from kgexp.train.record import Record
from kgexp.world import ALONE

HERE = ("-m", "hydra/sweeper=optuna", "hydra.sweep.dir=s", "tracking=none")
LR = "optimizer.lr=tag(log,interval(0.01,1))"


def study(folder: Path = Path("s")) -> optuna.Study:
    return optuna.load_study(study_name="kgexp", storage=storage(folder / "study.journal"))


def states(folder: Path = Path("s")) -> list[str]:
    return [trial.state.name for trial in study(folder).trials]


def params(folder: Path = Path("s")) -> list[dict]:
    """Of each trial by number, and as its arguments have them."""
    found = study(folder).trials
    assert [trial.number for trial in found] == list(range(len(found)))
    for trial, known in zip(found, trials(folder), strict=True):
        assert known["swept"] == [f"{key}={value}" for key, value in trial.params.items()]
    return [trial.params for trial in found]


@pytest.fixture
def function(run_module):
    """The objective is best, 1, at a learning rate of 0.1; reported every 10 epochs of 30."""

    def run(config, folder):
        value = 1 - abs(config["optimizer"]["lr"] - 0.1)
        record = Record(Path(folder))
        note = Note.read(Path(folder))
        judge = Pruning(Path(folder), note, ALONE) if note is not None and note.study is not None else None
        for epoch in (10, 20, 30):
            if judge is not None and judge(float(epoch), value * epoch / 30):
                record.update(status="pruned", objective=value * epoch / 30, epoch=epoch)
                return value * epoch / 30
        record.update(status="finished", objective=value, epoch=30)
        return value

    run_module.run = run
    return run


def test_a_search_asks_one_after_the_other_and_finds_the_best(kgexp, function):
    outcome = kgexp(*HERE, LR, "seed=3", "hydra.sweeper.n_trials=5", "hydra.sweeper.pruner=none")
    assert outcome.code == 0 and len(outcome.runs) == 5 and states() == ["COMPLETE"] * 5
    chosen = params()
    assert chosen[0] == {"optimizer.lr": 0.1}  # the configuration's own value comes first
    assert [config["optimizer"]["lr"] for config, _ in outcome.runs] == [one["optimizer.lr"] for one in chosen]
    assert {config["seed"] for config, _ in outcome.runs} == {3}
    assert "best: trial 0 (optimizer.lr=0.1)" in outcome.out
    assert study().best_trial.number == 0 and trials(Path("s"))[0]["values"] == [1.0]
    ask, tell = study().trials[1].datetime_start, study().trials[0].datetime_complete
    assert ask >= tell
    again = kgexp(*HERE, LR, "seed=3", "hydra.sweeper.n_trials=6", "hydra.sweeper.pruner=none")
    assert again.code == 0 and len(again.runs) == 1 and params()[:5] == chosen and len(params()) == 6
    other = kgexp(*HERE, "optimizer.lr=0.1,0.2", "hydra.sweeper.n_trials=9", "hydra.sweeper.pruner=none")
    assert other.code == 2 and "optimizer.lr" in other.err and other.runs == [] and len(states()) == 6
    fixed = kgexp(*HERE, LR, "seed=4", "train.epochs=9", "hydra.sweeper.n_trials=9", "hydra.sweeper.pruner=none")
    assert fixed.code == 2 and "other arguments (seed=3, seed=4, train.epochs=9)" in fixed.err and fixed.runs == []
    grid = kgexp("-m", "hydra.sweep.dir=s", "tracking=none", "seed=1,2")
    assert grid.code == 2 and "holds a search" in grid.err


def test_a_restarted_random_search_gives_the_trials_of_one_that_was_not(kgexp, function, monkeypatch):
    """The second trial's process dies; what was asked but never told comes again, with the same parameters."""
    settings = ("sampler=random", "baseline=false", "pruner=none", "n_trials=4")
    space = (LR, "model.dim=6,8", *(f"hydra.sweeper.{setting}" for setting in settings))

    class Killed(BaseException):
        pass

    def dies(config, folder):
        if folder.rpartition("/")[2].startswith("1-"):
            raise Killed
        return function(config, folder)

    monkeypatch.setattr(sys.modules["kgexp.run"], "run", dies)
    with pytest.raises(Killed):
        kgexp(*HERE, *space)
    assert states() == ["COMPLETE", "RUNNING"]
    asked = params()
    study().ask({"optimizer.lr": optuna.distributions.FloatDistribution(0.01, 1, log=True)})  # half of a question
    monkeypatch.setattr(sys.modules["kgexp.run"], "run", function)
    again = kgexp(*HERE, *space)
    assert again.code == 0 and states() == ["COMPLETE"] * 4 and params()[:2] == asked
    assert [folder.name.partition("-")[0] for _, folder in again.runs] == ["1", "2", "3"]
    assert [config["optimizer"]["lr"] for config, _ in again.runs] == [one["optimizer.lr"] for one in params()[1:]]
    assert params()[2].keys() == {"optimizer.lr", "model.dim"}
    whole = kgexp(*HERE, *space, "hydra.sweep.dir=t")
    assert whole.code == 0
    assert [one for k, one in enumerate(params(Path("t"))) if k != 2] == [params()[k] for k in (0, 1, 3)]


def test_failures_are_told_and_the_search_goes_on(kgexp, run_module, function):
    def run(config, folder):
        if config["optimizer"]["lr"] != 0.1 and folder.rpartition("/")[2].startswith("1-"):
            raise NonFiniteError("the loss is nan.")
        if folder.rpartition("/")[2].startswith("2-"):
            return Record(Path(folder)).update(status="finished", objective=float("nan"))
        return function(config, folder)

    run_module.run = run
    arguments = (*HERE, LR, "hydra.sweeper.n_trials=4", "hydra.sweeper.pruner=none")
    outcome = kgexp(*arguments)
    assert outcome.code == 0 and states() == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    assert [trial["status"] for trial in trials(Path("s"))] == ["finished", "failed", "failed", "finished"]
    assert "failed: trial 1" in outcome.out and "the loss is nan" in outcome.out
    assert kgexp(*arguments).runs == []  # failures are known, not tried again
    run_module.run = lambda config, folder: (_ for _ in ()).throw(NonFiniteError("the loss is nan."))
    hopeless = kgexp(*HERE, LR, "hydra.sweeper.n_trials=2", "hydra.sweep.dir=t")
    assert hopeless.code == 4 and "2 of 2 trials failed" in hopeless.err


def test_trials_worse_than_the_median_are_pruned(kgexp, function):
    settings = ("n_trials=4", "startup_trials=1", "warmup_epochs=15", "sampler=random")
    outcome = kgexp(*HERE, LR, *(f"hydra.sweeper.{setting}" for setting in settings))
    assert outcome.code == 0
    results = [json.loads((folder / "result.json").read_text()) for _, folder in outcome.runs]
    assert states()[0] == "COMPLETE" and "PRUNED" in states()
    for state, result, trial in zip(states(), results, trials(Path("s")), strict=True):
        assert trial["status"] == {"PRUNED": "pruned", "COMPLETE": "finished"}[state]
        assert result["epoch"] == (20 if state == "PRUNED" else 30)  # not before the 15 epochs
    values = study().trials[0].intermediate_values
    assert values == {1000: pytest.approx(1 / 3), 2000: pytest.approx(2 / 3), 3000: pytest.approx(1)}
    pruned = states().index("PRUNED")
    alone = kgexp(f"resume={outcome.runs[pruned][1]}", "train.epochs=30")  # nobody prunes it any more
    assert alone.code == 0
    assert json.loads((outcome.runs[pruned][1] / "result.json").read_text())["status"] == "finished"


def test_a_search_for_compromises(kgexp, run_module):
    def run(config, folder):
        dim = config["model"]["dim"]
        Record(Path(folder)).update(status="finished", objective=float(dim), seconds={"train": dim**2})

    run_module.run = run
    several = (*HERE, "model.dim=6,8", "+hydra.sweeper.objectives={seconds.train: minimize}")
    refused = kgexp(*several)
    assert refused.code == 2 and "hydra.sweeper.pruner=none" in refused.err and refused.runs == []
    outcome = kgexp(*several, "hydra.sweeper.pruner=none", "hydra.sweeper.sampler=nsga2", "hydra.sweeper.n_trials=3")
    assert outcome.code == 0 and [d.name for d in study().directions] == ["MAXIMIZE", "MINIMIZE"]
    assert {tuple(trial.values) for trial in study().trials} <= {(6.0, 36.0), (8.0, 64.0)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("model.dim=6",), "nothing to choose"),
        ((LR, "hydra.sweeper.sampler=tpee"), "did you mean tpe?"),
        ((LR, "hydra.sweeper.pruner=mean"), "hydra.sweeper.pruner is mean"),
        ((LR, "hydra.sweeper.n_trials=many"), "hydra.sweeper.n_trials is many"),
        ((LR, "hydra.sweeper.n_jobs=0"), "hydra.sweeper.n_jobs is 0"),
    ],
)
def test_settings_of_a_search_are_checked(kgexp, arguments, sentence):
    outcome = kgexp(*HERE, *arguments)
    assert outcome.code == 2 and sentence in outcome.err and outcome.runs == []


def test_a_key_given_beside_the_space_is_not_searched(kgexp, function):
    outcome = kgexp(*HERE, LR, "model.dim=6,8", "model.dim=4", "hydra.sweeper.n_trials=2")
    assert [config["model"]["dim"] for config, _ in outcome.runs] == [4, 4]
    assert {tuple(one) for one in params()} == {("optimizer.lr",)}


def test_a_search_without_optuna_says_what_to_install(kgexp, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome = kgexp(*HERE, LR)
    assert outcome.code == 2 and "pip install 'kgexp[sweep]'" in outcome.err


@pytest.mark.parametrize("model", ["complex", "rotate"])
def test_the_searches_that_come_with_kgexp_compose(kgexp, function, model):
    settings = ("hydra.sweeper.n_trials=2", "hydra.sweeper.sampler=random", "hydra.sweep.dir=s", "tracking=none")
    outcome = kgexp(f"sweep=search_{model}", *settings, "train.batch_size=77")
    assert outcome.code == 0, outcome.err
    for (config, _), chosen in zip(outcome.runs, params(), strict=True):
        assert "train.batch_size" not in chosen and config["train"]["batch_size"] == 77
        for key, value in chosen.items():
            group, _, name = key.partition(".")
            assert str(config[group][name]) == str(value)
    assert config["model"]["_target_"].lower().endswith(f".{model}")
    assert outcome.runs[0][0]["evaluation"]["every_epochs"] == 3
