"""A step on an accelerator never makes the host wait: nothing of it asks for a number or copies from device to device.

Torch's device `meta` stands in for one: its tensors have shapes and no numbers, so whoever asks for one fails, and the
code takes the ways that it takes on a GPU.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kgexp.data.graph import Split
from kgexp.data.known import KnownTriples
from kgexp.data.sides import Side
from kgexp.models.complex import ComplEx
from kgexp.models.rotate import RotatE
from kgexp.models.transe import TransE
from kgexp.optim.adagrad import RowwiseAdagrad
from kgexp.optim.adam import Adam
from kgexp.scoring.kvsall import KvsAll
from kgexp.scoring.losses import Logistic, SelfAdversarial, Softmax
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.onevsall import OneVsAll
from kgexp.scoring.onevssample import OneVsSample
from kgexp.scoring.regularizers import N3, Lp
from kgexp.scoring.relation_prediction import RelationPrediction
from kgexp.sharding.local import LocalTable
from kgexp.train.batches import Batches
from kgexp.train.queries import QueryBatches
from kgexp.train.step import Objective, prepare, run_step

N, M, DIM = 40, 3, 8
HOST, META = torch.device("cpu"), torch.device("meta")

# What asks for numbers, or for how many there will be.
ASKING = {"_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "unique_consecutive"}
ASKING |= {"_unique2", "unique_dim", "repeat_interleave"}


class Waits(TorchDispatchMode):
    """Notes the operations after which the host has to wait for the device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        tensors = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        moves = name in ("_to_copy", "copy_") and len({x.device for x in tensors} | {kwargs.get("device", META)}) > 1
        by_mask = name.startswith("index") and any(x.dtype == torch.bool for x in tensors)
        if name in ASKING or moves or by_mask:
            self.seen.append(name)
        return function(*args, **kwargs)


def graph():
    g = torch.Generator().manual_seed(0)
    triples = torch.stack([torch.randint(0, high, (90,), generator=g) for high in (N, M, N)], dim=1).int().numpy()
    return SimpleNamespace(
        train=Split("train", triples, None),
        known=KnownTriples.build([triples], M),
        num_entities=N,
        num_relations=M,
        relation_weights=None,
    )


def table(name, rows, dim, optimizer, device):
    state = {k: torch.zeros(shape, device=device) for k, shape in optimizer.state_shapes(rows, dim).items()}
    return LocalTable(name, torch.zeros(rows, dim, device=device), state, optimizer)


STEPS = {
    "negatives": (ComplEx, NegativeSampling(7, chunk_size=5, mask="known"), Softmax(), N3(0.1), RowwiseAdagrad),
    "own negatives": (partial(RotatE, margin=1.0), NegativeSampling(7, 1, mask="equal"), SelfAdversarial(), None, Adam),
    "a side each": (TransE, NegativeSampling(7, chunk_size=4, sides="bernoulli"), Logistic(), None, RowwiseAdagrad),
    "dropout": (partial(ComplEx, entity_dropout=0.2, relation_dropout=0.1), OneVsSample(9), Softmax(), None, Adam),
    "1vsAll": (partial(TransE, norm="l2"), OneVsAll(), Softmax(label_smoothing=0.1), Lp(weighted=False), Adam),
    "KvsAll": (ComplEx, KvsAll(), Logistic(balanced=False), None, RowwiseAdagrad),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_host_never_waits_within_a_step(name):
    model, scoring, loss, regularizer, optimizer = STEPS[name]
    data, model = graph(), model(dim=DIM)
    scoring.prepare(data)
    auxiliary = RelationPrediction(0.1) if name == "negatives" else None
    objective = Objective(model, scoring, loss, regularizer, M, 0, auxiliary)
    if scoring.by_query:
        batch = QueryBatches(data, list(Side), 13, 0)(2)
    else:
        batch = Batches(data.train, 13, 0, torch.float32)(2)
    entity = table("entity", N, DIM, optimizer(clip=1.0, max_norm=2.0), META)
    relation = table("relation", 2 * M, model.relation_dim, optimizer(), META)
    work = prepare(objective, N, batch, device=META)
    with Waits() as waits:
        loss = run_step(objective, entity, relation, work)
    assert loss.shape == () and loss.device == META
    assert not waits.seen


def test_a_step_is_prepared_on_the_host_and_sent_in_the_end():
    scoring = NegativeSampling(7, chunk_size=5, mask="known")
    data = graph()
    scoring.prepare(data)
    objective = Objective(ComplEx(DIM), scoring, Softmax(), None, M, 0)
    batch = Batches(data.train, 13, 0, torch.float32)(0)
    here, there = (prepare(objective, N, batch, device=device) for device in (HOST, META))
    assert there.batch is here.batch and there.batch.triples.device == HOST
    assert [piece.batch.triples.device for piece in there.pieces] == [META]
    assert there.plan.entity.ids.device == META and there.plan.entity.ids.shape == here.plan.entity.ids.shape
