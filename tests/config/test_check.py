"""The rules of a configuration, one bad value at a time."""

import pytest

from kgexp.check import check, unknown_key
from kgexp.errors import ConfigError

BAD = [
    # key, value, words of the sentence
    ("model.dim", 0, "at least 1"),
    ("model.dim", 3, "even for ComplEx", "model.dim=4"),
    ("model.dim", 2.5, "whole number"),
    ("model.dim", True, "whole number"),
    ("model.dim", None, "null", "whole number"),
    ("model.init", "gauss", "normal or uniform"),
    ("model.init", "norml", "did you mean normal?"),
    ("model.init_scale", 0, "above 0"),
    ("model.init_scale", float("nan"), "finite"),
    ("model.max_norm", 0, "above 0"),
    ("model.max_norm", "none", "a number or null"),
    ("model.entity_dropout", 1.0, "below 1"),
    ("model.reciprocal", "maybe", "true or false"),
    ("model._target_", "kgexp.models.complex.Complx", "did you mean kgexp.models.complex.ComplEx?"),
    ("model._target_", "my_package.Mine", "plugins=[my_package]"),
    ("model._target_", None, "None"),
    ("model.depth", 2, "not a key"),
    ("model.norm", "l1", "model=rotate or model=transe"),
    ("model", "complex", "complex, distmult, rotate, transe"),
    ("scoring.block", -1, "at least 0"),
    ("scoring.negatives", 10, "scoring=negatives"),
    ("scoring.sides", "heads", "did you mean head?"),
    ("scoring.sides", "bernoulli", "both or head or tail"),
    ("loss.label_smoothing", 1.0, "below 1"),
    ("loss.label_smoothing", -0.1, "at least 0"),
    ("loss.margin", 1.0, "loss=margin_ranking"),
    ("regularizer.weight", -0.1, "at least 0"),
    ("regularizer.p", 3.0, "regularizer=lp"),
    ("optimizer.lr", 0.0, "above 0"),
    ("optimizer.lr", float("inf"), "finite"),
    ("optimizer.lr", "fast", "a number"),
    ("optimizer.eps", 0.0, "above 0"),
    ("optimizer.relation_lr", 0.0, "above 0"),
    ("optimizer.clip", -1, "above 0"),
    ("optimizer.betas", [0.9, 0.999], "optimizer=adam"),
    ("schedule.warmup", -1, "at least 0"),
    ("schedule.warmup", 0.1, "whole number"),
    ("schedule.min_factor", 0.1, "schedule=cosine or schedule=plateau"),
    ("dataset.columns", ["head", "tail"], "head, relation and tail once each"),
    ("dataset.columns", ["head", "relation", "tail", "tail"], "once each"),
    ("dataset.columns", ["head", "relation", "tail", "weight", "weight"], "weight at most once"),
    ("dataset.columns", ["head", "rel", "tail"], "rel"),
    ("dataset.columns", "head", "a list"),
    ("dataset.valid", 1.0, "below 1"),
    ("dataset.valid", 0.95, "leave no triples"),
    ("dataset.path", "???", "dataset.path=VALUE"),
    ("train.epochs", -1, "at least 0"),
    ("train.steps", -1, "at least 0"),
    ("train.batch_size", 0, "at least 1"),
    ("train.threads", 0, "at least 1"),
    ("train.threads", "many", "whole number or auto"),
    ("train.device", "gpu", "did you mean cpu?"),
    ("train.dtype", "float16", "float32 or float64"),
    ("train.table_dtype", "float16", "must be bfloat16 or null"),
    ("train.state_dtype", "float32", "must be bfloat16 or null"),
    ("sharding.state_device", "auto", "must be cpu or cuda or null"),
    ("train.workers", 2, "not a key"),
    ("train", 3, "train.KEY=VALUE"),
    ("checkpoint.keep", 0, "at least 1"),
    ("checkpoint.every_steps", -1, "at least 0"),
    ("averaging.start", 1, "below 1"),
    ("averaging.every_epochs", -1, "at least 0"),
    ("auxiliary.weight", 1.0, "auxiliary=relation_prediction"),
    ("early_stopping.patience", 0, "at least 1"),
    ("early_stopping.min_delta", -1, "at least 0"),
    ("evaluation.protocol", "ful", "did you mean full?"),
    ("evaluation.candidates", 0, "at least 1"),
    ("evaluation.splits", ["valid", "tets"], "did you mean test?"),
    ("evaluation.splits", ["test", "test"], "every split once"),
    ("evaluation.objective", "mrr", "TIE/SIDE/METRIC"),
    ("evaluation.objective", "realistic/both/mr r", "did you mean realistic/both/mrr?"),
    ("evaluation.objective", "optimistic/head/mrr", "TIE/SIDE/METRIC"),
    ("evaluation.objective", "pessimistic/both/amri", "TIE/SIDE/METRIC"),
    ("evaluation.max_valid_triples", 0, "at least 1"),
    ("tracking.mode", "on", "online or offline or disabled"),
    ("tracking.progress", "dots", "auto or bar or lines or none"),
    ("tracking.every_steps", 0, "at least 1"),
    ("seed", -1, "at least 0"),
    ("seed", "one", "whole number"),
    ("plugins", "my_package", "a list"),
    ("nope", 1, "nope is not a key"),
]


