"""What the command line hands to a run, and what it leaves in the run's folder."""

from copy import deepcopy
from pathlib import Path

import pytest

from kgexp.errors import ConfigError
from kgexp.resume import load, merge


def record(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / ".hydra").iterdir()))


def test_a_run_gets_plain_values_and_its_folder(kgexp, tmp_path):
    outcome = kgexp("model.dim=10", "train.epochs=3")
    assert outcome.code == 0 and outcome.err == ""
    [(config, folder)] = outcome.runs
    assert (config["model"]["dim"], config["train"]["epochs"], config["name"]) == (10, 3, "complex-none")
    assert config["tracking"]["name"] == "complex-none"
    assert folder.parent.parent == tmp_path / "outputs" / "runs"
    assert load(str(folder)) == config
    assert (folder / ".hydra" / "overrides.yaml").read_text().split() == [
        "-",
        "model.dim=10",
        "-",
        "train.epochs=3",
    ]


def test_two_runs_do_not_share_a_folder(kgexp):
    assert kgexp().runs[0][1] != kgexp().runs[0][1]


def test_a_sweep_over_models_is_a_run_each(kgexp, tmp_path):
    outcome = kgexp("sweep=models", "hydra.sweep.dir=sweep")
    assert outcome.code == 0
    assert [(config["name"], folder) for config, folder in outcome.runs] == [
        ("complex-none", tmp_path / "sweep" / "0-complex-none"),
        ("distmult-none", tmp_path / "sweep" / "1-distmult-none"),
        ("rotate-none", tmp_path / "sweep" / "2-rotate-none"),
        ("transe-none", tmp_path / "sweep" / "3-transe-none"),
    ]
    assert [config["model"]["_target_"].rpartition(".")[2] for config, _ in outcome.runs] == [
        "ComplEx",
        "DistMult",
        "RotatE",
        "TransE",
    ]


