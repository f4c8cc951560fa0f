"""The schema of the configuration: which keys there are, their types and their bounds.

The YAML files below `conf/` hold the values. Hydra checks the root's types when it composes, `kgexp.check`
everything else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING

from kgexp.schemas.bounds import number
from kgexp.schemas.models import ComplEx, DistMult, RotatE, TransE
from kgexp.schemas.objectives import (
    N3,
    KvsAll,
    Logistic,
    Lp,
    MarginRanking,
    Negatives,
    NoAuxiliary,
    NoRegularizer,
    OneVsAll,
    OneVsSample,
    RelationPrediction,
    SelfAdversarial,
    Softmax,
)
from kgexp.schemas.optimizers import SGD, Adagrad, Adam, Constant, Cosine, Plateau, RowwiseAdagrad, Step
from kgexp.schemas.running import (
    Averaging,
    Checkpoint,
    EarlyStopping,
    Evaluation,
    Files,
    LocalStorage,
    MemoryStorage,
    NoSharding,
    PartitionedSharding,
    RemoteStorage,
    ReplicatedSharding,
    RowwiseSharding,
    Tracking,
    Train,
)


@dataclass
class Config:
    """The root. A group's field is `Any`, so that another package's choice may bring keys of its own."""

    seed: int = number(at_least=0)
    name: str = MISSING
    resume: str | None = MISSING
    plugins: list[str] = MISSING
    train: Train = field(default_factory=Train)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    averaging: Averaging = field(default_factory=Averaging)
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)
    dataset: Any = MISSING
    model: Any = MISSING
    scoring: Any = MISSING
    loss: Any = MISSING
    regularizer: Any = MISSING
    auxiliary: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    sharding: Any = MISSING
    storage: Any = MISSING
    evaluation: Any = MISSING
    tracking: Any = MISSING


# The schema of every built-in choice of every group: the tree of the files below `conf/`.
SCHEMAS: dict[str, dict[str, type]] = {
    "dataset": {"codex_s": Files, "files": Files},
    "model": {"complex": ComplEx, "distmult": DistMult, "rotate": RotatE, "transe": TransE},
    "scoring": {"onevsall": OneVsAll, "kvsall": KvsAll, "negatives": Negatives, "onevssample": OneVsSample},
    "loss": {
        "softmax": Softmax,
        "logistic": Logistic,
        "self_adversarial": SelfAdversarial,
        "margin_ranking": MarginRanking,
    },
    "regularizer": {"none": NoRegularizer, "n3": N3, "lp": Lp},
    "auxiliary": {"none": NoAuxiliary, "relation_prediction": RelationPrediction},
    "optimizer": {"adagrad": Adagrad, "rowwise_adagrad": RowwiseAdagrad, "adam": Adam, "sgd": SGD},
    "schedule": {"constant": Constant, "cosine": Cosine, "step": Step, "plateau": Plateau},
    "sharding": {
        "none": NoSharding,
        "rowwise": RowwiseSharding,
        "replicated": ReplicatedSharding,
        "partitioned": PartitionedSharding,
    },
    "storage": {"memory": MemoryStorage, "local": LocalStorage, "s3": RemoteStorage, "gcs": RemoteStorage},
    "evaluation": {"full": Evaluation, "sampled": Evaluation, "none": Evaluation},
    "tracking": {"wandb": Tracking, "none": Tracking},
}
SECTIONS: dict[str, type] = {
    "train": Train,
    "checkpoint": Checkpoint,
    "averaging": Averaging,
    "early_stopping": EarlyStopping,
}


def schema_of(group: str, target: str | None) -> type | None:
    """The schema of a group's choice that builds `target`; None where the class is not one of ours."""
    for schema in SCHEMAS[group].values():
        if getattr(schema, "_target_", target) == target:  # a schema without the field builds nothing by name
            return schema
    return None


def known_keys() -> Iterator[tuple[str, str | None]]:
    """Every key of the built-in configuration, as `("model.dim", "complex")` with a choice of the group that
    has it, or None for the keys that are there whatever is chosen."""
    yield from ((f.name, None) for f in fields(Config))
    for section, schema in SECTIONS.items():
        yield from ((f"{section}.{f.name}", None) for f in fields(schema))
    for group, schemas in SCHEMAS.items():
        for choice, schema in schemas.items():
            yield from ((f"{group}.{f.name}", choice) for f in fields(schema))
