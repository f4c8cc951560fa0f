"""Every key of the configuration does something: changed by itself, it changes what the table below says.

A key that is added needs a line in `CASES`: what has to change. The value is then another one of the key's type.
"""

from dataclasses import dataclass, field, fields
from typing import Any, get_args

import pytest
from omegaconf import OmegaConf
from tiny_runs import Runs, choice_node

from kgexp.schemas import SCHEMAS, SECTIONS, Config

#: Of runs that validate after every step, of which only the first is an improvement.
VALIDATES = {"evaluation": "full", "evaluation.every_steps": 1, "early_stopping.min_delta": 10.0}
ALL_STEPS = {"checkpoint.every_steps": 1, "checkpoint.keep": 9}
EPOCHS = {"train.steps": None, "train.epochs": 3}
OFFLINE = {"tracking.mode": "offline"}
ALONE = {"dataset.path": "{graphs}/alone"}
TYPED = {"dataset.path": "{graphs}/typed"}
TYPED_RUN = TYPED | {"dataset.relation_types": "{graphs}/types.tsv"}
#: Several trainers of partitions are at one step at the ends of passes only.
TRAINERS = {"sharding.ranks": 2, "train.steps": None, "train.epochs": 2}
WHOLE = {"dataset.path": "{graphs}/whole.tsv"}


@dataclass(frozen=True)
class Case:
    """What a key does.

    Attributes:
        trace: the trace of a run (see `Runs`) that has to change: tables, losses, metrics, rows (of metrics.jsonl),
            files, printed, result (.json), work (the shapes that are scored), waits (of ranks for each other), wandb,
            or refusal. A run that is refused by a sentence that names the key will do as well.
        value: of the key; None is another one of its type.
        given: settings with which the key can matter.
        first: settings of a run that goes before, in the same folder.
    """

    trace: str
    value: Any = None
    given: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] | None = None


