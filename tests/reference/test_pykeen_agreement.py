"""Our metrics of one trained model against those that PyKEEN's evaluator gave: see `pykeen_metrics.py`."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kgexp.data.kinds import Kinds
from kgexp.data.known import TEST, TRAIN, VALID, KnownTriples
from kgexp.evaluation.metrics import metrics
from kgexp.evaluation.ranker import Ranker
from kgexp.models.complex import ComplEx
from kgexp.models.distmult import DistMult
from kgexp.sharding.local import LocalTable

HERE = Path(__file__).parent
MODELS = {
    "complex_reciprocal": ComplEx(16, reciprocal=True),
    "complex": ComplEx(16, reciprocal=False),
    "distmult": DistMult(16, reciprocal=False),
    "distmult_tied": DistMult(16, reciprocal=False),
}


@pytest.fixture(scope="module")
def recorded():
    return json.loads((HERE / "pykeen_metrics.json").read_text(encoding="utf-8"))["metrics"]


@pytest.fixture(scope="module")
def fixture():
    with np.load(HERE / "umls_complex.npz") as data:
        return dict(data)


def make_graph(fixture):
    splits = {name: fixture[name].astype(np.int32) for name in ("train", "valid", "test")}
    n, m = len(fixture["entity"]), len(fixture["relation"]) // 2
    return SimpleNamespace(
        num_entities=n,
        num_relations=m,
        train=SimpleNamespace(triples=splits["train"]),
        split=lambda name: SimpleNamespace(triples=splits[name]),
        known=KnownTriples.build(list(splits.values()), m),
        kinds=Kinds.of([range(n)], np.zeros((m, 2), np.int64)),
    )


@pytest.mark.parametrize("kind", MODELS)
def test_metrics_are_those_of_pykeen(fixture, recorded, kind):
    graph, model = make_graph(fixture), MODELS[kind]
    tables = []
    for name in ("entity", "relation"):
        rows = fixture[name].round() if kind.endswith("tied") else fixture[name]
        tables.append(LocalTable(name, torch.from_numpy(rows), {}, None))
    ranker = Ranker(model, *tables, graph, queries=100, block=50)
    filters = {"filtered": TRAIN | VALID, "filtered_with_test": TRAIN | VALID | TEST}
    ours = metrics(ranker.rank("valid", filters), graph)
    ours |= metrics(ranker.rank("test", {"filtered": TRAIN | VALID | TEST}), graph)
    theirs = {key.partition("/")[2]: value for key, value in recorded.items() if key.startswith(f"{kind}/")}
    shared = sorted(theirs.keys() & ours.keys())
    # Three rankings: seven metrics realistic for three sides, six each for both sides under the other tie
    # rules.
    assert len(shared) == 3 * (3 * 7 + 2 * 6)
    for key in shared:
        # PyKEEN averages realistic ranks in float32, hence the relative tolerance.
        assert ours[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-6), key