def spoil(config, key, value):
    *parents, last = key.split(".")
    for parent in parents:
        config = config[parent]
    config[last] = value


def sentence(config) -> str:
    with pytest.raises(ConfigError) as caught:
        check(config)
    text = str(caught.value)
    assert "\n" not in text and text[-1] in ".?" and ".." not in text
    return text


@pytest.mark.parametrize(("key", "value", "words"), [(key, value, words) for key, value, *words in BAD])
def test_a_bad_value_is_named(valid, key, value, words):
    spoil(valid, key, value)
    text = sentence(valid)
    for word in (key, *words):
        assert word in text


@pytest.mark.parametrize("key", ["model.dim", "train.epochs", "train", "model", "seed", "evaluation.objective"])
def test_a_deleted_key_is_missed(valid, key):
    *parents, last = key.split(".")
    node = valid
    for parent in parents:
        node = node[parent]
    del node[last]
    assert f"{key} is missing" in sentence(valid)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.epochs", 0),
        ("train.steps", 0),
        ("train.threads", 3),
        ("model.dim", 2),
        ("regularizer.weight", 0),
        ("dataset.valid", 0),
        ("dataset.cache", None),
        ("dataset.columns", ["ignore", "head", "relation", "tail", "weight", "ignore"]),
        ("early_stopping.patience", 1),
        ("evaluation.objective", "realistic/head/hits@10"),
        ("evaluation.objective", "realistic/tail/macro_relation/mrr"),
        ("evaluation.max_valid_triples", 1),
        ("tracking.tags", ["a", "b"]),
    ],
)
def test_the_ends_of_the_bounds_are_good(valid, key, value):
    spoil(valid, key, value)
    config = check(valid)
    for part in key.split("."):
        config = config[part]
    assert config == value


@pytest.mark.parametrize("silence", [{"splits": []}, {"splits": ["test"]}, {"every_epochs": 0, "every_steps": 0}])
def test_what_waits_for_validations_needs_some(valid, silence):
    valid["evaluation"] |= silence
    check(valid)
    valid["early_stopping"]["patience"] = 3
    assert "early_stopping.patience" in sentence(valid)
    valid["early_stopping"]["patience"] = None
    valid["schedule"] = {
        "_target_": "kgexp.optim.schedule.Plateau",
        "factor": 0.5,
        "patience": 2,
        "min_factor": 0.01,
        "warmup": 0,
    }
    assert "schedule=plateau" in sentence(valid)
    valid["evaluation"] |= {"splits": ["valid"], "every_epochs": 0, "every_steps": 7}
    check(valid)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("optimizer.betas", [0.9], "two numbers"),
        ("optimizer.betas", [0.9, 0.99, 0.999], "two numbers"),
        ("optimizer.betas", [0.9, 1.0], "is 1.0 but must be below 1"),
        ("optimizer.betas", [-0.1, 0.9], "at least 0"),
        ("optimizer.betas", [0.9, float("nan")], "finite"),
        ("optimizer.betas", 0.9, "a list of numbers"),
        ("optimizer.betas", ["a", "b"], "a list of numbers"),
        ("schedule.at", [0.5, 0.0], "is 0.0 but must be above 0"),
        ("schedule.at", [1], "below 1"),
        ("schedule.factor", 1, "below 1"),
    ],
)
def test_a_bad_value_of_adam_or_of_steps_is_named(composed, key, value, words):
    config = check(composed("optimizer=adam", "schedule=step"))
    spoil(config, key, value)
    text = sentence(config)
    assert key in text and words in text


def test_a_bad_end_of_a_cosine_is_named(composed):
    config = check(composed("schedule=cosine"))
    spoil(config, "schedule.min_factor", 1.5)
    assert "at most 1" in sentence(config)


def test_mapped_files_do_not_serve_a_gpu(valid):
    valid["storage"] = {"_target_": "kgexp.storage.local.LocalStorage", "path": None}
    check(valid)
    valid["train"]["device"] = "cuda"
    assert "storage=memory" in sentence(valid)


def test_distances_have_a_norm_a_margin_and_a_dim(valid):
    valid["model"] |= {"_target_": "kgexp.models.rotate.RotatE", "dim": 3, "norm": "l1", "margin": 6}
    assert "model.relation_dropout belongs to" in sentence(valid)  # angles are not dropped
    del valid["model"]["relation_dropout"]
    assert "even for RotatE" in sentence(valid)
    valid["model"] |= {"_target_": "kgexp.models.transe.TransE", "relation_dropout": 0.1}
    assert check(valid)["model"]["margin"] == 6.0
    valid["model"]["norm"] = "l3"
    assert "model.norm is l3 but must be l1 or l2" in sentence(valid)


