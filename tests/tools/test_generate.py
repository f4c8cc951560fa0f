"""A generated graph: what its options say, the same whatever the size of the blocks, and one that can be learnt."""

import re
from collections import Counter

import numpy as np
import pytest
import torch

from kgexp.check import check
from kgexp.data.load import load
from kgexp.evaluation.evaluator import Evaluator
from kgexp.storage.memory import MemoryStorage
from kgexp.tools import generate
from kgexp.train.assembly import Parts
from kgexp.train.step import train_step

N, M, CLUSTERS, TRIPLES, VALID, TEST = 503, 5, 23, 10_007, 101, 97
SIZES = {"train": TRIPLES, "valid": VALID, "test": TEST}
OPTIONS = ["--entities", str(N), "--triples", str(TRIPLES), "--relations", str(M), "--clusters", str(CLUSTERS)]


def kgexp_generate(folder, *options):
    return generate.main([str(folder), *OPTIONS, "--valid", str(VALID), "--test", str(TEST), *options])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "graph"
    assert kgexp_generate(folder) == 0
    return folder


def read(path):
    return [tuple(line.split("\t")) for line in path.read_text().splitlines()]


def graph(**other):
    options = {"entities": N, "relations": M, "clusters": CLUSTERS, "skew": 1.0, "seed": 0}
    return generate.SyntheticGraph(**options | other)


def test_counts_and_names_are_those_asked_for(folder):
    assert sorted(path.name for path in folder.parent.iterdir()) == ["graph"]
    splits = {split: read(folder / f"{split}.tsv") for split in SIZES}
    assert {split: len(triples) for split, triples in splits.items()} == SIZES
    assert {h for h, _, _ in splits["train"]} == {f"e{i}" for i in range(N)}
    assert {r for _, r, _ in splits["train"]} == {f"r{i}" for i in range(M)}
    assert {t for triples in splits.values() for _, _, t in triples} <= {f"e{i}" for i in range(N)}
    assert len({*splits["valid"], *splits["test"]}) == VALID + TEST
    assert not {*splits["train"]} & {*splits["valid"], *splits["test"]}


def test_popularity_is_skewed(folder):
    train = read(folder / "train.tsv")
    tails, heads, relations = (Counter(triple[i] for triple in train) for i in (2, 0, 1))
    top = [f"e{i}" for i in range(N // 100)]
    assert sum(tails[e] for e in top) > 0.08 * TRIPLES and sum(heads[e] for e in top) > 0.03 * TRIPLES
    assert tails.most_common(CLUSTERS)[-1][1] > 5 * tails.most_common(N // 2)[-1][1]
    assert [r for r, _ in relations.most_common()] == [f"r{i}" for i in range(M)]


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 2.0])
def test_the_power_law_is_that_of_its_density(skew):
    low, high = np.array([1, 3]), np.array([6, 12])
    draw = generate.PowerLaw(low, high, skew)
    even = (np.arange(200_000) + 0.5) / 200_000
    for which in (0, 1):
        found = np.bincount(draw(even, np.full(len(even), which)), minlength=13)[low[which] : high[which]]
        x = np.linspace(low[which], high[which], 200_000 * (high[which] - low[which]) + 1)
        mass = (x[:-1] + x[1:]) ** -skew
        expected = mass.reshape(-1, 200_000).sum(1)
        np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), atol=2e-5)


def test_a_relation_leads_from_a_cluster_to_three_neighbours(folder):
    number = {name: int(name[1:]) for triple in read(folder / "train.tsv") for name in triple}
    distances = {}
    for h, r, t in read(folder / "train.tsv"):
        distances.setdefault(r, set()).add((number[t] - number[h]) % CLUSTERS)
    for found in distances.values():
        assert any(found == {(first + i) % CLUSTERS for i in range(3)} for first in found)
    assert len({min(found) for found in distances.values()}) > 1


@pytest.mark.parametrize("block", [97, 100_000])
def test_the_bytes_do_not_depend_on_the_blocks(folder, tmp_path, block):
    generate.write(graph(), tmp_path / "again", SIZES, block=block)
    for split in SIZES:
        assert (tmp_path / "again" / f"{split}.tsv").read_bytes() == (folder / f"{split}.tsv").read_bytes()


def test_another_seed_is_another_graph(folder):
    first = (graph(seed=seed).train(0, 50, TRIPLES) for seed in (0, 1))
    assert not np.array_equal(*(triples.tail for triples in first))


def test_compressed_files_hold_the_same_graph(folder, tmp_path):
    assert kgexp_generate(tmp_path / "small", "--compress", "zst", "--test", "0") == 0
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == ["train.tsv.zst", "valid.tsv.zst"]
    options = {"name": "g", "columns": ["head", "relation", "tail"], "header": False, "cache": None}
    options |= {"valid": 0.1, "test": 0.1, "split_seed": 0, "relation_types": None}
    options |= {"relation_weights": None}
    packed, plain = (load(options | {"path": str(path)}) for path in (tmp_path / "small", folder))
    assert np.array_equal(packed.train.triples, plain.train.triples)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--triples", "502"], "--triples is 502 but must be in 503 … "),
        (["--clusters", "504"], "--clusters is 504 but must be in 1 … 503"),
        (["--skew", "-1"], "--skew is -1.0 but must be in 0 … 10"),
        (["--entities", "0"], "--entities is 0 but must be in 1 … "),
        (["--test", "9000"], "too few triples for --test 9000"),
        (
            ["--entities=1", "--relations=1", "--clusters=1", "--valid=0", "--test=0", "--seed=14"],
            "leave too few triples for train",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, capsys, options, sentence):
    assert kgexp_generate(tmp_path / "graph", *options) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    assert kgexp_generate(tmp_path) == 2
    assert f"{tmp_path} exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_it_says_how_to_train_on_it_and_complex_learns(tmp_path, capsys, composed):
    assert kgexp_generate(tmp_path / "graph") == 0
    (command,) = re.findall("python -m kgexp (.*)", capsys.readouterr().out)
    own = ("dataset.cache=null", "train.device=cpu", "model.dim=16", "optimizer.lr=0.1", "scoring.negatives=50")
    config = check(composed(*command.split(), *own, "regularizer=none", "train.batch_size=250"))
    parts = Parts.of(config, load(config["dataset"]), torch.device("cpu"))
    entity, relation = parts.tables(MemoryStorage())
    batches, seen = parts.batches(), []
    for steps in (0, 8 * batches.calendar.steps(1)):
        for step in range(steps):
            train_step(parts.objective, entity, relation, batches(step))
        evaluator: Evaluator = parts.evaluator(entity, relation, print, lambda done, total: None)
        seen.append(evaluator.evaluate("valid").metrics["valid/filtered/realistic/both/mrr"])
    assert seen[0] < 0.04 and seen[1] > 0.09, seen