#: By key; what holds for one choice of a group alone is there by `group=choice key`.
CASES = {
    "seed": Case("tables"),
    "name": Case("wandb", "other", OFFLINE),
    "resume": Case("result", "auto", first={"train.steps": 2}),
    "plugins": Case("result", ["tiny_runs"], {"model._target_": "tiny_runs.Mine"}),
    "train.epochs": Case("result", 2, EPOCHS),
    "train.steps": Case("result"),
    "train.batch_size": Case("tables"),
    "train.threads": Case("result", 2),
    "train.device": Case("refusal", "cuda"),
    "train.dtype": Case("tables"),
    "train.matmul_dtype": Case("printed", "tf32"),
    "train.table_dtype": Case("tables", "bfloat16"),
    "train.state_dtype": Case("tables", "bfloat16"),
    "train.init_from": Case("refusal", "{graphs}/nothing"),
    "checkpoint.every_epochs": Case("files", 1, EPOCHS | {"checkpoint.keep": 9}),
    "checkpoint.every_steps": Case("files", 1, {"checkpoint.keep": 9}),
    "checkpoint.keep": Case("files", 1, ALL_STEPS),
    "checkpoint.snapshot_epochs": Case("files", 1, EPOCHS | {"checkpoint.keep": 1, "checkpoint.every_epochs": 0}),
    "averaging.start": Case("tables", 0.0, {"averaging.every_steps": 1}),
    "averaging.every_epochs": Case("refusal", 0, {"averaging.start": 0.0}),
    "averaging.every_steps": Case("tables", 2, {"averaging.start": 0.0}),
    "early_stopping.patience": Case("result", 1, VALIDATES),
    "early_stopping.min_delta": Case("files", 10.0, VALIDATES | {"early_stopping.min_delta": 0.0}),
    "dataset.name": Case(
        "refusal", "other", VALIDATES | {"dataset.path": "{graphs}/alone", "early_stopping.patience": 1}
    ),
    "dataset.path": Case("tables", "{graphs}/alone"),
    "dataset.columns": Case("tables", ["tail", "relation", "head"]),
    "dataset.header": Case("result"),
    "dataset.valid": Case("result", 0.3, WHOLE),
    "dataset.test": Case("result", 0.3, WHOLE),
    "dataset.split_seed": Case("tables", 1, WHOLE),
    "dataset.relation_types": Case("tables", "{graphs}/types.tsv", TYPED),
    "dataset.relation_weights": Case("tables", "{graphs}/weights.tsv"),
    "dataset.cache": Case("files", "{home}/cache"),
    "model.dim": Case("tables", 10),
    "model.reciprocal": Case("tables"),
    "model.init": Case("tables"),
    "model.init_scale": Case("tables"),
    "model.max_norm": Case("tables", 0.01),
    "model.entity_dropout": Case("tables"),
    "model.relation_dropout": Case("tables"),
    "model.norm": Case("tables"),
    "model.margin": Case("tables", 3.0, {"loss": "logistic"}),
    "scoring.sides": Case("tables"),
    "scoring.block": Case("work", 5),
    "scoring.negatives": Case("tables"),
    "scoring.chunk_size": Case("tables", 3),
    "scoring.degree_exponent": Case("tables", 1.0),
    "scoring.uniform_share": Case("tables", 0.5, {"scoring.degree_exponent": 1.0}),
    "scoring.mask": Case("tables"),
    "scoring.samples": Case("tables", 5),
    "loss.label_smoothing": Case("tables", 0.1),
    "loss.balanced": Case("tables"),
    "loss.temperature": Case("tables"),
    "loss.margin": Case("losses"),
    "regularizer.p": Case("tables"),
    "regularizer.weight": Case("tables"),
    "regularizer.relation_weight": Case("tables", 0.5),
    "regularizer.weighted": Case("tables"),
    "auxiliary.weight": Case("tables"),
    "optimizer.lr": Case("tables"),
    "optimizer.relation_lr": Case("tables", 0.7),
    "optimizer.clip": Case("tables", 1e-4),
    "optimizer.eps": Case("tables", 0.1),
    "optimizer.betas": Case("tables", [0.5, 0.9]),
    "schedule.warmup": Case("tables", 2),
    "schedule.at": Case("tables", [0.25]),
    "schedule.factor": Case("tables", 0.3),
    "schedule.min_factor": Case("tables", 0.9),
    "schedule=plateau schedule.factor": Case("tables", 0.3, VALIDATES | {"schedule.patience": 0}),
    "schedule=plateau schedule.min_factor": Case("tables", 0.9, VALIDATES | {"schedule.patience": 0}),
    "schedule.patience": Case("tables", 0, VALIDATES),
    "sharding.state_device": Case("refusal", "cuda"),
    "sharding=rowwise sharding.ranks": Case("files", 3),
    "sharding=replicated sharding.ranks": Case("result", 3),
    "sharding=partitioned sharding.ranks": Case("result", 2, {"train.steps": None, "train.epochs": 2}),
    "sharding.timeout": Case("waits", 77.0),
    "sharding=partitioned sharding.timeout": Case("waits", 77.0, TRAINERS),
    "sharding.scheduler": Case("tables", "locks", TRAINERS),
    "sharding.lease": Case("waits", 77.0, TRAINERS | {"sharding.scheduler": "locks", "storage": "local"}),
    "sharding.sync_steps": Case("tables", 1, TRAINERS),
    "sharding.type_partitions": Case(
        "tables", {"user": 1}, TYPED_RUN | {"scoring": "negatives", "sharding.partitions": 3, "sharding.buffer": 2}
    ),
    "sharding.wire_dtype": Case("tables", "bfloat16"),
    "sharding=partitioned sharding.wire_dtype": Case("tables", "bfloat16", TRAINERS | {"sharding.partitions": 4}),
    "sharding.partitions": Case("tables"),
    "sharding.buffer": Case("tables"),
    "sharding.slices": Case("tables"),
    "sharding.order": Case("tables", "random"),
    "sharding.mix": Case("tables", given={"sharding.spread": False}),
    "sharding.spread": Case("tables"),
    "sharding.chunks": Case("tables"),
    "sharding.holdout": Case("tables"),
    "sharding.prefetch": Case("result"),
    "sharding.workers": Case("result"),
    "storage.path": Case("refusal", "/proc/nowhere"),
    "storage.url": Case("refusal", "nowhere"),
    "storage.options": Case("refusal", {"password": "secret"}),
    "storage.retries": Case("refusal", -1),  # what it does shows where requests fail: tests/storage
    "evaluation.protocol": Case("metrics"),
    "evaluation.candidates": Case("metrics", 3, {"evaluation.protocol": "sampled"}),
    "evaluation.splits": Case("metrics", ["valid"]),
    "evaluation.every_epochs": Case("rows", 1, EPOCHS),
    "evaluation.every_steps": Case("rows", 1),
    "evaluation.queries": Case("work", 3),
    "evaluation.block": Case("work", 5, {"evaluation.protocol": "full"}),
    "evaluation.max_valid_triples": Case("metrics", 2),
    "evaluation.objective": Case("result", "realistic/tail/mr"),
    "tracking.mode": Case("wandb", "offline"),
    "tracking.project": Case("wandb", "other", OFFLINE),
    "tracking.entity": Case("wandb", "other", OFFLINE),
    "tracking.group": Case("wandb", "other", OFFLINE),
    "tracking.name": Case("wandb", "other", OFFLINE),
    "tracking.tags": Case("wandb", ["other"], OFFLINE),
    "tracking.notes": Case("wandb", "other", OFFLINE),
    "tracking.every_steps": Case("rows", 2),
    "tracking.progress": Case("printed", "lines"),
}
#: What a choice needs before any of its keys can matter.
NEEDS = {
    "schedule=plateau": VALIDATES,
    "storage=s3": {"storage.url": "memory://graphs/run"},
    "storage=gcs": {"storage.url": "memory://graphs/run"},
    "sharding=partitioned": {
        "sharding.partitions": 3,
        "sharding.buffer": 2,
        "sharding.slices": 2,
        "train.steps": 9,
        "sharding.ranks": 1,
    },
    "evaluation=full": {"evaluation.splits": ["valid", "test"]},
    "evaluation=sampled": {"evaluation.splits": ["valid", "test"]},
    "evaluation=none": {"evaluation.splits": ["valid", "test"]},
}