def test_an_odd_dim_is_good_for_distmult(valid):
    valid["model"] |= {"_target_": "kgexp.models.distmult.DistMult", "dim": 3}
    assert check(valid)["model"]["dim"] == 3


def test_a_plugin_does_not_open_packages_that_begin_like_it(valid):
    valid["plugins"] = ["my"]
    valid["model"] = {"_target_": "my_package.Mine"}
    assert "plugins=[my_package]" in sentence(valid)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "optimizer.lr"),
        ("epochs", "train.epochs"),
        ("model.lr", "optimizer.lr"),
        ("train.epoch", "train.epochs"),
        ("modle", "model"),
        ("model.dim.x", "model.dim"),
    ],
)
def test_close_keys_are_suggested(key, meant):
    assert f"did you mean {meant}?" in unknown_key(key)


def test_a_new_key_of_a_mapping_is_added():
    assert unknown_key("storage.options.endpoint_url").endswith("write +storage.options.endpoint_url=VALUE to add it.")
    assert unknown_key("sharding.type_partitions.user").endswith(
        "write +sharding.type_partitions.user=VALUE to add it."
    )


def test_a_key_that_is_like_no_other_gets_no_guess():
    assert "did you mean" not in unknown_key("model.xyzzy")


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (["model=rotate", "regularizer.relation_weight=0.1"], r"regularizer\.relation_weight is 0\.1.*are angles"),
        (["scoring=negatives", "loss.label_smoothing=0.1"], r"loss\.label_smoothing is 0\.1.*scoring=onevsall"),
        (["scoring=onevssample", "loss=logistic", "loss.label_smoothing=0.1"], r"set it to 0"),
        (["scoring=negatives", "scoring.uniform_share=0.5"], r"scoring\.uniform_share is 0\.5.*degree_exponent"),
        (["averaging.start=0.5", "averaging.every_epochs=0"], r"no weights are ever averaged: set one"),
        (["train.table_dtype=bfloat16", "train.dtype=float64"], r"table_dtype=bfloat16 is rounded from float32.*=null"),
        (
            ["train.state_dtype=bfloat16", "train.dtype=float64"],
            r"set train\.dtype=float32, or train\.state_dtype=null",
        ),
        (["train.matmul_dtype=tf32", "train.dtype=float64"], r"train\.matmul_dtype=tf32 is for products of float32"),
        (["train.table_dtype=bfloat16", "averaging.start=0.5"], r"averaging\.start is 0\.5.*table_dtype to null"),
        (["storage=local", "sharding.state_device=cuda"], r"cannot serve sharding\.state_device=cuda: set it to null"),
        (["storage=s3", "storage.url=s3://b/run"], r"only sharding=partitioned has some: choose it, or storage=memory"),
        (["storage=gcs"], r"storage\.url is not set"),
        (["storage=gcs", "storage.url=run"], r"storage\.url is run but must be a URL such as s3://"),
        (["storage=s3", "storage.url=sftp://me:word@host/run"], r"storage\.url holds a secret"),
        (
            ["storage=s3", "storage.url=s3://b/run", "+storage.options.token=a"],
            r"storage\.options\.token holds a secret",
        ),
        (
            ["storage=s3", "storage.url=s3://b/run", "+storage.options.client_kwargs.aws_secret_access_key=a"],
            r"storage\.options\.client_kwargs\.aws_secret_access_key holds a secret.*in the environment",
        ),
        (["storage=s3", "storage.url=s3://b/run", "storage.options=3"], r"storage\.options is 3 but must be a mapping"),
        (["sharding=partitioned", "+sharding.type_partitions.item=0"], r"type_partitions is 0 but must be at least 1"),
        (["sharding=partitioned", "+sharding.type_partitions.item=x"], r"must be a mapping such as \{user: 1\}"),
        (["sharding=partitioned", "+sharding.type_partitions.item=2"], r"names item, but dataset\.relation_types=null"),
        (["auxiliary=relation_prediction", "auxiliary.weight=-1"], r"at least 0"),
        (["scoring=kvsall", "loss=margin_ranking"], r"scoring=kvsall has many: choose scoring=onevsall"),
        (["scoring=negatives", "scoring.uniform_share=1.5"], r"at most 1"),
        (["scoring=negatives", "scoring.degree_exponent=-1"], r"at least 0"),
        (["scoring=negatives", "scoring.mask=all"], r"none or equal or known"),
        (["loss=self_adversarial", "loss.temperature=-1"], r"at least 0"),
        (["loss=margin_ranking", "loss.margin=-1"], r"at least 0"),
    ],
)
def test_choices_that_do_not_go_together(composed, choices, words):
    with pytest.raises(ConfigError, match=words):
        check(composed(*choices))
