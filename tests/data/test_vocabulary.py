import numpy as np
import pyarrow as pa
import pytest

from kgexp.data.vocabulary import EntityType, Vocabulary, shuffled
from kgexp.errors import DataError

NAMES = ["Berlin", "Paris", "NA", "東京", "a\u2028b", "007"]


@pytest.fixture
def vocabulary():
    return Vocabulary(pa.array(NAMES, pa.large_string()))


def test_names_and_ids_are_inverse(vocabulary):
    assert len(vocabulary) == 6
    assert [vocabulary.name(i) for i in range(6)] == NAMES
    assert [vocabulary.id(name) for name in NAMES] == list(range(6))
    assert vocabulary.names(np.array([5, 0, 5], np.int32)) == ["007", "Berlin", "007"]
    assert vocabulary.names([]) == []


@pytest.mark.parametrize("id", [6, -1])
def test_ids_outside(vocabulary, id):
    with pytest.raises(IndexError):
        vocabulary.name(id)


def test_saved_and_mapped(vocabulary, tmp_path):
    path = tmp_path / "names.arrow"
    types = [EntityType("city", 0, 4), EntityType("other", 4, 6)]
    typed = Vocabulary(pa.array(NAMES, pa.large_string()), "entity", types)
    before = pa.total_allocated_bytes()
    typed.save(path)
    loaded = Vocabulary.load(path)
    assert pa.total_allocated_bytes() == before  # mapped, not read
    assert loaded.names(range(6)) == NAMES
    assert loaded.types == typed.types and loaded.kind == "entity" and loaded.path == path
    assert vocabulary.types == (EntityType("entity", 0, 6),)


def test_unknown_name_offers_similar_ones(vocabulary):
    with pytest.raises(DataError, match=r"no entity 'Berlim' among the 6 .*'Berlin'"):
        vocabulary.id("Berlim")
    with pytest.raises(DataError, match="no relation 'x'"):
        Vocabulary(pa.array(NAMES, pa.large_string()), "relation").id("x")


def test_similar_names_of_a_large_vocabulary():
    vocabulary = Vocabulary(pa.array([f"Q{i}" for i in range(100_003)], pa.large_string()))
    with pytest.raises(DataError, match="'Q99999'"):
        vocabulary.id("q99999x")


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "x.arrow").write_bytes(b"something else")
    for name in ("x.arrow", "missing.arrow"):
        with pytest.raises(DataError, match="no vocabulary"):
            Vocabulary.load(tmp_path / name)


def test_ids_are_a_fixed_shuffle():
    order, ids = shuffled(501)
    assert order.dtype == np.int64 and ids.dtype == np.int32
    np.testing.assert_array_equal(order[ids], np.arange(501))
    # Part of every cache and checkpoint: these numbers must never change.
    assert order[:5].tolist() == [12, 200, 63, 308, 372]
    for part in np.array_split(order, 4):  # a range of ids is a fair sample of the file
        assert abs(part.mean() - 250) < 45
