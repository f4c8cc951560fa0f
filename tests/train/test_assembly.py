"""From a configuration to tables: each with the optimizer and the first rows that the configuration says."""

import numpy as np
import pytest
import torch

from kgexp.check import check
from kgexp.data.load import load
from kgexp.randomness import Purpose, key
from kgexp.scoring.batch import Batch
from kgexp.sharding.route import Route
from kgexp.storage.memory import MemoryStorage
from kgexp.train.assembly import Parts
from kgexp.train.step import train_step

N, M = 23, 2


@pytest.fixture
def parts(tmp_path, composed):
    """Arguments of the command to its parts, for a ring of 23 entities and two relations."""
    path = tmp_path / "ring.tsv"
    path.write_text("".join(f"e{i}\tr{i % M}\te{(i + 1) % N}\n" for i in range(N)))

    def make(*overrides):
        own = (f"dataset.path={path}", "dataset.cache=null", "dataset.valid=0", "dataset.test=0", "model.dim=8")
        config = check(composed("dataset=files", *own, *overrides))
        return Parts.of(config, load(config["dataset"]), torch.device("cpu"))

    return make


def moved(table):
    """How far a gradient of ones moves the first row."""
    before = table.read(torch.tensor([0]))
    table.update(Route(torch.tensor([0])), torch.ones(1, table.dim))
    return (before - table.read(torch.tensor([0])))[0]


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad", "adam", "sgd"])
@pytest.mark.parametrize(("given", "relation_lr"), [(0.125, 0.125), ("null", 0.5)])
def test_relations_have_a_learning_rate_of_their_own(parts, optimizer, given, relation_lr):
    made = parts(f"optimizer={optimizer}", "optimizer.lr=0.5", f"optimizer.relation_lr={given}")
    entity, relation = made.tables(MemoryStorage())
    torch.testing.assert_close(moved(entity), torch.full((8,), 0.5))
    torch.testing.assert_close(moved(relation), torch.full((8,), relation_lr))


def test_max_norm_is_for_entities_alone(parts):
    entity, relation = parts("optimizer=sgd", "optimizer.lr=10", "model.max_norm=1.5").tables(MemoryStorage())
    for table in (entity, relation):
        moved(table)
    assert entity.read(torch.tensor([0])).norm().item() == pytest.approx(1.5)
    assert relation.read(torch.tensor([0])).norm() > 20
    free, _ = parts("optimizer=sgd", "optimizer.lr=10").tables(MemoryStorage())
    assert moved(free).norm() > 20


@pytest.mark.parametrize(("weighted", "weights"), [("false", (0.5, 0.25)), ("true", (0, 0))])
def test_a_penalty_on_rows_is_for_the_optimizers_of_both_tables(parts, weighted, weights):
    lp = ("regularizer=lp", "regularizer.p=1", "regularizer.weight=0.5", "regularizer.relation_weight=0.25")
    made = parts("optimizer=sgd", "optimizer.lr=2", *lp, f"regularizer.weighted={weighted}")
    for table, weight in zip(made.tables(MemoryStorage()), weights, strict=True):
        signs = table.read(torch.tensor([0]))[0].sign()
        torch.testing.assert_close(moved(table), 2 + 2 * weight * signs, rtol=1e-5, atol=0)


def test_clip_is_for_both_tables(parts):
    for table in parts("optimizer=sgd", "optimizer.lr=1", "optimizer.clip=0.25").tables(MemoryStorage()):
        assert moved(table).norm().item() == pytest.approx(0.25, rel=1e-5)


def test_adam_takes_its_keys(parts):
    entity, _ = parts("optimizer=adam", "optimizer.betas=[0.5,0.75]", "optimizer.eps=3", "optimizer.lr=1").tables(
        MemoryStorage()
    )
    torch.testing.assert_close(moved(entity), torch.full((8,), 1 / 4))  # g / (√g² + 3)
    state = entity.state_tensors()
    assert state["exp_avg"][0].eq(0.5).all() and state["exp_avg_sq"][0].eq(0.25).all()


