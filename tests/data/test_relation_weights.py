"""Weights of relations: read beside the cache, part of the fingerprint, every bad line named."""

import gzip

import numpy as np
import pytest
import torch

from kgexp.data.sides import Side
from kgexp.errors import DataError
from kgexp.train.batches import Batches
from kgexp.train.queries import QueryBatches

TRAIN = "a\tr\tb\nb\ts\tc\nc\tq\ta\na\ts\tc\n"
CPU = torch.device("cpu")


@pytest.fixture
def weighted(tmp_path, loaded):
    """The graph of `TRAIN` (or another one) with a file of weights."""

    def make(text, train=TRAIN, **changes):
        path = tmp_path / "weights.tsv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return loaded(train, relation_weights=str(path), **changes)

    return make


def weights_of(graph):
    batch = Batches(graph.train, 100, 0, torch.float64, graph.relation_weights)(0)
    return sorted(batch.weights.tolist())


def test_what_the_file_lacks_weighs_one(weighted):
    graph = weighted("s\t0.25\r\nq\t3\r\n")
    assert graph.relation_weights.tolist() == [1.0, 0.25, 3.0]
    assert weights_of(graph) == [0.25, 0.25, 1.0, 3.0]


def test_they_multiply_the_weights_of_triples(weighted):
    train = "a\tr\tb\t2\nb\ts\tc\t3\nc\ts\ta\t0\n"
    graph = weighted("s\t0.5\n", train, columns=["head", "relation", "tail", "weight"])
    assert weights_of(graph) == [0.0, 1.5, 2.0]


def test_a_query_weighs_as_its_relation(weighted):
    batch = QueryBatches(weighted("s\t0.25\n"), list(Side), 100, 0, torch.float64)(0)
    assert batch.weights.tolist() == [0.25 if r == 1 else 1.0 for r in batch.triples[:, 1].tolist()]
    assert batch.weights.eq(0.25).sum() == 3  # (a, s, ?), (b, s, ?) and (?, s, c)


def test_the_cache_stays_while_they_change(weighted, loaded, tmp_path):
    prints = [weighted(text).fingerprint for text in ("s\t2\n", "s\t3\n", "q\t1\ns\t2\n")]
    plain = loaded(TRAIN)
    assert prints[0] == prints[2] and len({*prints, plain.fingerprint}) == 3
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [plain.fingerprint]
    assert plain.relation_weights is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("r\t1\ns\tmany\n", "line 2: the weight 'many' is no finite number of at least 0"),
        ("r\t-1\n", "line 1: the weight '-1'"),
        ("r\tnan\n", "line 1: the weight 'nan'"),
        ("r\tinf\n", "line 1: the weight 'inf'"),
        ("r\t1\nx\t1\n", "line 2: There is no relation 'x' among the 3"),
        ("r\t1\ns\t1\nr\t1\n", "line 3: the relation 'r' has a weight already, in line 1"),
        ("r\t1\t2\n", "line 1: expected a relation and its weight, separated by a tab, found 3 columns"),
        ("r 1\n", "line 1: expected a relation and its weight, separated by a tab, found 1 columns"),
        ("r\t1\n\ns\t1\n", "line 2: the line is blank"),
        (b"\xff\t1\n", "line 1: byte 1 (0xff) is not UTF-8"),
        ("", "line 1: expected a relation and its weight, but the file is empty"),
        ("r\t0\ns\t0\nq\t0\n", "every triple of train gets the weight 0"),
    ],
)
def test_a_bad_file_is_named(weighted, text, words):
    with pytest.raises(DataError) as caught:
        weighted(text)
    assert f"weights.tsv{', ' if words.startswith('line') else ': '}{words}" in str(caught.value)
    assert str(caught.value).endswith(".") and ".." not in str(caught.value)


def test_zero_is_refused_only_where_nothing_is_left(weighted):
    train = "a\tr\tb\t0\nb\ts\tc\t1\n"
    columns = {"columns": ["head", "relation", "tail", "weight"]}
    assert weighted("r\t0\n", train, **columns).relation_weights.tolist() == [0.0, 1.0]
    with pytest.raises(DataError, match="every triple of train gets the weight 0"):
        weighted("s\t0\n", train, **columns)


def test_a_missing_or_packed_file(weighted, loaded, tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.tsv cannot be opened"):
        loaded(TRAIN, relation_weights=str(tmp_path / "nowhere.tsv"))
    packed = tmp_path / "weights.tsv.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfr\t2\n"))
    np.testing.assert_array_equal(loaded(TRAIN, relation_weights=str(packed)).relation_weights, [2.0, 1.0, 1.0])
