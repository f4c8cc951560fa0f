import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.data.splitting import Shares, assign
from kgexp.errors import ConfigError


def draw(seed, count, n, m):
    """Triples with copies, skewed, and without gaps in the numbers."""
    generator = np.random.default_rng(seed)
    columns = [(generator.random(count) ** 2 * high).astype(int) for high in (n, m, n)]
    triples = np.stack(columns, axis=1)
    triples[:, 0::2] = np.unique(triples[:, 0::2], return_inverse=True)[1].reshape(-1, 2)
    triples[:, 1] = np.unique(triples[:, 1], return_inverse=True)[1].ravel()
    return triples.astype(np.int32)


def names(triples):
    return set(triples[:, 0::2].ravel().tolist()), set(triples[:, 1].tolist())


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 60),
    st.integers(1, 9),
    st.floats(0, 0.5),
    st.floats(0, 0.49),
)
def test_every_name_and_every_copy_is_respected(seed, count, n, m, valid, test):
    triples = draw(seed, count, n, m)
    split, notes = assign(triples, Shares(valid, test, seed % 7))
    assert split.shape == (count,) and set(split.tolist()) <= {0, 1, 2}
    assert names(triples[split == 0]) == names(triples)
    parts = [set(map(tuple, triples[split == i].tolist())) for i in range(3)]
    assert sum(map(len, parts)) == len(set(map(tuple, triples.tolist())))
    total = len(set(map(tuple, triples.tolist())))
    for part, share, name in zip(parts[1:], (valid, test), ("valid", "test"), strict=True):
        told = any(note.startswith(f"{name} got {len(part)} of") for note in notes)
        wanted = int(np.floor(total * share + 0.5))
        assert len(part) == wanted or (told and len(part) < wanted)


def test_each_relation_gives_its_share():
    triples = draw(1, 30_011, 201, 5)
    split, notes = assign(triples, Shares(0.1, 0.2, 0))
    assert notes == []
    distinct, first = np.unique(triples, axis=0, return_index=True)
    for relation in range(5):
        of_relation = split[first][distinct[:, 1] == relation]
        counts = np.bincount(of_relation, minlength=3)
        np.testing.assert_allclose(counts[1:], np.array([0.1, 0.2]) * len(of_relation), atol=1)


def test_a_share_that_cannot_be_met_is_told():
    path = np.array([[0, 0, 1], [1, 0, 2]], np.int32)  # each holds the only mention of an end
    split, notes = assign(path, Shares(0.5, 0.0, 0))
    assert split.tolist() == [0, 0]
    assert len(notes) == 1 and notes[0].startswith("valid got 0 of the 1 distinct triples")


def test_the_cover_is_small():
    ring = [[i, 0, (i + 1) % 31] for i in range(31)]
    leaves = [[i, 0, 31 + i] for i in range(31)]  # to be kept in any case, and they hold all of the ring
    split, notes = assign(np.array(ring + leaves, np.int32), Shares(0.5, 0.0, 0))
    assert notes == [] and (split[:31] > 0).all() and not split[31:].any()


def test_the_seed_draws():
    triples = draw(2, 5_003, 51, 3)
    one, again, other = (assign(triples, Shares(0.1, 0.1, seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert 0.1 < (one != other).mean() < 0.5


def test_no_shares_leave_all_in_train():
    split, notes = assign(draw(3, 301, 31, 3), Shares(0.0, 0.0, 0))
    assert not split.any() and notes == []


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0.1), (0.5, 0.5), (0.1, float("nan")), (1.0, 0.0)])
def test_shares_that_leave_no_train(valid, test):
    with pytest.raises(ConfigError, match=r"dataset\.valid"):
        Shares(valid, test, 0)