def test_each_table_is_drawn_for_its_own_number_of_rows(parts):
    made = parts("model.init=xavier_uniform", "model.init_scale=1")
    entity, relation = made.tables(MemoryStorage())
    for table, purpose in ((entity, Purpose.ENTITY_INIT), (relation, Purpose.RELATION_INIT)):
        draw = {"entity": "initial_entities", "relation": "initial_relations"}[table.name]
        rows = getattr(made.objective.model, draw)(key(0, purpose), np.arange(table.num_rows), table.num_rows)
        np.testing.assert_array_equal(table.read(torch.arange(table.num_rows)).numpy(), rows.astype(np.float32))
        assert abs(rows).max() <= (6 / (table.num_rows + 8)) ** 0.5
    assert (entity.num_rows, relation.num_rows) == (N, 2 * M)


@pytest.mark.parametrize(
    ("optimizer", "numbers"), [("sgd", 8), ("rowwise_adagrad", 9), ("adagrad", 16), ("adam", 3 * 8 + 1)]
)
def test_the_estimate_counts_the_state(parts, optimizer, numbers):
    estimate = parts(f"optimizer={optimizer}").estimate(MemoryStorage())
    assert estimate.parts["entity table"] == N * numbers * 4
    assert estimate.parts["relation table"] == 2 * M * numbers * 4


def test_the_estimate_counts_what_is_kept(parts):
    made = parts("optimizer=adam", "train.table_dtype=bfloat16", "train.state_dtype=bfloat16")
    tables, numbers = made.tables(MemoryStorage()), made.estimate(MemoryStorage()).parts
    for table in tables:
        kept = table.state_tensors()
        assert {name for name, t in kept.items() if t.dtype == torch.float32} == {"step"}
        assert numbers[f"{table.name} table"] == sum(t.nbytes for t in kept.values())
    elsewhere = parts("optimizer=adam", "sharding.state_device=cuda").estimate(MemoryStorage())
    assert elsewhere.parts["entity table"] == N * 8 * 4 and elsewhere.parts["relation table"] == 2 * M * 8 * 4
    assert elsewhere.state == (N + 2 * M) * (2 * 8 + 1) * 4


def test_rows_in_bfloat16_are_rounded_by_seed_and_step(parts):
    """The same two steps, taken as steps 0 and 1 of runs of two seeds, and as steps 2 and 3."""

    def trained(seed, first):
        made = parts("train.table_dtype=bfloat16", f"seed={seed}", "optimizer=sgd")
        entity, _ = made.tables(MemoryStorage())
        entity.state_tensors()["weight"].fill_(1.0)
        for step in (first, first + 1):
            entity.update(Route(torch.arange(N)), torch.full((N, 8), 0.01), 1.0, step)
        return entity.read(torch.arange(N))

    assert torch.equal(trained(0, 0), trained(0, 0))
    assert not torch.equal(trained(0, 0), trained(1, 0)) and not torch.equal(trained(0, 0), trained(0, 2))


@pytest.mark.parametrize("dtype", ["null", "bfloat16"])
def test_a_training_step_rounds_by_its_number(parts, dtype):
    made, after = parts(f"train.table_dtype={dtype}"), []
    for step in (0, 5):
        entity, relation = made.tables(MemoryStorage())
        train_step(made.objective, entity, relation, Batch(step, made.batches()(0).triples))
        after.append([table.read(torch.arange(table.num_rows)) for table in (entity, relation)])
    for one, two in zip(*after, strict=True):
        assert torch.equal(one, two) == (dtype == "null")


def test_the_estimate_counts_dropout(parts):
    for scoring, entities in (("onevsall", 2 * N + N), ("onevssample", 2 * N + 2 * 7), ("negatives", 2 * N + 2 * 9)):
        few = {"onevssample": ["scoring.samples=7"], "negatives": ["scoring.negatives=3", "scoring.chunk_size=10"]}
        base = [f"scoring={scoring}", *few.get(scoring, [])]
        plain = parts(*base).estimate(MemoryStorage()).parts["a step"]
        for dropout, rows in (("model.entity_dropout", entities), ("model.relation_dropout", 2 * N)):
            more = parts(*base, f"{dropout}=0.1").estimate(MemoryStorage()).parts["a step"] - plain
            assert more >= rows * 8 * 4 * 3  # factors, what they make of the rows, and its gradient