def test_a_sweep_has_the_objective_of_its_runs(kgexp):
    """The basic sweeper drops what runs return; the function that launchers call must not."""
    from hydra.core.hydra_config import HydraConfig

    from kgexp import cli

    returned = []
    original = cli._run

    def spy(cfg):
        returned.append((HydraConfig.get().job.num, original(cfg)))
        return returned[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_run", spy)
        kgexp("-m", "model.dim=4,6")
    assert returned == [(0, 4.0), (1, 6.0)]


def test_a_folder_with_a_run_is_not_started_anew(kgexp, tmp_path):
    first = kgexp("hydra.run.dir=here", "seed=1")
    before = record(tmp_path / "here")
    again = kgexp("hydra.run.dir=here", "seed=2")
    assert again.code == 2 and "holds a run already" in again.err and again.runs == []
    assert record(tmp_path / "here") == before
    assert load("here") == first.runs[0][0]


def test_a_resumed_run_starts_from_its_own_configuration(kgexp, tmp_path):
    first = kgexp("hydra.run.dir=here", "model=distmult", "model.dim=6", "seed=5", "train.epochs=3")
    before, saved = record(tmp_path / "here"), (tmp_path / "here" / "config.yaml").read_bytes()
    again = kgexp("resume=here", "train.epochs=9", "tracking=none", "evaluation.block=17")
    assert again.code == 0
    [(config, folder)] = again.runs
    assert folder == tmp_path / "here"
    expected = deepcopy(first.runs[0][0])
    expected["train"]["epochs"], expected["resume"], expected["evaluation"]["block"] = 9, "here", 17
    expected["tracking"] |= {"mode": "disabled", "name": "complex-none"}
    assert config == expected
    assert record(tmp_path / "here") == before
    assert (tmp_path / "here" / "config.yaml").read_bytes() == saved


def test_auto_starts_what_is_not_there_and_continues_what_is(kgexp):
    arguments = ("hydra.run.dir=here", "resume=auto", "model.dim=6", "train.batch_size=7")
    first, again = kgexp(*arguments), kgexp(*arguments)
    assert (first.code, again.code) == (0, 0)
    assert first.runs[0][0] == again.runs[0][0]


@pytest.mark.parametrize("extra", ["-m", "hydra.run.dir=elsewhere"])
def test_one_run_is_resumed_in_its_own_folder_only(kgexp, extra):
    kgexp("hydra.run.dir=here")
    outcome = kgexp("resume=here", extra)
    assert outcome.code == 2 and "in its own folder" in outcome.err and outcome.runs == []


def test_a_damaged_configuration_is_named(kgexp, tmp_path):
    kgexp("hydra.run.dir=here")
    (tmp_path / "here" / "config.yaml").write_text("model: [", encoding="utf-8")
    outcome = kgexp("resume=here")
    assert outcome.code == 2 and "config.yaml" in outcome.err and outcome.err.count("\n") == 1


SAVED = {
    "seed": 3,
    "resume": None,
    "plugins": ["theirs"],
    "model": {"_target_": "a.B", "dim": 6, "extra": {"deep": 1}},
    "train": {"epochs": 3, "batch_size": 50},
    "evaluation": {"splits": ["valid"], "objective": "realistic/both/mrr"},
}
DEFAULT = {
    "seed": 0,
    "resume": "run",
    "plugins": [],
    "model": {"_target_": "a.B", "dim": 200},
    "train": {"epochs": 30, "batch_size": 500},
    "evaluation": {"splits": ["valid", "test"], "objective": "realistic/both/mr"},
}


def test_defaults_do_not_change_a_resumed_run():
    assert merge(SAVED, DEFAULT, ["resume=run"]) == SAVED | {"resume": "run", "plugins": []}


def test_what_may_change_is_taken_from_the_arguments_only():
    composed = DEFAULT | {"train": {"epochs": 9, "batch_size": 500}}
    merged = merge(SAVED, composed, ["train.epochs=9", "evaluation.splits=[valid,test]"])
    assert merged["train"] == {"epochs": 9, "batch_size": 50}
    assert merged["evaluation"] == {"splits": ["valid", "test"], "objective": "realistic/both/mrr"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["seed=0"], ["seed (3, not 0)"]),
        (["model.dim=200"], ["model.dim (6, not 200)"]),
        (["model=b"], ["model.dim (6, not 200)", "model.extra.deep (1, not absent)"]),
        (["evaluation=full"], ["evaluation.objective (realistic/both/mrr, not realistic/both/mr)"]),
        (["train.epochs=30", "train.batch_size=500"], ["train.batch_size (50, not 500)"]),
        (["experiment=x"], ["seed (3, not 0)", "train.batch_size (50, not 500)"]),
    ],
)
def test_what_must_not_change_is_named(arguments, named):
    with pytest.raises(ConfigError) as caught:
        merge(SAVED, DEFAULT, arguments)
    for words in named:
        assert words in str(caught.value)
    assert "train.epochs" not in str(caught.value)


def test_what_is_given_as_it_was_is_no_change():
    assert merge(SAVED, SAVED, ["seed=3", "model=b", "experiment=x"]) == SAVED


def test_an_experiment_given_again_does_not_shorten_the_run():
    composed = SAVED | {"train": {"epochs": 1, "batch_size": 50}}
    assert merge(SAVED, composed, ["experiment=x"])["train"]["epochs"] == 3


NONE = {"_target_": "a.Local"}
ROWWISE = {"_target_": "a.Rowwise", "ranks": 4, "timeout": 60.0, "wire_dtype": None}


@pytest.mark.parametrize(
    ("before", "now", "arguments", "after"),
    [
        (NONE, ROWWISE, ["sharding=rowwise", "sharding.ranks=4"], ROWWISE),
        (ROWWISE, NONE, ["sharding=none"], NONE),
        (ROWWISE, ROWWISE | {"ranks": 2}, ["sharding.ranks=2"], ROWWISE | {"ranks": 2}),
        (ROWWISE, NONE, [], ROWWISE),
        (ROWWISE, NONE, ["experiment=x"], ROWWISE),
    ],
)
def test_a_run_goes_on_with_another_sharding_as_a_whole(before, now, arguments, after):
    merged = merge(SAVED | {"sharding": before}, SAVED | {"sharding": now}, arguments)
    assert merged == SAVED | {"sharding": after}
