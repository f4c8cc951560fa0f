"""Records what PyKEEN's evaluator says of the model in `umls_complex.npz`, as `pykeen_metrics.json`.

Runs in an environment of its own, for PyKEEN is no dependency here:

    python -m venv /tmp/pykeen && /tmp/pykeen/bin/pip install torch pykeen==1.11.1
    /tmp/pykeen/bin/python tests/reference/pykeen_metrics.py

Recorded are ComplEx with reciprocal relations, ComplEx and DistMult without, and DistMult with rows rounded
to integers, whose scores often tie; each for valid (filtered by train and valid, and by test as well) and
for test: `{model}/{split}/{filter}/{tie}/{side}/{metric}`.
"""

import json
from pathlib import Path

import numpy as np
import pykeen
import torch
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import ERModel
from pykeen.nn import Embedding
from pykeen.nn.init import PretrainedInitializer
from pykeen.nn.modules import ComplExInteraction, DistMultInteraction
from pykeen.triples import CoreTriplesFactory

HERE = Path(__file__).parent
TIES = ("realistic", "optimistic", "pessimistic")
METRICS = {
    "mrr": "inverse_harmonic_mean_rank",
    "mr": "arithmetic_mean_rank",
    "median": "median_rank",
    "hits@1": "hits_at_1",
    "hits@3": "hits_at_3",
    "hits@10": "hits_at_10",
    "amri": "adjusted_arithmetic_mean_rank_index",
}
FILTERS = {
    ("valid", "filtered"): ("train", "valid"),
    ("valid", "filtered_with_test"): ("train", "valid", "test"),
    ("test", "filtered"): ("train", "valid", "test"),
}


def rows(array, is_complex):
    """float32[n, d], real parts first, as PyKEEN has them: complex64[n, d / 2] where the model is complex."""
    tensor = torch.from_numpy(array)
    return torch.complex(*tensor.chunk(2, -1)) if is_complex else tensor


def embedding(values):
    """The rows as they are: the model sets its parameters anew when it is made, so they go in as an
    initializer."""
    reals = torch.view_as_real(values) if values.is_complex() else values
    shape, initializer = values.shape[1:], PretrainedInitializer(reals)
    return Embedding(max_id=len(values), shape=shape, initializer=initializer, dtype=values.dtype, trainable=False)


class Reciprocal(ERModel):
    """Answers a head query as the tail query of the inverse relation, whose rows follow the others.

    PyKEEN interleaves the rows of inverse relations with the others; here the file's order is kept.
    """

    def score_h(self, rt_batch, heads=None, **kwargs):
        """See `pykeen.models.Model`."""
        hr_batch = torch.stack([rt_batch[:, 1], rt_batch[:, 0] + self.num_relations], dim=1)
        return super().score_t(hr_batch, tails=heads, **kwargs)


def make_model(kind, factory, data):
    is_complex = kind.startswith("complex")
    reciprocal = kind.endswith("reciprocal")
    entity, relation = data["entity"], data["relation"]
    if kind.endswith("tied"):
        entity, relation = entity.round(), relation.round()
    entity, relation = rows(entity, is_complex), rows(relation, is_complex)
    model = (Reciprocal if reciprocal else ERModel)(
        triples_factory=factory,
        interaction=ComplExInteraction() if is_complex else DistMultInteraction(),
        entity_representations=embedding(entity),
        relation_representations=embedding(relation),
        skip_checks=True,
    )
    ids = torch.arange(len(entity))
    assert torch.equal(model.entity_representations[0](ids), entity)
    return model.eval()


def main():
    """Writes the file."""
    data = np.load(HERE / "umls_complex.npz")
    splits = {name: torch.from_numpy(data[name].astype(np.int64)) for name in ("train", "valid", "test")}
    everything = torch.cat(list(splits.values()))
    sizes = {
        "num_entities": int(everything[:, [0, 2]].max()) + 1,
        "num_relations": int(everything[:, 1].max()) + 1,
    }
    factory = CoreTriplesFactory.create(splits["train"], **sizes)
    values = {}
    for kind in ("complex_reciprocal", "complex", "distmult", "distmult_tied"):
        model = make_model(kind, factory, data)
        for (split, name), known in FILTERS.items():
            others = [splits[other] for other in known if other != split]
            result = RankBasedEvaluator(filtered=True).evaluate(
                model, splits[split], batch_size=64, additional_filter_triples=others, use_tqdm=False
            )
            for tie in TIES:
                for side in ("both", "head", "tail"):
                    for metric, theirs in METRICS.items():
                        if metric != "amri" or tie == "realistic":
                            key = f"{kind}/{split}/{name}/{tie}/{side}/{metric}"
                            values[key] = result.get_metric(f"{side}.{tie}.{theirs}")
    record = {"pykeen": pykeen.get_version(), "torch": str(torch.__version__), "metrics": values}
    (HERE / "pykeen_metrics.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
