"""Rows that come and go are those of a table that is whole in memory, trained with the same batches and candidates."""

import pytest
from trained import Trained, assert_equal, cut

from kgexp.sharding.local import LocalTable
from kgexp.sharding.rows import new_rows
from kgexp.storage.memory import MemoryStorage

STEPS = 75  # more than two passes
ALL = ("scoring=onevsall", "loss=softmax")
CASES = [
    (("scoring=negatives", "optimizer=adam"), cut(3, 2, slices=2), None),
    (("scoring=negatives", "scoring.degree_exponent=0.7"), cut(3, 2, prefetch=False, slices=3), "local"),
    (("scoring=negatives", "scoring.mask=known"), cut(5, 2, order="random", mix=False, spread=False), "local"),
    (("scoring=onevssample", "scoring.samples=200", "model.entity_dropout=0.3"), cut(7, 3, slices=3), "local"),
    (("scoring=negatives", "optimizer=rowwise_adagrad"), cut(4, 3, order="chained", spread=False, chunks=3), None),
    ((*ALL, "optimizer=adam"), cut(3, 2, slices=2), "local"),
    ((*ALL, "scoring.block=50"), cut(4, 2, order="affinity", mix=False, spread=False, slices=2), None),
    ((*ALL, "regularizer=lp", "regularizer.weighted=false", "loss.label_smoothing=0.1"), cut(5, 3, holdout=0.2), None),
    (
        ("scoring=negatives", "train.dtype=float32", "train.table_dtype=bfloat16", "train.state_dtype=bfloat16"),
        cut(3, 2, slices=2),
        "local",
    ),
]


class Whole(LocalTable):
    """All rows in memory; the ids in `candidates` are those that are scored against when all are."""

    def candidate_blocks(self, size, *, grad=False):
        return self._rows.blocks(size, grad=grad, ranges=self.candidates)

    @property
    def num_candidates(self):
        return sum(map(len, self.candidates))

    def begin_update(self, route, grad):
        ranges = self.candidates
        return lambda factor, step: self._rows.update(route.ids, grad, factor, step, ranges)


class Plain(Trained):
    """The same batches on tables that are whole."""

    def __init__(self, config, graph):
        super().__init__(config, graph)
        self.parts.sharding.entity_table = whole
        self.entity, self.relation = self.parts.tables(MemoryStorage())

    def arrive(self):
        visit, slices = self.batches.leg(self.step).visit, self.parts.sharding.slices(self.graph.num_entities)
        self.entity.candidates = [slices.ids(k) for k in sorted({*visit.heads, *visit.tails})]


def whole(spec):
    return Whole(spec.name, *new_rows(spec, range(spec.num_rows)), spec.optimizer, spec.placement.dtype, spec.seed)


@pytest.mark.parametrize(
    ("overrides", "sharding", "storage"),
    CASES,
    ids=lambda case: " ".join(case) if isinstance(case, tuple) else str(case),
)
def test_losses_and_rows_have_the_same_bits(configured, graph, overrides, sharding, storage, tmp_path):
    config = configured(*overrides, *sharding)
    trained = Trained(config, graph, tmp_path if storage else None).train(STEPS)
    assert trained.batches.leg(STEPS).number >= 2 and trained.entity.buffer.loads > 3
    assert_equal(trained.numbers(), Plain(config, graph).train(STEPS).numbers())
    if storage:
        assert any(tmp_path.glob("checkpoints/rows/*.safetensors"))


def test_storages_and_the_other_thread_change_nothing(configured, graph, tmp_path):
    numbers = []
    for prefetch in (True, False):
        for folder in (None, tmp_path / str(prefetch)):
            config = configured("scoring=negatives", *cut(4, 2, slices=2, prefetch=prefetch))
            numbers.append(Trained(config, graph, folder).train(40).numbers())
    for other in numbers[1:]:
        assert_equal(other, numbers[0])
