"""What partitions cannot do is refused in a sentence that says what to do."""

import pytest
from trained import cut

from kgexp.errors import ConfigError

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
]
FINE = [
    ("scoring=kvsall", *cut(4, 4)),
    ("scoring=kvsall", *cut(1, 1)),
    ("scoring=negatives", "averaging.start=0.5", "averaging.every_steps=1", *cut(2, 3)),
    ("scoring=negatives", *cut(1, 1, workers=3)),
    cut(4, 2, mix=False, spread=False),
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
