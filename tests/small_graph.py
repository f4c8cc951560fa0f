"""A graph whose sizes do not divide, and configurations of it: fixtures of the tests that compare training."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from kgexp.check import check
from kgexp.config import config_dir
from kgexp.data.load import load

N, M, TRIPLES = 501, 7, 1500
OWN = {"model.dim": 8, "model.init_scale": 0.5, "optimizer.lr": 0.05, "train.batch_size": 101, "train.dtype": "float64"}


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
def typed(tmp_path_factory):
    """The settings of a graph of 300 users, 40 items and 3 tags, joined by relations of three kinds."""
    folder = tmp_path_factory.mktemp("typed")
    random = np.random.default_rng(1)
    lines = [
        f"u{i % 300}\t{'likes' if i % 3 else 'owns'}\ti{random.integers(40) if i > 400 else i % 40}\n"
        for i in range(900)
    ]
    lines += [f"u{i % 300}\tknows\tu{random.integers(300)}\n" for i in range(301)]
    lines += [f"i{i % 40}\thas\tt{random.integers(3)}\n" for i in range(83)]
    lines = [lines[i] for i in random.permutation(len(lines))]
    for name, part in (("train", lines[:-90]), ("valid", lines[-90:-40]), ("test", lines[-40:])):
        (folder / f"{name}.txt").write_text("".join(part))
    (folder / "types.tsv").write_text("likes\tuser\titem\nowns\tuser\titem\nknows\tuser\tuser\nhas\titem\ttag\n")
    return f"dataset.path={folder}", f"dataset.relation_types={folder / 'types.tsv'}"


@pytest.fixture(scope="session")
def configured(composed, graph_folder):
    """`GROUP=CHOICE` and `KEY=VALUE` to a checked configuration; Hydra composes once, which is what takes the time."""
    base = composed("dataset=files", f"dataset.path={graph_folder}", "dataset.cache=null", "train.device=cpu")

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
