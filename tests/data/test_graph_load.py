import json

import numpy as np
import pytest

from kgexp.data.load import load
from kgexp.data.report import DataReport
from kgexp.data.sides import Side
from kgexp.errors import DataError

SMALL = ["FB15k-237", "WN18RR", "UMLS", "Kinship", "Nations", "CoDEx-S", "CoDEx-M", "NL27k"]


def named(graph, split):
    """The triples of a split as names."""
    columns = split.triples.T
    kinds = (graph.entities, graph.relations, graph.entities)
    return list(zip(*(kind.names(column) for kind, column in zip(kinds, columns, strict=True)), strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_published_counts(shared, dataset, name):
    manifest = json.loads((shared / "manifest.json").read_text())[name]
    columns = ["head", "relation", "tail", "weight"][: manifest["columns"]]
    graph = load(dataset(shared / name, columns=columns))
    report = graph.report
    assert (graph.num_entities, graph.num_relations) == (manifest["entities"], manifest["relations"])
    for split in (graph.train, graph.valid, graph.test):
        counts = report.splits[split.name]
        assert len(split.triples) == counts.triples == manifest["splits"][split.name]["lines"]
        assert counts.duplicates == manifest["duplicate_lines"][split.name]
    assert dict(report.shared) == manifest["shared_triples"]
    for split in ("valid", "test"):
        counts = report.splits[split]
        assert counts.unseen_entities.names == manifest["entities_not_in_train"][split]
        assert counts.unseen_relations.names == manifest["relations_not_in_train"][split]
    if name in ("FB15k-237", "WN18RR"):
        triples = [report.splits[split].unseen_entities.triples for split in ("valid", "test")]
        assert triples == ([9, 28] if name == "FB15k-237" else [210, 210])
    if name == "NL27k":
        assert [report.splits[split].unseen_relations.triples for split in ("valid", "test")] == [4, 8]


def test_the_packaged_graph(dataset):
    graph = load(dataset("package:codex_s"))
    assert (graph.num_entities, graph.num_relations) == (2034, 42)
    assert [len(split) for split in (graph.train, graph.valid, graph.test)] == [32888, 1827, 1828]
    assert graph.report.warnings() == []
    assert ("Q7604", "P1412", "Q188") in named(graph, graph.train)


def test_triples_keep_their_order_and_names(loaded):
    graph = loaded("b\tr\tc\na\ts\tb\nb\tr\tc\n", "a\tr\tnew\n", "x\tq\ta\n")
    assert named(graph, graph.train) == [("b", "r", "c"), ("a", "s", "b"), ("b", "r", "c")]
    assert named(graph, graph.split("valid")) == [("a", "r", "new")]
    assert named(graph, graph.split("test")) == [("x", "q", "a")]
    assert graph.train.triples.dtype == np.int32 and graph.train.triples.flags.c_contiguous
    assert graph.train.weights is None
    assert sorted(graph.entities.names(range(5))) == ["a", "b", "c", "new", "x"]
    assert graph.relations.names(range(3)) == ["r", "s", "q"]
    assert graph.name == "toy"
    with pytest.raises(KeyError):
        graph.split("dev")


def test_oddities_are_counted_and_kept(loaded):
    graph = loaded(
        "a\tr\tb\na\tr\tb\na\tr\tb\nb\tr\tc\n",
        "a\tr\tb\na\tr\tu\nu\tr\tv\n",
        "a\tr\tu\na\tr\tu\nb\tr\tc\na\tq\tb\n",
    )
    report = graph.report
    assert {name: (split.triples, split.duplicates) for name, split in report.splits.items()} == {
        "train": (4, 2),
        "valid": (3, 0),
        "test": (4, 1),
    }
    assert report.shared == {"train_valid": 1, "train_test": 1, "valid_test": 1}
    valid, test = report.splits["valid"], report.splits["test"]
    assert (valid.unseen_entities.names, valid.unseen_entities.triples) == (2, 2)
    assert sorted(valid.unseen_entities.examples) == ["u", "v"]
    assert (test.unseen_entities.names, test.unseen_entities.triples) == (1, 2)
    assert (test.unseen_relations.names, test.unseen_relations.triples) == (1, 1)
    assert test.unseen_relations.examples == ("q",)
    text = "\n".join(report.lines())
    for part in ("4 train, 3 valid, 4 test", "2 triples repeat", "'u'", "'q'", "train and valid share 1"):
        assert part in text
    assert DataReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report


def test_missing_splits_are_empty_and_reported(loaded):
    graph = loaded("a\tr\tb\n", columns=["head", "relation", "tail"])
    assert graph.valid.triples.shape == graph.test.triples.shape == (0, 3)
    assert graph.report.warnings() == ["the valid split is empty", "the test split is empty"]
    query, entity, splits = graph.known.lookup(Side.TAIL, graph.train.triples)
    assert (query.tolist(), graph.entities.names(entity), splits.tolist()) == ([0], ["b"], [1])


def test_weights_follow_their_triples(loaded, dataset, tmp_path):
    columns = ["weight", "head", "relation", "tail"]
    graph = loaded("0.1\ta\tr\tb\n2.5\tb\tr\ta\n", "0.7\ta\tr\ta\n", columns=columns)
    assert graph.train.weights.tolist() == [0.1, 2.5]
    assert graph.valid.weights.tolist() == [0.7]
    assert graph.test.weights.tolist() == []

    rows = [(f"e{i % 13}", f"r{i % 3}", f"e{i * i % 11}", i / 7) for i in range(501)]
    path = tmp_path / "one.tsv"
    path.write_text("".join(f"{w!r}\t{h}\t{r}\t{t}\n" for h, r, t, w in rows))
    graph = load(dataset(path, columns=columns, valid=0.2, test=0.2))
    parts = [graph.train, graph.valid, graph.test]
    found = [
        (*triple, weight) for part in parts for triple, weight in zip(named(graph, part), part.weights, strict=True)
    ]
    assert sorted(found) == sorted(rows)


def test_weights_of_zero_teach_nothing(loaded):
    with pytest.raises(DataError, match="every weight of train is 0"):
        loaded("a\tr\tb\t0\n", columns=["head", "relation", "tail", "weight"])


def test_one_file_is_split(shared, dataset):
    path = shared / "UMLS" / "train.txt"
    graph = load(dataset(path, valid=0.1, test=0.2))
    sizes = [len(split) for split in (graph.train, graph.valid, graph.test)]
    assert sizes == [5216 - 522 - 1043, 522, 1043]
    assert not any(graph.report.splits[name].unseen_entities.names for name in ("valid", "test"))
    assert not any(graph.report.shared.values())
    lines = [tuple(line.split("\t")) for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(
        row for split in (graph.train, graph.valid, graph.test) for row in named(graph, split)
    )
    chosen = set(named(graph, graph.train))
    assert named(graph, graph.train) == [line for line in lines if line in chosen]


def test_ids_do_not_depend_on_the_split(shared, dataset):
    path = shared / "UMLS" / "train.txt"
    one, other = (load(dataset(path, split_seed=seed)) for seed in (0, 1))
    assert one.entities.names(range(135)) == other.entities.names(range(135))
    assert one.valid.triples.tolist() != other.valid.triples.tolist()


def test_short_split_is_reported(dataset, tmp_path):
    path = tmp_path / "star.tsv"
    path.write_text("".join(f"hub\tr\tleaf{i}\n" for i in range(100)))
    graph = load(dataset(path))
    assert len(graph.train) == 100
    assert any(line.startswith("valid got 0 of the 5") for line in graph.report.lines())
    assert "the valid split is empty" in graph.report.lines()


def test_paths_that_hold_no_data_set(dataset, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load(dataset(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="can name codex_s"):
        load(dataset("package:fb15k"))
    (tmp_path / "test.txt").write_text("a\tb\tc\n")
    (tmp_path / "train.csv").write_text("a\tb\tc\n")
    with pytest.raises(DataError, match=r"no train file \(it holds .*train\.csv"):
        load(dataset(tmp_path))
    (tmp_path / "train.txt").write_text("a\tb\tc\n")
    (tmp_path / "train.tsv.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.txt and train\.tsv\.gz"):
        load(dataset(tmp_path))


def test_steps_are_told(dataset, tmp_path):
    (tmp_path / "train.txt").write_text("a\tb\tc\n")
    told: list[str] = []
    load(dataset(tmp_path), told.append)
    assert told == [
        f"Reading {tmp_path / 'train.txt'}",
        "Giving 2 entities their ids",
        "Indexing 1 triples of 2 entities",
    ]
    load(dataset(tmp_path), told.append)
    assert len(told) == 3


def test_long_work_says_how_far_it_is(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("kgexp.data.pace._SECONDS", 0)
    (tmp_path / "train.txt").write_text("a\tb\tc\n" * 1234)
    told: list[str] = []
    load(dataset(tmp_path), told.append)
    paces = [line for line in told if line.endswith(" a second")]
    assert paces[0].startswith("Read 1,234 triples, ") and paces[-1].startswith("Indexed 1,234 of 1,234 triples, ")
