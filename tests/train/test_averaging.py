"""The average of weights: the plain mean, ranked with and resumed bit by bit, never in the way of training."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from kgexp.check import check
from kgexp.checkpoint.store import CheckpointStore
from kgexp.data.load import load
from kgexp.errors import ConfigError
from kgexp.evaluation.evaluator import Evaluation
from kgexp.storage.local import LocalStorage
from kgexp.storage.memory import MemoryStorage
from kgexp.tracking.progress import Progress
from kgexp.train.assembly import Parts
from kgexp.train.signals import StopRequested, StopSignal
from kgexp.train.stages import Stages
from kgexp.train.trainer_assembly import trainer_of

N = 23  # triples of train; three batches an epoch
OWN = ("train.batch_size=9", "train.epochs=7", "train.dtype=float64", "model.dim=6", "tracking.every_steps=1")


class Run:
    """A training run that remembers the weights after every step, and those that it ranked with."""

    def __init__(self, parts, storage=None):
        self.weights, self.ranked = {}, {}
        self.tables = parts.tables(storage or MemoryStorage())
        evaluator = SimpleNamespace(objective_name="mrr", objective_sign=1, evaluate=self.evaluate)
        tracker = SimpleNamespace(log=self.log, say=lambda line: None)
        self.trainer = trainer_of(parts, *self.tables, evaluator, tracker, Stages(), lambda *_: None, StopSignal())

    def now(self):
        return [table.state_tensors()["weight"].clone() for table in self.tables]

    def log(self, step, row):
        if "train/loss" in row:
            self.weights[step] = self.now()

    def evaluate(self, split):
        self.ranked[self.trainer.step] = self.now()
        return Evaluation(split, {"mrr": 0.5})

    def train(self, steps=None):
        """All of it, or so many steps, after which a stop signal comes."""
        signal = _Stop(self.trainer, steps)
        with Progress("none", 1, description="train", done=0) as progress:
            self.trainer.fit(progress, signal)
        return self

    def mean(self, steps):
        chosen = [self.weights[step] for step in steps]
        return [torch.stack(of_table).mean(dim=0) for of_table in zip(*chosen, strict=True)]


class _Stop:
    def __init__(self, trainer, steps):
        self.trainer, self.steps = trainer, steps

    @property
    def requested(self):
        return 15 if self.steps is not None and self.trainer.step >= self.steps else None

    noted = requested

    def adopt(self, signum):
        pass


@pytest.fixture(scope="module")
def base(composed):
    """Composed once: that is what takes the time here."""
    return composed("dataset=files", "dataset.path=PATH", "dataset.cache=null", "evaluation.every_epochs=1", *OWN)


@pytest.fixture
def make(tmp_path, base):
    for name, count in (("train", N), ("valid", 2)):
        text = "".join(f"e{i}\tr{i % 2}\te{(i + 1) % N}\n" for i in range(count))
        (tmp_path / f"{name}.txt").write_text(text)

    def parts(*overrides):
        changes = OmegaConf.from_dotlist([f"dataset.path={tmp_path}", *overrides])
        config = check(OmegaConf.merge(base, changes))
        return Parts.of(config, load(config["dataset"]), torch.device("cpu"))

    return parts


def averages(run):
    return [table.state_tensors()["average"] for table in run.tables]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (("averaging.start=0",), range(3, 22, 3)),
        (("averaging.start=0.5",), [12, 15, 18, 21]),  # after step 10
        (("averaging.start=0.86",), [21]),
        (("averaging.start=0.4", "averaging.every_epochs=2"), [12, 18]),
        (("averaging.start=0.7", "averaging.every_epochs=0", "averaging.every_steps=2"), [16, 18, 20]),
    ],
)
def test_it_is_the_plain_mean_and_what_is_ranked(make, overrides, steps):
    run, plain = Run(make(*overrides)).train(), Run(make()).train()
    for average, expected in zip(averages(run), run.mean(steps), strict=True):
        torch.testing.assert_close(average, expected, rtol=1e-13, atol=1e-16)
    assert same(run.now(), plain.now()), "training does not see it"
    for step, ranked in run.ranked.items():
        averaged = [s for s in steps if s <= step]
        expected = run.mean(averaged or [step])
        assert all(torch.allclose(a, b, rtol=1e-13, atol=0) for a, b in zip(ranked, expected, strict=True))
    assert run.trainer.state_dict()["model_weight"] == "average"
    assert plain.trainer.state_dict()["model_weight"] == "weight"
    assert "average" not in plain.tables[0].state_tensors()


@pytest.mark.parametrize("stop", [7, 14])
def test_a_resumed_run_has_the_same_bits(make, tmp_path, stop):
    overrides = ("averaging.start=0.5",)
    straight, first = Run(make(*overrides)).train(), Run(make(*overrides)).train(stop)
    names = {table.name: table for table in first.tables}
    CheckpointStore(tmp_path / "checkpoints", 1).save(stop, names, first.trainer.state_dict(), {}, {})
    storage = LocalStorage(str(tmp_path / "tables"))
    storage.open(tmp_path)
    second = Run(make(*overrides), storage)
    checkpoint = CheckpointStore(tmp_path / "checkpoints", 1).open(stop)
    assert checkpoint.model_weight == ("average" if stop > 10 else "weight")
    for table in second.tables:
        checkpoint.load(table)
    second.trainer.load_state_dict(checkpoint.state)
    second.train()
    assert same(averages(straight), averages(second)) and same(straight.now(), second.now())
    assert same(straight.ranked[21], second.ranked[21])
    storage.close()


@pytest.mark.parametrize(("epochs", "missed"), [(10, [18, 21]), (14, []), (15, [])])
def test_a_run_that_is_made_longer_begins_anew(make, epochs, missed):
    longer = ("averaging.start=0.5", f"train.epochs={epochs}")
    short, long, straight = Run(make("averaging.start=0.5")).train(), Run(make(*longer)), Run(make(*longer)).train()
    for mine, other in zip(long.tables, short.tables, strict=True):
        for name, tensor in mine.state_tensors().items():
            tensor.copy_(other.state_tensors()[name])
    long.trainer.load_state_dict(short.trainer.state_dict())
    long.train()
    steps = [step for step in range(3, 3 * epochs + 1, 3) if step > 1.5 * epochs and step not in missed]
    for average, expected in zip(averages(long), straight.mean(steps), strict=True):
        torch.testing.assert_close(average, expected, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("error", [StopRequested, RuntimeError])
def test_an_interrupted_ranking_leaves_the_weights_in_their_place(make, error):
    run = Run(make("averaging.start=0.5"))
    run.train(15)
    before, held = run.now(), [average.clone() for average in averages(run)]
    with pytest.raises(error), run.trainer.averaging.in_place():
        assert same(run.now(), held) and same(averages(run), before)
        raise error
    assert same(run.now(), before) and same(averages(run), held)


@pytest.mark.parametrize(("start", "steps"), [(0.9, 20), (0, 2)])
def test_an_average_that_never_begins_is_refused(make, start, steps):
    overrides = (f"averaging.start={start}", f"train.steps={steps}")
    with pytest.raises(ConfigError, match=r"averaging\.start=.*no average falls due, an epoch being 3 steps"):
        Run(make(*overrides))
    Run(make(*overrides, "averaging.every_steps=1"))


def test_it_is_in_the_estimate(make):
    plain, averaged = (make(f"averaging.start={start}").estimate(MemoryStorage()).parts for start in ("null", "0"))
    for name, numbers in plain.items():
        assert averaged[name] == (numbers * 3 // 2 if name.endswith("table") else numbers)  # with Adagrad's sum


def test_state_in_bfloat16_has_an_average_that_is_not(make):
    run = Run(make("averaging.start=0.5", "train.dtype=float32", "train.state_dtype=bfloat16")).train()
    assert run.tables[0].state_tensors()["sum"].dtype == torch.bfloat16
    for average, expected in zip(averages(run), run.mean([12, 15, 18, 21]), strict=True):
        torch.testing.assert_close(average, expected, rtol=1e-6, atol=1e-8)
