"""What a step may cost, in counts that are the same on every machine: a guard against what slows a step down unseen.

The limits are a tenth above what a step takes. Whoever makes it cheaper lowers them; whoever has to make it dearer sees
by how much.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kgexp.tools.benchmarks.steps import Steps
from kgexp.tools.composing import composed
from kgexp.tools.measuring import parts_of
from kgexp.world import ALONE

B, K, D = 200, 50, 16
ENTITIES = 2034  # of CoDEx-S
GIVEN = [f"train.batch_size={B}", f"model.dim={D}", "train.threads=1", "train.device=cpu", "regularizer=none"]
SAMPLED = ["scoring=negatives", f"scoring.negatives={K}", "scoring.chunk_size=100", "optimizer=rowwise_adagrad"]
#: Operations that give names to memory that is there, and launch nothing.
VIEWS = {"view", "reshape", "slice", "select", "unsqueeze", "squeeze", "split", "detach", "t", "transpose", "expand"}
VIEWS |= {"alias", "_unsafe_view", "unbind", "permute", "as_strided", "lift_fresh", "empty", "new_empty", "empty_like"}


class Counted(TorchDispatchMode):
    """Counts operations, and the bytes of memory that they make."""

    def __init__(self):
        super().__init__()
        self.operations, self.bytes, self.largest = 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
        there = {x.untyped_storage().data_ptr() for x in given}
        made = func(*args, **(kwargs or {}))
        self.operations += func.overloadpacket.__name__ not in VIEWS
        for x in made if isinstance(made, tuple | list) else [made]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in there:
                self.bytes += x.untyped_storage().nbytes()
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return made


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def counted(*arguments):
    """The work of a step, and the counts of preparing and of doing it."""
    steps = Steps(parts_of(composed([*GIVEN, *arguments]), ALONE))
    steps.run(steps.prepare(0))
    with Counted() as preparing:
        work = steps.prepare(1)
    with Counted() as running:
        steps.run(work)
    return work, preparing, running


def test_a_step_of_negative_sampling():
    work, preparing, running = counted(*SAMPLED, "model=complex", "loss=logistic")
    assert preparing.operations <= 3  # what is sorted is sorted by NumPy
    assert running.operations <= 155  # 141
    assert running.bytes <= 60 * 4 * B * D  # 55 times the rows of a place
    wanted = [work.batch.triples[:, [0, 2]].flatten(), *(drawn.ids.flatten() for drawn in work.drawn.values())]
    assert work.plan.entity.ids.tolist() == sorted(set(torch.cat(wanted).tolist()))  # no row is fetched twice


def test_a_step_against_all_entities():
    _, preparing, running = counted("scoring=onevsall", "model=complex", "loss=softmax", "optimizer=adagrad")
    assert preparing.operations <= 3  # what is sorted is sorted by NumPy
    assert running.operations <= 210  # 189
    assert running.bytes <= 2.6 * 4 * 2 * B * ENTITIES  # 2.3 times the scores


@pytest.mark.parametrize("model", ["transe model.norm=l1", "transe model.norm=l2", "rotate"])
def test_no_temporary_has_a_number_for_each_of_batch_negatives_and_dim(model):
    b, k, d = 500, 200, 64
    more = [f"train.batch_size={b}", f"scoring.negatives={k}", f"model.dim={d}", "scoring.chunk_size=500"]
    _, _, running = counted(*SAMPLED, *more, *f"model={model}".split(), "loss=self_adversarial")
    assert running.largest <= 4 * b * k * d / 10
