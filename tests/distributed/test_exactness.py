"""Sharding is invisible: whoever owns the rows, the same losses and the same tables."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from rank_threads import as_ranks

from kgexp.check import check
from kgexp.config import config_dir
from kgexp.data.load import load
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import prepare, run_step
from kgexp.world import ALONE

OWN = {"model.dim": 8, "model.init_scale": 0.5, "optimizer.lr": 0.05}
STEPS = int(os.environ.get("KGEXP_TEST_STEPS", "200"))
N, M, TRIPLES = 501, 7, 1500
TECHNIQUES = {
    "negatives": ("scoring=negatives", "scoring.negatives=11", "scoring.chunk_size=17", "loss=logistic"),
    "onevssample": ("scoring=onevssample", "scoring.samples=40", "loss=softmax"),
    "onevsall": ("scoring=onevsall", "loss=softmax"),
    "kvsall": ("scoring=kvsall", "loss=logistic"),
}
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "sgd")
MODELS = ("complex", "transe", "rotate")


@pytest.fixture(scope="session")
def graph_folder(tmp_path_factory):
    """501 entities, some in many triples and some in none."""
    folder = tmp_path_factory.mktemp("graph")
    random = np.random.default_rng(0)
    h, t = (np.minimum(random.integers(0, N, TRIPLES), random.integers(0, N, TRIPLES)) for _ in "ht")
    triples = np.unique(np.stack([h, random.integers(0, M, TRIPLES), t], axis=1), axis=0)
    random.shuffle(triples)
    ring = np.stack([np.arange(N), np.arange(N) % M, (np.arange(N) + 1) % N], axis=1)  # so that all have names
    for name, part in (("train", triples[:-60]), ("valid", triples[-60:-30]), ("test", np.r_[triples[-30:], ring])):
        (folder / f"{name}.txt").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in part))
    return folder


@pytest.fixture(scope="session")
def configured(composed, graph_folder):
    """`GROUP=CHOICE` and `KEY=VALUE` to a checked configuration; Hydra composes once, which is what takes the time."""
    own = ("train.batch_size=101", "train.dtype=float64", "train.device=cpu", "dataset.cache=null")
    base = composed("dataset=files", f"dataset.path={graph_folder}", *own)

    def make(*overrides):
        chosen = dict(override.split("=") for override in overrides if "." not in override.split("=")[0])
        nodes = {group: OmegaConf.load(Path(config_dir(), group, f"{choice}.yaml")) for group, choice in chosen.items()}
        values = [f"{key}={value}" for key, value in OWN.items()]
        values += [override for override in overrides if "." in override.split("=")[0]]
        config = OmegaConf.create({key: base._get_node(key) for key in base if key not in nodes} | nodes)
        return check(OmegaConf.merge(config, OmegaConf.from_dotlist(values)))

    return make


@pytest.fixture(scope="session")
def graph(configured):
    return load(configured()["dataset"])


def train(config, graph, world, steps=STEPS):
    """The losses of the steps and the tables after them."""
    parts = Parts.of(config, graph, torch.device("cpu"), world)
    entity, relation = parts.tables(MemoryStorage())
    batches, losses = parts.batches(), []
    for step in range(steps):
        work = prepare(parts.objective, graph.num_entities, batches(step), parts.sharding.plan)
        losses.append(run_step(parts.objective, entity, relation, work))
    rows = entity.read(torch.arange(graph.num_entities)), relation.read(torch.arange(relation.num_rows))
    return torch.stack(losses), *rows


def assert_invisible(configured, graph, overrides, ranks, sharding="rowwise", steps=STEPS, rtol=1e-9):
    alone = train(configured(*overrides), graph, ALONE, steps)
    assert alone[0].isfinite().all() and len(alone[0].unique()) > steps // 2
    config = configured(*overrides, f"sharding={sharding}")
    for count in ranks:
        shards = as_ranks(count, lambda world: train(config, graph, world, steps))
        for one in shards:
            torch.testing.assert_close(one[0], alone[0], rtol=rtol, atol=0)
            for mine, expected in zip(one[1:], alone[1:], strict=True):
                torch.testing.assert_close(mine, expected, rtol=rtol, atol=rtol)
            assert torch.equal(one[2], shards[0][2]), "relation rows have the same bits on all ranks"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_any_number_of_ranks_trains_what_one_process_does(configured, graph, technique, optimizer, model):
    overrides = (*TECHNIQUES[technique], f"optimizer={optimizer}", f"model={model}")
    if optimizer == "sgd":
        overrides += ("optimizer.lr=1.0",)
    assert_invisible(configured, graph, overrides, (1, 2, 3, 4))


@pytest.mark.parametrize("sharding", ["rowwise", "replicated"])
@pytest.mark.parametrize(
    "overrides",
    [
        ("scoring=negatives", "scoring.sides=bernoulli", "scoring.mask=known", "scoring.chunk_size=9", "model=transe"),
        ("scoring=negatives", "scoring.sides=head", "scoring.chunk_size=1", "scoring.degree_exponent=0.7"),
        ("scoring=onevsall", "loss=margin_ranking", "scoring.block=70", "scoring.sides=tail"),
        ("scoring=onevsall", "loss=self_adversarial", "model.reciprocal=true", "auxiliary=relation_prediction"),
        ("scoring=kvsall", "loss=softmax", "loss.label_smoothing=0.1", "scoring.block=100", "model=rotate"),
        ("scoring=kvsall", "model.entity_dropout=0.3", "model.relation_dropout=0.2", "scoring.block=64"),
        ("scoring=onevssample", "model.entity_dropout=0.3", "model.relation_dropout=0.2", "scoring.mask=known"),
        ("scoring=negatives", "regularizer=lp", "regularizer.weighted=false", "optimizer=adam", "optimizer.clip=0.1"),
        ("scoring=onevsall", "regularizer=lp", "regularizer.weighted=false", "optimizer=adam"),
        ("scoring=negatives", "train.batch_size=2", "scoring.chunk_size=1"),
        ("scoring=onevsall", "train.batch_size=2"),
        ("scoring=kvsall", "train.batch_size=2"),
    ],
    ids=" ".join,
)
def test_every_option_is_the_same_on_three_ranks(configured, graph, overrides, sharding):
    assert_invisible(configured, graph, overrides, (3,), sharding, steps=12)


def test_only_distinct_remote_rows_travel(configured, graph):
    """Rows go out to those who ask, gradients come home, and no other rows are exchanged."""
    config, ranks, steps = configured(*TECHNIQUES["negatives"], "sharding=rowwise"), 3, 2

    def sent(world):
        parts = Parts.of(config, graph, torch.device("cpu"), world)
        entity, relation = parts.tables(MemoryStorage())
        batches, counts, ids = parts.batches(), [], []
        for step in range(steps):
            work = prepare(parts.objective, N, batches(step), parts.sharding.plan)
            before = parts.sharding.exchange.sent
            run_step(parts.objective, entity, relation, work)
            counts.append(parts.sharding.exchange.sent - before)
            triples, drawn = (
                work.batch.triples[:, [0, 2]].flatten(),
                [part.ids.flatten() for part in work.drawn.values()],
            )
            ids.append(set(torch.cat([triples, *drawn]).tolist()))
        return counts, ids

    of_ranks = as_ranks(ranks, sent)
    own = [range(N * rank // ranks, N * (rank + 1) // ranks) for rank in range(ranks)]
    for rank, (counts, ids) in enumerate(of_ranks):
        for step in range(steps):
            gradients = len(ids[step] - set(own[rank]))
            rows = sum(len(other[step] & set(own[rank])) for i, (_, other) in enumerate(of_ranks) if i != rank)
            assert counts[step] == rows + gradients
