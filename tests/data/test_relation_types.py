"""Types of entities: ids type by type, part of the fingerprint, every bad line and every clash named."""

import numpy as np
import pytest

from kgexp.data.load import load
from kgexp.data.sides import Side
from kgexp.errors import DataError

TRAIN = "ann\tlikes\tdune\nbob\tlikes\tsolaris\nann\tknows\tbob\ncid\tknows\tann\n"
TEST = "dune\tabout\tsand\n"
TYPES = "likes\tuser\tfilm\nknows\tuser\tuser\nabout\tfilm\ttopic\n"


@pytest.fixture
def typed(tmp_path, loaded):
    """The graph of some triples, `TRAIN` by default, with a file of types."""

    def make(types=TYPES, train=TRAIN, test=TEST, **changes):
        path = tmp_path / "types.tsv"
        path.write_bytes(types.encode())
        return loaded(train, test=test, relation_types=str(path), **changes)

    return make


def test_ids_go_type_by_type_in_the_order_of_the_file(typed):
    graph = typed()
    assert [tuple(kind) for kind in graph.entities.types] == [("user", 0, 3), ("film", 3, 5), ("topic", 5, 6)]
    names = graph.entities.names(np.arange(6))
    assert [set(names[a:b]) for _, a, b in graph.entities.types] == [
        {"ann", "bob", "cid"},
        {"dune", "solaris"},
        {"sand"},
    ]
    assert graph.relation_types.tolist() == [[0, 1], [0, 0], [1, 2]]
    assert "types of entities: 3 user, 2 film, 1 topic" in graph.report.lines()
    kinds = graph.kinds
    assert kinds.pairs.tolist() == [[0, 0], [0, 1], [1, 2]] and kinds.of_relations.tolist() == [1, 0, 2]
    assert kinds.ids(1, Side.HEAD) == range(3) and kinds.ids(1, Side.TAIL) == range(3, 5)


def test_within_a_type_the_order_is_that_of_a_graph_without_types(typed, loaded):
    lines = "".join(f"u{i}\tlikes\ti{i * 7 % 40}\n" for i in range(61))
    graph, plain = typed("likes\tuser\titem\n", lines, None), loaded(lines)
    order = plain.entities.names(np.arange(101))
    expected = [name for name in order if name[0] == "u"] + [name for name in order if name[0] == "i"]
    assert graph.entities.names(np.arange(101)) == expected
    assert len(plain.kinds) == 1 and plain.kinds.ids(0, Side.HEAD) == range(101)


def test_one_type_changes_no_id(typed, loaded):
    one = "likes\tx\tx\nknows\tx\tx\nabout\tx\tx\n"
    graph, plain = typed(one), loaded(TRAIN, test=TEST)
    np.testing.assert_array_equal(graph.train.triples, plain.train.triples)
    assert plain.relation_types is None and len(plain.entities.types) == 1


def test_the_content_of_the_file_is_part_of_the_fingerprint(typed, loaded, tmp_path):
    prints = [typed(text).fingerprint for text in (TYPES, TYPES.replace("topic", "tag"), TYPES)]
    assert prints[0] == prints[2] and len({*prints, loaded(TRAIN, test=TEST).fingerprint}) == 3
    moved = tmp_path / "elsewhere.tsv"
    moved.write_text(TYPES)
    assert loaded(TRAIN, test=TEST, relation_types=str(moved)).fingerprint == prints[0]


def test_a_file_that_is_split_has_types_too(tmp_path, dataset):
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"u{i % 20}\tlikes\ti{i * i % 41}\n" for i in range(300)))
    types = tmp_path / "two.tsv"
    types.write_text("likes\tuser\titem\n")
    graph = load(dataset(path, valid=0.2, relation_types=str(types)))
    for split in (graph.train, graph.valid):
        assert len(split) and (split.triples[:, 0] < 20).all() and (split.triples[:, 2] >= 20).all()


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ("likes\tuser\n", "line 1: expected a relation and its head type and tail type, separated by tabs, found 2"),
        ("likes\tuser\t\n", "line 1: a type is empty"),
        (f"{TYPES}likes\tuser\tfilm\n", "line 4: the relation 'likes' has types already, in line 1"),
        (f"{TYPES}hates\tuser\tfilm\n", "line 4: There is no relation 'hates' among the 3"),
        ("likes\tuser\tfilm\n\n", "line 2"),
        ("likes\tuser\tfilm\nknows\tuser\tuser\n", "says nothing of 1 relations of the graph, such as 'about'"),
        ("", "line 1: expected a relation and its head type and tail type, but the file is empty"),
    ],
)
def test_a_bad_file_is_named(typed, types, words):
    if types.endswith("\n\n"):
        types = "likes\tuser\tfilm\n\nknows\tuser\tuser\n"
    with pytest.raises(DataError) as caught:
        typed(types)
    assert "types.tsv" in str(caught.value) and words in str(caught.value)
    assert str(caught.value).endswith(".") and ".." not in str(caught.value)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("dune\tlikes\tsand\n", ("'dune'", "'film' as a tail of 'likes'", "'user' as a head of 'likes'")),
        ("sand\tabout\tsand\n", ("'sand'", "'film' as a head of 'about'", "'topic' as a tail of 'about'")),
    ],
)
def test_an_entity_of_two_types_is_named_with_both_reasons(typed, test, words):
    types = TYPES if "about" in test else "likes\tuser\tfilm\nknows\tuser\tuser\n"
    with pytest.raises(DataError) as caught:
        typed(types, test=test)
    for word in (*words, "give names a prefix for each type", "give both relations the same type"):
        assert word in str(caught.value)


def test_a_missing_file(loaded, tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.tsv cannot be read"):
        loaded(TRAIN, relation_types=str(tmp_path / "nowhere.tsv"))
