"""What partitions cannot do is refused in a sentence that says what to do."""

import pytest
from rank_threads import as_ranks
from trained import cut

from kgexp.errors import ConfigError
from kgexp.run import run

REFUSED = [
    (("scoring=kvsall", *cut(4, 2)), r"scoring=kvsall needs all answers .* choose scoring=onevsall or negatives, or"),
    (
        ("averaging.start=0.5", "averaging.every_steps=1", *cut(4, 2)),
        r"averaging\.start averages .* set it to null, or",
    ),
    (cut(4, 1), r"sharding\.buffer is 1, .* set it to 2 or more"),
    (cut(4, 2, mix=False), r"sharding\.spread=true .* set spread to false, or mix to true"),
    (("scoring=onevsall", *cut(4, 2, workers=2)), r"sharding\.workers is 2, .* choose scoring=negatives"),
    (("scoring=kvsall", *cut(4, 4, workers=2)), r"sharding\.workers is 2, .* choose scoring=negatives"),
    (("scoring=kvsall", *cut(4, 4, holdout=0.1)), r"sharding\.holdout is 0\.1, .* set it to 0, or choose another"),
    (("scoring=kvsall", *cut(4, 4, chunks=2)), r"sharding\.chunks is 2, .* set it to 1, or choose another"),
    (("scoring=kvsall", *cut(4, 4, mix=False, spread=False)), r"sharding\.mix is False, .* set it to true, or choose"),
    (
        ("scoring=kvsall", *cut(4, 4, ranks=2)),
        r"scoring=kvsall trains queries, .* sharding=rowwise, or set sharding\.ranks",
    ),
    (
        ("averaging.start=0.5", "averaging.every_steps=1", *cut(2, 2, ranks=2)),
        r"averaging\.start averages .* no trainer of several has all: set it to null, or sharding\.ranks to 1",
    ),
    (
        ("train.steps=9", *cut(4, 2, ranks=3)),
        r"train\.steps is set, but several trainers .* count in epochs, .*ranks to 1",
    ),
    (("evaluation.every_steps=9", *cut(4, 2, ranks=2)), r"evaluation\.every_steps is set, but several trainers"),
    (("checkpoint.every_steps=9", *cut(4, 2, ranks=2)), r"checkpoint\.every_steps is set, but several trainers"),
]
FINE = [
    ("scoring=kvsall", *cut(4, 4)),
    ("scoring=kvsall", *cut(1, 1)),
    ("scoring=negatives", "averaging.start=0.5", "averaging.every_steps=1", *cut(2, 3)),
    ("scoring=negatives", *cut(1, 1, workers=3)),
    cut(4, 2, mix=False, spread=False),
    ("scoring=onevsall", *cut(4, 2, ranks=3)),
    ("train.steps=9", *cut(4, 2, ranks="auto")),  # how many these are is seen when the run starts
]


@pytest.mark.parametrize(
    ("overrides", "words"), REFUSED, ids=lambda case: " ".join(case) if isinstance(case, tuple) else ""
)
def test_the_remedy_is_named(configured, overrides, words):
    with pytest.raises(ConfigError, match=words):
        configured(*overrides)


@pytest.mark.parametrize("overrides", FINE, ids=" ".join)
def test_what_can_be_done_is_not_refused(configured, overrides):
    configured(*overrides)


def test_trainers_that_a_launcher_started_are_refused_what_they_cannot_do(configured, tmp_path):
    config = configured("train.steps=9", "tracking=none", *cut(4, 2, ranks="auto"))
    with pytest.raises(ConfigError, match=r"train\.steps is set, but several trainers"):
        as_ranks(2, lambda world: run(config, str(tmp_path), world))