def leaves():
    """Every key, its field and the choice that has it (`loss=softmax`, or None), apart from the `_target_`s."""
    sections = {"": Config} | SECTIONS
    for section, schema in sections.items():
        for spec in fields(schema):
            if spec.name not in (*SECTIONS, *SCHEMAS):
                yield f"{section}.{spec.name}".lstrip("."), spec, None
    for group, schemas in SCHEMAS.items():
        for choice, schema in schemas.items():
            for spec in fields(schema):
                if spec.name != "_target_":
                    yield f"{group}.{spec.name}", spec, f"{group}={choice}"


LEAVES = list(leaves())


def entry(key, choice):
    """The name in `CASES` of what is said about a key."""
    own = f"{choice} {key}"
    return own if own in CASES else key


def another(spec, value):
    """Another value of the key's type."""
    words = spec.metadata.get("choices", ())
    if spec.type is bool:
        return not value
    if value in words:
        return words[(words.index(value) + 1) % len(words)]
    assert {int, float} & {spec.type, *get_args(spec.type)} and value is not None, (
        f"CASES must give {spec.name} a value"
    )
    return value + 1 if isinstance(value, int) else 2 * value or 0.5


@pytest.fixture(scope="module")
def runs(composed, tmp_path_factory):
    cfg = composed("dataset=files", "evaluation=none", "tracking=none")
    return Runs(OmegaConf.to_container(cfg, resolve=False), tmp_path_factory.mktemp("options"))


def test_the_table_is_that_of_the_keys():
    assert {entry(key, choice) for key, _, choice in LEAVES} == CASES.keys()
    assert NEEDS.keys() <= {choice for _, _, choice in LEAVES}


@pytest.mark.parametrize(("key", "spec", "choice"), LEAVES, ids=[f"{c} {k}" if c else k for k, _, c in LEAVES])
def test_a_key_changes_what_it_is_for(runs, key, spec, choice):
    case = CASES[entry(key, choice)]
    given = (dict([choice.split("=")]) if choice else {}) | NEEDS.get(choice, {}) | case.given
    usual = runs.value(given, key)
    value = another(spec, usual) if case.value is None else case.value
    assert value != usual
    before, after = runs(given, case.first), runs(given | {key: value}, case.first)
    if "refusal" in after and "refusal" not in before:
        assert key in after["refusal"]
    else:
        assert "refusal" in before or case.trace in before, f"{key} was refused already: {before}"
        same = before.get(case.trace) == after.get(case.trace)
        assert not same, f"{key} changed nothing of {case.trace}"


@pytest.mark.parametrize("choice", [f"{group}={choice}" for group in SCHEMAS for choice in SCHEMAS[group]])
def test_a_target_is_looked_up(runs, choice):
    group, _, name = choice.partition("=")
    if "_target_" in choice_node(group, name):
        refusal = runs({group: name} | NEEDS.get(choice, {}) | {f"{group}._target_": "kgexp.nowhere.Nothing"})[
            "refusal"
        ]
        assert f"{group}._target_ is kgexp.nowhere.Nothing" in refusal
