"""Rules that values of several keys have to keep together; each takes the checked configuration and raises."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from kgexp.errors import ConfigError, meant
from kgexp.protocol import GROUPED, METRICS, OBJECTIVES
from kgexp.schemas import schema_of
from kgexp.schemas.objectives import KvsAll, MarginRanking, Negatives, OneVsSample
from kgexp.schemas.running import PartitionedSharding

_ROTATE = "kgexp.models.rotate.RotatE"
#: Models whose rows hold complex numbers.
_COMPLEX = {"kgexp.models.complex.ComplEx": "ComplEx", _ROTATE: "RotatE"}


def _columns(config: dict[str, Any]) -> None:
    columns = config["dataset"]["columns"]
    for role in ("head", "relation", "tail", "weight"):
        if columns.count(role) != 1 and (role != "weight" or columns.count(role) > 1):
            raise ConfigError(
                f"dataset.columns is [{','.join(columns)}] but must hold head, relation and tail once each, "
                "weight at most once, and ignore for every other column of the file."
            )


def _shares(config: dict[str, Any]) -> None:
    valid, test = config["dataset"]["valid"], config["dataset"]["test"]
    if valid + test >= 1:
        raise ConfigError(f"dataset.valid={valid} and dataset.test={test} leave no triples to train on: lower them.")


def _even_dim(config: dict[str, Any]) -> None:
    model = config["model"]
    name = _COMPLEX.get(model["_target_"])
    if name and model["dim"] % 2:
        raise ConfigError(
            f"model.dim is {model['dim']} but must be even for {name}, which needs two reals a component: "
            f"try model.dim={model['dim'] + 1}."
        )


def _betas(config: dict[str, Any]) -> None:
    betas = config["optimizer"].get("betas")
    if config["optimizer"]["_target_"] == "kgexp.optim.adam.Adam" and len(betas) != 2:
        raise ConfigError(f"optimizer.betas is {betas} but must hold two numbers, such as [0.9,0.999].")


def _objective(config: dict[str, Any]) -> None:
    objective = config["evaluation"]["objective"]
    if objective not in OBJECTIVES:
        raise ConfigError(
            f"evaluation.objective is {objective}, which is no metric: write TIE/SIDE/METRIC such as "
            f"realistic/both/mrr, with a metric out of {', '.join(METRICS + GROUPED)}{meant(objective, OBJECTIVES)}"
        )


def _splits(config: dict[str, Any]) -> None:
    splits = config["evaluation"]["splits"]
    if len(set(splits)) < len(splits):
        raise ConfigError(f"evaluation.splits is [{','.join(splits)}] but must name every split once.")


def _validation(config: dict[str, Any]) -> None:
    """Whatever waits for the objective needs validations."""
    evaluation = config["evaluation"]
    if "valid" in evaluation["splits"] and (evaluation["every_epochs"] or evaluation["every_steps"]):
        return
    remedy = "validate with evaluation=full and evaluation.every_epochs=N"
    if config["early_stopping"]["patience"] is not None:
        raise ConfigError(
            f"early_stopping.patience counts validations, but none are made: {remedy}, or set it to null."
        )
    if config["schedule"]["_target_"] == "kgexp.optim.schedule.Plateau":
        raise ConfigError(f"schedule=plateau waits for validations, but none are made: {remedy}, or choose constant.")


def _mapped_on_cuda(config: dict[str, Any]) -> None:
    local = config["storage"]["_target_"] == "kgexp.storage.local.LocalStorage"
    if local and config["train"]["device"] == "cuda":
        raise ConfigError(
            "storage=local maps files into the memory of the CPU and cannot serve train.device=cuda: "
            "set train.device=cpu, or choose storage=memory."
        )
    if local and config["sharding"].get("state_device") == "cuda":
        raise ConfigError(
            "storage=local maps files into the memory of the CPU and cannot serve sharding.state_device=cuda: "
            "set it to null, or choose storage=memory."
        )


def _remote(config: dict[str, Any]) -> None:
    storage = config["storage"]
    if storage["_target_"] != "kgexp.storage.remote.RemoteStorage":
        return
    url = urlsplit(storage["url"])
    if not (url.scheme and url.netloc + url.path):
        raise ConfigError(f"storage.url is {storage['url']} but must be a URL such as s3://bucket/runs/first.")
    secrets = [f"storage.options.{key}" for key in _secrets(storage["options"])]
    for place in ["storage.url"] * (url.password is not None) + secrets:
        raise ConfigError(
            f"{place} holds a secret, and configurations are written down: leave it out, and give credentials in the "
            "environment, such as AWS_PROFILE or GOOGLE_APPLICATION_CREDENTIALS."
        )
    if config["sharding"]["_target_"] != "kgexp.sharding.partitioned.PartitionedSharding":
        raise ConfigError(
            "storage=s3 and storage=gcs keep partitions that are absent, and only sharding=partitioned has some: "
            "choose it, or storage=memory."
        )


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    """The keys, at any depth, that are called after a secret, as `client_kwargs.aws_secret_access_key` is."""
    for key, value in options.items():
        if set(str(key).lower().split("_")) & {"key", "secret", "token", "password"}:
            yield str(key)
        elif isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner in _secrets(value))


def _label_smoothing(config: dict[str, Any]) -> None:
    if schema_of("scoring", config["scoring"]["_target_"]) in (Negatives, OneVsSample) and config["loss"].get(
        "label_smoothing"
    ):
        raise ConfigError(
            f"loss.label_smoothing is {config['loss']['label_smoothing']}, which spreads over all entities, but "
            "scoring has random ones: set it to 0, or choose scoring=onevsall."
        )


def _uniform_share(config: dict[str, Any]) -> None:
    scoring = config["scoring"]
    if scoring.get("uniform_share") and not scoring.get("degree_exponent"):
        raise ConfigError(
            f"scoring.uniform_share is {scoring['uniform_share']}, but with scoring.degree_exponent=0 every negative "
            "is uniform: set the exponent too, or leave both at 0."
        )


def _one_answer(config: dict[str, Any]) -> None:
    chosen = [schema_of(group, config[group]["_target_"]) for group in ("scoring", "loss")]
    if chosen == [KvsAll, MarginRanking]:
        raise ConfigError(
            "loss=margin_ranking compares one answer with the other entities, but a query of scoring=kvsall has many: "
            "choose scoring=onevsall, or another loss."
        )


def _averaging(config: dict[str, Any]) -> None:
    averaging = config["averaging"]
    if averaging["start"] is not None and not (averaging["every_epochs"] or averaging["every_steps"]):
        raise ConfigError(
            f"averaging.start is {averaging['start']}, but with averaging.every_epochs=0 and averaging.every_steps=0 "
            "no weights are ever averaged: set one of them, or set start to null."
        )


def _narrow(config: dict[str, Any]) -> None:
    train = config["train"]
    if train["matmul_dtype"] != "float32" and train["dtype"] == "float64":
        raise ConfigError(
            f"train.matmul_dtype={train['matmul_dtype']} is for products of float32, and train.dtype is float64: set "
            "train.dtype=float32, or train.matmul_dtype=float32."
        )
    for name in ("table_dtype", "state_dtype"):
        if train[name] is not None and train["dtype"] == "float64":
            raise ConfigError(
                f"train.{name}={train[name]} is rounded from float32, and train.dtype=float64 would be in vain: "
                f"set train.dtype=float32, or train.{name}=null."
            )
    if train["table_dtype"] is not None and config["averaging"]["start"] is not None:
        raise ConfigError(
            f"averaging.start is {config['averaging']['start']}, but what is averaged changes by less than "
            f"train.table_dtype={train['table_dtype']} can tell: set averaging.start or train.table_dtype to null "
            "(train.state_dtype=bfloat16 goes with an average)."
        )


def _angles(config: dict[str, Any]) -> None:
    weight = config["regularizer"].get("relation_weight")
    if weight is not None and config["model"]["_target_"] == _ROTATE:
        raise ConfigError(
            f"regularizer.relation_weight is {weight}, but the relations of model=rotate are angles, which have no "
            "size: set it to null, or choose another model."
        )


def _partitioned(config: dict[str, Any]) -> None:
    sharding = config["sharding"]
    if schema_of("sharding", sharding["_target_"]) is not PartitionedSharding:
        return
    partitions, buffer, of_types = sharding["partitions"], sharding["buffer"], sharding["type_partitions"]
    typed = config["dataset"]["relation_types"] is not None
    if of_types and not typed:
        raise ConfigError(
            f"sharding.type_partitions names {', '.join(of_types)}, but dataset.relation_types=null says of no entity "
            "what type it has: give it the file, or set sharding.partitions alone."
        )
    if max(partitions, *of_types.values(), 1) > 1 and buffer < 2:
        raise ConfigError(
            "sharding.buffer is 1, but the two ends of a triple may lie in two partitions: set it to 2 or more."
        )
    if sharding["spread"] and not sharding["mix"]:
        raise ConfigError(
            "sharding.spread=true trains triples at a random one of several times, but sharding.mix=false trains every "
            "bucket by itself: set spread to false, or mix to true."
        )
    if sharding["workers"] > 1 and schema_of("scoring", config["scoring"]["_target_"]) not in (Negatives, OneVsSample):
        raise ConfigError(
            f"sharding.workers is {sharding['workers']}, but a technique that scores against all entities has one "
            "gradient of all rows: set workers to 1 and train.threads as high, or choose scoring=negatives."
        )
    by_query = schema_of("scoring", config["scoring"]["_target_"]) is KvsAll
    for name, usual in (("chunks", 1), ("holdout", 0), ("mix", True)):
        if by_query and sharding[name] != usual:
            raise ConfigError(
                f"sharding.{name} is {sharding[name]}, but scoring=kvsall trains queries, which no bucket has: set it "
                f"to {str(usual).lower()}, or choose another scoring."
            )
    whole = "sharding.buffer to sharding.partitions"
    if typed:  # how many types there are is not known yet
        whole = "sharding.partitions, and whatever sharding.type_partitions names, to 1"
    if max(partitions, *of_types.values(), 1) == 1 or (buffer >= partitions and not typed):
        return
    if by_query:
        raise ConfigError(
            "scoring=kvsall needs all answers of a query in memory at once, and sharding=partitioned has some of them: "
            f"choose scoring=onevsall or negatives, or sharding=rowwise, or set {whole}."
        )
    if config["averaging"]["start"] is not None:
        raise ConfigError(
            "averaging.start averages every row at once, and sharding=partitioned has some of them in memory: set it "
            f"to null, or {whole}."
        )


def check_trainers(config: dict[str, Any]) -> None:
    """What several trainers of partitions cannot do. Raises ConfigError."""
    if schema_of("sharding", config["sharding"]["_target_"]) is not PartitionedSharding:
        return
    if schema_of("scoring", config["scoring"]["_target_"]) is KvsAll:
        raise ConfigError(
            "scoring=kvsall trains queries, whose answers lie in all partitions, and no trainer of several has all: "
            "choose another scoring, sharding=rowwise, or set sharding.ranks to 1."
        )
    if config["averaging"]["start"] is not None:
        raise ConfigError(
            "averaging.start averages every row at once, and no trainer of several has all: set it to null, or "
            "sharding.ranks to 1."
        )
    unsteady = [name for name in ("evaluation", "checkpoint") if config[name]["every_steps"]]
    if config["train"]["steps"] is not None or unsteady:
        name = "train.steps" if config["train"]["steps"] is not None else f"{unsteady[0]}.every_steps"
        raise ConfigError(
            f"{name} is set, but several trainers are at one step at the end of a pass only: count in epochs, which "
            "sharding.chunks cuts into passes, or set sharding.ranks to 1."
        )


def _trainers(config: dict[str, Any]) -> None:
    ranks = config["sharding"].get("ranks")
    if isinstance(ranks, int) and ranks > 1:
        check_trainers(config)


#: All of them, in the order in which they are looked at.
RULES = (
    _columns,
    _shares,
    _even_dim,
    _betas,
    _objective,
    _splits,
    _validation,
    _mapped_on_cuda,
    _remote,
    _label_smoothing,
    _uniform_share,
    _one_answer,
    _averaging,
    _narrow,
    _angles,
    _partitioned,
    _trainers,
)
