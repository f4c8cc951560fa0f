import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.data.grouping import grouped
from kgexp.data.indexing import write_known
from kgexp.data.known import TEST, TRAIN, VALID, KnownTriples
from kgexp.data.sides import Side


def reference(splits, side, triples):
    """The same pairs by a dict of dicts."""
    known: dict[tuple[int, int], dict[int, int]] = {}
    for bit, split in zip((TRAIN, VALID, TEST), splits, strict=True):
        for triple in split.tolist():
            answers = known.setdefault((triple[side.given], triple[1]), {})
            answers[triple[side.column]] = answers.get(triple[side.column], 0) | bit
    return [
        (i, entity, mask)
        for i, triple in enumerate(triples.tolist())
        for entity, mask in sorted(known.get((triple[side.given], triple[1]), {}).items())
    ]


def draw(generator, count, n, m):
    columns = [generator.integers(high, size=count) for high in (n, m, n)]
    return np.stack(columns, axis=1).astype(np.int32)


def assert_equal_to_reference(known, splits, side, triples):
    query, entity, mask = known.lookup(side, triples)
    assert (query.dtype, entity.dtype, mask.dtype) == (np.int64, np.int64, np.uint8)
    assert list(zip(query.tolist(), entity.tolist(), mask.tolist(), strict=True)) == reference(splits, side, triples)


@pytest.mark.parametrize("side", Side)
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4), st.tuples(*[st.integers(0, 60)] * 2))
def test_lookup_equals_a_dict_of_sets(side, seed, n, m, sizes):
    generator = np.random.default_rng(seed)
    splits = [draw(generator, size, n, m) for size in (61, *sizes)]
    known = KnownTriples.build(splits, m)
    triples = draw(generator, 23, n, m)
    assert_equal_to_reference(known, splits, side, triples)
    again = KnownTriples.from_arrays(m, known.arrays())
    for one, other in zip(known.lookup(side, triples), again.lookup(side, triples), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("side", Side)
def test_lookup_of_nothing(side):
    known = KnownTriples.build([np.array([[0, 0, 1]], np.int32)] * 3, 1)
    assert [len(part) for part in known.lookup(side, np.empty((0, 3), np.int32))] == [0, 0, 0]
    assert [len(part) for part in known.lookup(side, np.array([[7, 0, 7]]))] == [0, 0, 0]


@pytest.mark.parametrize("side", Side)
def test_ids_near_the_limit(side):
    top = 2**31 - 1
    splits = [np.array([[top, top, top], [top, top, 0], [0, top, top], [top, 0, 5]], np.int32)] * 2
    splits.append(np.array([[top, top, top - 1]], np.int32))
    known = KnownTriples.build(splits, top + 1)
    assert_equal_to_reference(known, splits, side, np.concatenate(splits))


def test_a_triple_costs_few_bytes():
    splits = [draw(np.random.default_rng(i), 20_011, 501, 7) for i in range(3)]
    arrays = KnownTriples.build(splits, 7).arrays()
    distinct = len(np.unique(np.concatenate(splits), axis=0))
    queries = len(arrays["known_head_keys"]) + len(arrays["known_tail_keys"])
    assert sum(array.nbytes for array in arrays.values()) <= 10 * distinct + 12 * queries + 8


@pytest.mark.parametrize("rows", [1, 50, 1000, 1 << 20])
@pytest.mark.parametrize("n", [2, 300, 70_001])  # the last has more entities than there are groups
def test_the_index_in_files_is_the_one_in_memory(tmp_path, n, rows):
    splits = [draw(np.random.default_rng(i), size, n, 7) for i, size in enumerate((1501, 0, 203))]
    splits[2][:60] = splits[0][:60]
    done = []
    write_known(tmp_path, splits, n, 7, done.append, rows)
    files = {path.stem: path for path in tmp_path.iterdir()}
    arrays = KnownTriples.build(splits, 7).arrays()
    assert files.keys() == arrays.keys()
    for name, array in arrays.items():
        np.save(tmp_path / "expected.npy", array)
        assert files[name].read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert sum(done) == 4 * 1704


@pytest.mark.parametrize("scale", [1, 2**20, 2**30])
def test_grouped_rows(scale):
    rows = draw(np.random.default_rng(3), 501, 5, 3) * scale % (2**31 - 1)
    order, begins = grouped(*rows.T)
    expected = sorted(range(501), key=lambda i: (*rows[i].tolist(), i))
    assert order.tolist() == expected
    np.testing.assert_array_equal(rows[order[begins]], np.unique(rows, axis=0))


def test_relations_are_counted_in_the_splits_of_a_mask(monkeypatch):
    monkeypatch.setattr("kgexp.data.known._QUERIES", 7)  # queries at a time
    generator = np.random.default_rng(5)
    splits = [generator.integers(0, (23, 5, 23), (size, 3)).astype(np.int32) for size in (150, 40, 40)]
    splits[0][:, 1] %= 4  # train lacks relation 4
    found = KnownTriples.build(splits, 5).relation_counts(TRAIN)
    train = set(map(tuple, splits[0].tolist()))
    for relation in range(5):
        own = [triple for triple in train if triple[1] == relation]
        assert found.facts[relation] == len(own)
        assert found.heads[relation] == len({h for h, _, _ in own})
        assert found.tails[relation] == len({t for _, _, t in own})
