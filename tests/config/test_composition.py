"""What the files below conf/ compose to: every choice, every sweep, the environment, settings of a machine."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from omegaconf import OmegaConf

from kgexp.build import build
from kgexp.check import check, check_choice, resolved, without_leftovers
from kgexp.config import config_dir
from kgexp.errors import ConfigError
from kgexp.resume import given_keys
from kgexp.schemas import SCHEMAS

CONF = Path(config_dir())
SWEEPS = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))
BUILT_FROM_THEIR_NODE = ("scoring", "loss", "regularizer", "auxiliary", "optimizer", "schedule", "sharding", "storage")


@pytest.mark.parametrize("place", range(max(map(len, SCHEMAS.values()))))
def test_every_choice_composes(composed, place):
    """One choice of every group at a time, for composing takes long."""
    chosen = {group: list(schemas)[place % len(schemas)] for group, schemas in SCHEMAS.items()}
    given = ["dataset.path=graph.tsv", *(f"{group}={choice}" for group, choice in chosen.items())]
    given += ["storage.url=s3://bucket/run"] * (chosen["storage"] in ("s3", "gcs"))
    config = resolved(composed(*given))
    for group, choice in chosen.items():
        node = check_choice(group, config[group])
        assert node.get("_target_") == getattr(SCHEMAS[group][choice], "_target_", None)
        if group in BUILT_FROM_THEIR_NODE:
            node.pop("relation_lr", None)  # of the other table
            assert (build(node) is None) == (node["_target_"] is None)


def settled(composed, *arguments):
    """What the command line would run for its arguments."""
    return check(without_leftovers(resolved(composed(*arguments)), given_keys(arguments)))


def test_an_experiments_values_hold_for_its_own_choices(composed):
    experiment = ("experiment=umls_complex", "dataset.path=graph")
    assert settled(composed, *experiment)["regularizer"]["weight"] == 0.005
    assert settled(composed, *experiment, "regularizer=none")["regularizer"] == {"_target_": None}
    with pytest.raises(ConfigError, match=r"regularizer\.weight belongs to regularizer=n3"):
        settled(composed, *experiment, "regularizer=none", "regularizer.weight=0.1")


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_sweep_is_a_multirun_over_values_that_can_be(composed, sweep):
    hydra = composed(f"sweep={sweep}", return_hydra_config=True).hydra
    assert str(hydra.mode) == "RunMode.MULTIRUN"
    searches = sweep.startswith("search_")
    assert hydra.runtime.choices["hydra/sweeper"] == ("optuna" if searches else "grid")
    if sweep == "models":
        assert sorted(hydra.sweeper.params.model.split(",")) == sorted(SCHEMAS["model"])
        return
    params = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in hydra.sweeper.params.items()])
    for end in (0, -1):  # the first values, and the last ones
        check(composed(f"sweep={sweep}", *(f"{param.get_key_element()}={ends(param)[end]}" for param in params)))


def ends(param):
    """The values of a swept argument: all, or the ends of an interval."""
    swept = param.value()
    return [swept.start, swept.end] if isinstance(swept, IntervalSweep) else list(param.sweep_string_iterator())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/FB15k-237", "FB15k-237"),
        ("data/UMLS/", "UMLS"),
        ("my_graph.tsv", "my_graph"),
        ("a.b.txt.gz", "a.b"),
        (".txt", ".txt"),
    ],
)
def test_a_file_names_its_graph(path, name):
    config = OmegaConf.create({"dataset": OmegaConf.load(CONF / "dataset" / "files.yaml")})
    config.dataset.path = path
    assert config.dataset.name == name


def test_the_environment_moves_the_cache_and_the_mode_of_wandb(composed, monkeypatch):
    monkeypatch.delenv("KGEXP_CACHE", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = check(composed())
    assert (config["dataset"]["cache"], config["tracking"]["mode"]) == ("~/.cache/kgexp", "offline")
    monkeypatch.setenv("KGEXP_CACHE", "/scratch/graphs")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    config = check(composed())
    assert (config["dataset"]["cache"], config["tracking"]["mode"]) == ("/scratch/graphs", "disabled")


def test_without_tracking_nothing_goes_to_wandb_whatever_the_environment_says(composed, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    assert check(composed("tracking=none"))["tracking"]["mode"] == "disabled"


def test_a_choice_of_another_package_brings_its_own_keys(composed, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("_target_: my_package.Mine\ndim: odd\ncurvature: -1\n")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    config = check(composed(search, "model=mine", "plugins=[my_package]"))
    assert config["model"] == {"_target_": "my_package.Mine", "dim": "odd", "curvature": -1}


def test_the_checked_configuration_is_plain(composed):
    def plain(node):
        if isinstance(node, dict):
            return all(isinstance(key, str) and plain(value) for key, value in node.items())
        if isinstance(node, list):
            return all(map(plain, node))
        return node is None or type(node) in (bool, int, float, str)

    config = check(composed("optimizer.lr=1"))
    assert plain(config) and not OmegaConf.is_config(config)
    assert isinstance(config["optimizer"]["lr"], float)


def test_the_settings_of_a_machine_are_taken_last(composed, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "default.yaml").write_text("# @package _global_\nmodel: {dim: 78}\nseed: 77\n")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    config = check(composed(search, "experiment=umls_complex", "dataset.path=graph", "seed=5"))
    assert (config["model"]["dim"], config["seed"]) == (78, 5), "after the files, before the command line"
