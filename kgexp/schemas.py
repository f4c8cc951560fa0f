"""The schema of the configuration: which keys there are, their types and their bounds.

The YAML files below `conf/` hold the values. Hydra checks the root's types when it composes, `kgexp.check`
everything else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING


def number(**bounds: float) -> Any:
    """A field for a number, with bounds out of `at_least`, `at_most`, `above` and `below`."""
    return field(default=MISSING, metadata=bounds)


def one_of(*choices: str) -> Any:
    """A field for one of some words, or for a list of them."""
    return field(default=MISSING, metadata={"choices": choices})


@dataclass
class Files:
    """A graph in files."""

    name: str = MISSING
    path: str = MISSING
    columns: list[str] = one_of("head", "relation", "tail", "weight", "ignore")
    header: bool = MISSING
    valid: float = number(at_least=0, below=1)
    test: float = number(at_least=0, below=1)
    split_seed: int = number(at_least=0)
    cache: str | None = MISSING


@dataclass
class DistMult:
    """`kgexp.models.distmult.DistMult` and how its rows begin."""

    _target_: str = "kgexp.models.distmult.DistMult"
    dim: int = number(at_least=1)
    reciprocal: bool = MISSING
    init: str = one_of("normal", "uniform", "xavier_normal", "xavier_uniform")
    init_scale: float = number(above=0)
    max_norm: float | None = number(above=0)


@dataclass
class ComplEx(DistMult):
    """`kgexp.models.complex.ComplEx`: the same keys."""

    _target_: str = "kgexp.models.complex.ComplEx"


@dataclass
class TransE(DistMult):
    """`kgexp.models.transe.TransE`."""

    _target_: str = "kgexp.models.transe.TransE"
    norm: str = one_of("l1", "l2")
    margin: float = MISSING


@dataclass
class RotatE(TransE):
    """`kgexp.models.rotate.RotatE`: the same keys."""

    _target_: str = "kgexp.models.rotate.RotatE"


@dataclass
class OneVsAll:
    """`kgexp.scoring.onevsall.OneVsAll`."""

    _target_: str = "kgexp.scoring.onevsall.OneVsAll"
    sides: str = one_of("both", "head", "tail")
    block: int = number(at_least=0)


@dataclass
class KvsAll(OneVsAll):
    """`kgexp.scoring.kvsall.KvsAll`: the same keys."""

    _target_: str = "kgexp.scoring.kvsall.KvsAll"


@dataclass
class Negatives:
    """`kgexp.scoring.negatives.NegativeSampling`."""

    _target_: str = "kgexp.scoring.negatives.NegativeSampling"
    negatives: int = number(at_least=1)
    chunk_size: int = number(at_least=1)
    sides: str = one_of("both", "head", "tail", "bernoulli")
    degree_exponent: float = number(at_least=0)
    uniform_share: float = number(at_least=0, at_most=1)
    mask: str = one_of("none", "equal", "known")


@dataclass
class OneVsSample:
    """`kgexp.scoring.onevssample.OneVsSample`."""

    _target_: str = "kgexp.scoring.onevssample.OneVsSample"
    samples: int = number(at_least=1)
    sides: str = one_of("both", "head", "tail", "bernoulli")
    mask: str = one_of("none", "equal", "known")


@dataclass
class Softmax:
    """`kgexp.scoring.losses.Softmax`."""

    _target_: str = "kgexp.scoring.losses.Softmax"
    label_smoothing: float = number(at_least=0, below=1)


@dataclass
class Logistic:
    """`kgexp.scoring.losses.Logistic`."""

    _target_: str = "kgexp.scoring.losses.Logistic"
    balanced: bool = MISSING
    label_smoothing: float = number(at_least=0, below=1)


@dataclass
class SelfAdversarial:
    """`kgexp.scoring.losses.SelfAdversarial`."""

    _target_: str = "kgexp.scoring.losses.SelfAdversarial"
    temperature: float = number(at_least=0)


@dataclass
class MarginRanking:
    """`kgexp.scoring.losses.MarginRanking`."""

    _target_: str = "kgexp.scoring.losses.MarginRanking"
    margin: float = number(at_least=0)


@dataclass
class NoRegularizer:
    """No penalty: nothing is built."""

    _target_: str | None = None


@dataclass
class N3:
    """`kgexp.scoring.regularizers.N3`."""

    _target_: str = "kgexp.scoring.regularizers.N3"
    weight: float = number(at_least=0)


@dataclass
class SGD:
    """`kgexp.optim.sgd.SGD`, and the learning rate of the relations if that is another."""

    _target_: str = "kgexp.optim.sgd.SGD"
    lr: float = number(above=0)
    relation_lr: float | None = number(above=0)
    clip: float | None = number(above=0)


@dataclass
class Adagrad(SGD):
    """`kgexp.optim.adagrad.Adagrad`."""

    _target_: str = "kgexp.optim.adagrad.Adagrad"
    eps: float = number(above=0)


@dataclass
class RowwiseAdagrad(Adagrad):
    """`kgexp.optim.adagrad.RowwiseAdagrad`: the same keys."""

    _target_: str = "kgexp.optim.adagrad.RowwiseAdagrad"


@dataclass
class Adam(Adagrad):
    """`kgexp.optim.adam.Adam`."""

    _target_: str = "kgexp.optim.adam.Adam"
    betas: list[float] = number(at_least=0, below=1)


@dataclass
class Constant:
    """`kgexp.optim.schedule.Constant`."""

    _target_: str = "kgexp.optim.schedule.Constant"
    warmup: int = number(at_least=0)


@dataclass
class Cosine(Constant):
    """`kgexp.optim.schedule.Cosine`."""

    _target_: str = "kgexp.optim.schedule.Cosine"
    min_factor: float = number(at_least=0, at_most=1)


@dataclass
class Step(Constant):
    """`kgexp.optim.schedule.Step`."""

    _target_: str = "kgexp.optim.schedule.Step"
    factor: float = number(above=0, below=1)
    at: list[float] = number(above=0, below=1)


@dataclass
class Plateau(Constant):
    """`kgexp.optim.schedule.Plateau`."""

    _target_: str = "kgexp.optim.schedule.Plateau"
    factor: float = number(above=0, below=1)
    patience: int = number(at_least=0)
    min_factor: float = number(at_least=0, at_most=1)


@dataclass
class NoSharding:
    """`kgexp.sharding.local.LocalSharding`."""

    _target_: str = "kgexp.sharding.local.LocalSharding"


@dataclass
class MemoryStorage:
    """`kgexp.storage.memory.MemoryStorage`."""

    _target_: str = "kgexp.storage.memory.MemoryStorage"


@dataclass
class LocalStorage:
    """`kgexp.storage.local.LocalStorage`."""

    _target_: str = "kgexp.storage.local.LocalStorage"
    path: str | None = MISSING


@dataclass
class Evaluation:
    """When and how the model is ranked."""

    protocol: str = one_of("full", "sampled")
    candidates: int = number(at_least=1)
    splits: list[str] = one_of("valid", "test")
    every_epochs: int = number(at_least=0)
    every_steps: int = number(at_least=0)
    queries: int = number(at_least=1)
    block: int = number(at_least=1)
    max_valid_triples: int | None = number(at_least=1)
    objective: str = MISSING


@dataclass
class Tracking:
    """Where the numbers go."""

    mode: str = one_of("online", "offline", "disabled")
    project: str = MISSING
    entity: str | None = MISSING
    group: str | None = MISSING
    name: str = MISSING
    tags: list[str] = MISSING
    notes: str | None = MISSING
    every_steps: int = number(at_least=1)
    progress: str = one_of("auto", "bar", "lines", "none")


@dataclass
class Train:
    """Length, batches and devices of the training."""

    epochs: int = number(at_least=0)
    steps: int | None = number(at_least=0)
    batch_size: int = number(at_least=1)
    threads: int | str = field(default=MISSING, metadata={"at_least": 1, "choices": ("auto",)})
    device: str = one_of("auto", "cpu", "cuda")
    dtype: str = one_of("float32", "float64")


@dataclass
class Checkpoint:
    """When a checkpoint is written, and how many stay."""

    every_epochs: int = number(at_least=0)
    every_steps: int = number(at_least=0)
    keep: int = number(at_least=1)


@dataclass
class EarlyStopping:
    """When training ends before its time."""

    patience: int | None = number(at_least=1)
    min_delta: float = number(at_least=0)


@dataclass
class Config:
    """The root. A group's field is `Any`, so that another package's choice may bring keys of its own."""

    seed: int = number(at_least=0)
    name: str = MISSING
    resume: str | None = MISSING
    plugins: list[str] = MISSING
    train: Train = field(default_factory=Train)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)
    dataset: Any = MISSING
    model: Any = MISSING
    scoring: Any = MISSING
    loss: Any = MISSING
    regularizer: Any = MISSING
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
    "regularizer": {"none": NoRegularizer, "n3": N3},
    "optimizer": {"adagrad": Adagrad, "rowwise_adagrad": RowwiseAdagrad, "adam": Adam, "sgd": SGD},
    "schedule": {"constant": Constant, "cosine": Cosine, "step": Step, "plateau": Plateau},
    "sharding": {"none": NoSharding},
    "storage": {"memory": MemoryStorage, "local": LocalStorage},
    "evaluation": {"full": Evaluation, "sampled": Evaluation, "none": Evaluation},
    "tracking": {"wandb": Tracking, "none": Tracking},
}
SECTIONS: dict[str, type] = {"train": Train, "checkpoint": Checkpoint, "early_stopping": EarlyStopping}


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
