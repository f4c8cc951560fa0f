"""Choices are independent: every experiment takes every scoring, loss and model, and trains a step of each."""

from itertools import product
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tiny_runs import choice_node, write_graphs

from kgexp.check import check, check_choice, resolved, without_leftovers
from kgexp.config import config_dir
from kgexp.data.load import load
from kgexp.errors import ConfigError
from kgexp.rules import RULES
from kgexp.schemas import SCHEMAS
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import train_step

EXPERIMENTS = sorted(path.stem for path in Path(config_dir(), "experiment").glob("*.yaml"))
GROUPS = ("scoring", "loss", "model")
LOCAL = {"_target_": "kgexp.sharding.local.LocalSharding"}

#: The combinations that have no meaning: words of the rule's sentence, and when it is said.
REFUSALS = {
    "a query of scoring=kvsall has many": lambda scoring, loss, config: (scoring, loss) == ("kvsall", "margin_ranking"),
    "which spreads over all entities": lambda scoring, loss, config: (
        scoring in ("negatives", "onevssample") and config["loss"].get("label_smoothing", 0) > 0
    ),
}


def of_choice(experiment, group, choice):
    """The node that `experiment=… group=choice` composes: what the choice's file holds, then the experiment's values,
    without those for other choices."""
    body = OmegaConf.load(Path(config_dir(), "experiment", f"{experiment}.yaml"))
    node = OmegaConf.to_container(OmegaConf.merge(choice_node(group, choice), body.get(group) or {}))
    return without_leftovers({group: node}, ())[group]


def composed_with_others(composed, experiment, nodes):
    """The experiment by Hydra with other choices than its own, those that its place in the list says; their nodes have
    to be those of `of_choice`, which are far faster to make."""
    place = EXPERIMENTS.index(experiment)
    chosen = {group: list(SCHEMAS[group])[place % len(SCHEMAS[group])] for group in GROUPS}
    choices = [f"{group}={choice}" for group, choice in chosen.items()]
    config = without_leftovers(resolved(composed(f"experiment={experiment}", "dataset.path=graph", *choices)), ())
    for group, choice in chosen.items():
        assert config[group] == nodes[group, choice]
    return config


def refusal(config):
    """What the rules say about a configuration; None for a good one."""
    try:
        for rule in RULES:
            rule(config)
    except ConfigError as error:
        return str(error)
    return None


def kind(node):
    """A configuration without what cannot decide which code runs: of numbers only whether they are zero."""
    if isinstance(node, dict):
        return tuple((key, kind(value)) for key, value in node.items())
    return node != 0 if type(node) in (int, float) else str(node)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains one step on a graph of twelve entities; of what was trained already nothing is trained again."""
    folder = tmp_path_factory.mktemp("graphs")
    write_graphs(folder)
    graph = load(choice_node("dataset", "files") | {"name": "ring", "path": folder / "ring", "cache": None})
    seen = set()

    def step(config):
        small = config | {"model": config["model"] | {"dim": 8}, "train": config["train"] | {"batch_size": 7}}
        key = kind({name: small[name] for name in (*GROUPS, "regularizer", "auxiliary", "optimizer", "train")})
        if key in seen:
            return
        seen.add(key)
        parts = Parts.of(small | {"sharding": LOCAL}, graph, torch.device("cpu"))
        entity, relation = parts.tables(MemoryStorage())
        before = entity.state_tensors()["weight"].clone()
        loss = train_step(parts.objective, entity, relation, parts.batches()(0))
        after = entity.state_tensors()["weight"]
        assert loss.isfinite() and after.isfinite().all() and not torch.equal(before, after)

    return step


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_goes_with_every_scoring_loss_and_model(composed, trained, experiment):
    nodes = {(group, choice): of_choice(experiment, group, choice) for group in GROUPS for choice in SCHEMAS[group]}
    config = composed_with_others(composed, experiment, nodes)
    nodes = {(group, choice): check_choice(group, node) for (group, choice), node in nodes.items()}
    config = check(config | {group: nodes[group, next(iter(SCHEMAS[group]))] for group in GROUPS})
    for scoring, loss, model in product(*(SCHEMAS[group] for group in GROUPS)):
        chosen = zip(GROUPS, (scoring, loss, model), strict=True)
        combined = config | {group: nodes[group, choice] for group, choice in chosen}
        expected = [words for words, holds in REFUSALS.items() if holds(scoring, loss, combined)]
        said = refusal(combined)
        assert bool(expected) == bool(said), f"scoring={scoring} loss={loss} model={model}: {said}"
        if said:
            assert any(words in said for words in expected)
        else:
            trained(combined)
