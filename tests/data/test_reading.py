import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.data.encoding import Encoder
from kgexp.data.layout import NAMES, Layout
from kgexp.data.reading import Columns, read
from kgexp.errors import ConfigError, DataError

PLAIN = Layout(("head", "relation", "tail"), header=False)
WEIGHTED = Layout(("head", "relation", "tail", "weight"), header=False)


def rows(path: Path, layout: Layout = PLAIN, **options: Any) -> list[tuple[str, str, str]]:
    """The triples of a file as names."""
    entities, relations, triples = encode(read(path, layout, **options))
    return [(entities[h], relations[r], entities[t]) for h, r, t in triples[0]]


def encode(*files: Iterable[Columns]) -> tuple[list[str], list[str], list[list[list[int]]]]:
    """The entities and relations by first appearance, and the files' triples in these numbers."""
    encoder = Encoder()
    triples = [np.concatenate([block for block, _ in encoder.encode(blocks)]) for blocks in files]
    (entities, places), (relations, kinds) = (
        numbering.by_first_appearance() for numbering in (encoder.entities, encoder.relations)
    )
    numbers = [np.stack([places[h], kinds[r], places[t]], axis=1).tolist() for h, r, t in (file.T for file in triples)]
    return encoder.entities.names(entities).to_pylist(), encoder.relations.names(relations).to_pylist(), numbers


def plainly(path: Path) -> list[tuple[str, ...]]:
    """The same, by Python's own means."""
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").removesuffix(b"\n")
    return [tuple(line.decode().split("\t")) for line in data.split(b"\n")]


@pytest.fixture
def write(tmp_path: Path):
    def make(data: bytes, name: str = "train.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return make


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("names_awkward.tsv", 1900),
        ("nations_test_bom_crlf.tsv", 201),
        ("nations_test_no_final_newline.tsv", 201),
    ],
)
def test_awkward_files_are_read_as_they_are(shared: Path, name: str, count: int):
    found = rows(shared / "formats" / name)
    assert len(found) == count
    assert found == plainly(shared / "formats" / name)


def test_bom_and_line_ends_make_no_difference(shared: Path):
    expected = plainly(shared / "Nations" / "test.txt")
    assert rows(shared / "formats" / "nations_test_bom_crlf.tsv") == expected
    assert rows(shared / "formats" / "nations_test_no_final_newline.tsv") == expected


def test_kgtk_columns(shared: Path):
    path = shared / "formats" / "kgtk_wikidata_sample.tsv"
    found = rows(path, Layout(("ignore", "head", "relation", "tail"), header=True))
    assert len(found) == 9993
    assert found == [fields[1:] for fields in plainly(path)[1:]]


def test_names_are_strings_and_stay_as_they_are(write):
    names = ["NA", "null", "NULL", "nan", "1e3", "007", "True", "", ' "quoted', "it's", "a\\tb", "a\\", "-"]
    names = [name or "\ufeff" for name in names] + [
        "\u00a0x\u00a0",
        "a\u2028b",
        "x\x85y",
        " ",
        "  blanks  ",
        "\x0b",
        "\x1e",
    ]
    expected = [(name, f"{name}r", name[::-1]) for name in names]
    path = write("".join("\t".join(row) + "\n" for row in expected).encode())
    assert rows(path) == expected


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1 << 20])
def test_blocks_make_no_difference(write, size: int):
    lines = [f"{'é' * (i % 5)}e{i * 7 % 31}\tr{i % 3}\t\ufeffe{i * 11 % 29}" for i in range(101)]
    lines[50] = "\ufeff" + lines[50]  # a mark inside the file is part of a name
    path = write(("\ufeff" + "\r\n".join(lines) + "\r\n\n\r\n").encode())
    assert rows(path, block_bytes=size) == [tuple(line.split("\t")) for line in lines]
    assert encode(read(path, PLAIN)) == encode(read(path, PLAIN, size))


def test_numbers_follow_first_appearance_heads_before_tails(write):
    first = read(write(b"b\tr\tz\nc\ts\tb\nb\tr\ta\n"), PLAIN)
    second = read(write(b"q\tt\tz\n", "valid.txt"), PLAIN)
    entities, relations, triples = encode(first, second)
    assert entities == ["b", "c", "z", "a", "q"]
    assert relations == ["r", "s", "t"]
    assert triples == [[[0, 0, 2], [1, 1, 0], [0, 0, 3]], [[4, 2, 2]]]


def test_packed_files(write):
    data = b"".join(b"e%d\tr\tf%d\n" % (i, i * 7) for i in range(501))
    expected = rows(write(data))
    assert len(expected) == 501
    assert rows(write(gzip.compress(data), "a.txt.gz")) == expected
    assert rows(write(pa.compress(data, codec="zstd", asbytes=True), "a.tsv.zst")) == expected
    two = gzip.compress(data[:1000]) + gzip.compress(data[1000:])
    assert rows(write(two, "b.txt.gz"), block_bytes=100) == expected


def test_weights_stay_fractional(write):
    texts = ["0.1", "1", "2.5e-3", ".5", "7.", "0", "+3", "0.30000000000000004", "5e-324"]
    path = write("".join(f"a\tr\tb{i}\t{text}\n" for i, text in enumerate(texts)).encode())
    weights = [block.weights for block in read(path, WEIGHTED, block_bytes=20)]
    assert len(weights) > 1 and all(part.dtype == np.float64 for part in weights)
    assert np.concatenate(weights).tolist() == [float(text) for text in texts]
    assert [block.weights for block in read(path, Layout((*NAMES, "ignore"), header=False))] == [None]


GOOD = b"".join(b"h%d\tr\tt%d\n" % (i, i) for i in range(9))
BAD = {
    "short line": (GOOD + b"a\tb\n" + GOOD, 10, "expected 3 columns .* found 2"),
    "one column": (b"a b c\n", 1, "found 1"),
    "too many columns": (GOOD + b"a\tb\tc\td\n", 10, "found 4.*dataset.columns"),
    "white space only": (GOOD + b"  \n", 10, "found 1"),
    "empty head": (b"\tb\tc\n" + GOOD, 1, "head is empty"),
    "empty relation": (GOOD + b"a\t\tc\n" + GOOD, 10, "relation is empty"),
    "empty tail": (GOOD + b"a\tb\t\n", 10, "tail is empty"),
    "empty tail, CRLF": (GOOD + b"a\tb\t\r\n", 10, "tail is empty"),
    "blank line": (GOOD + b"\n" + GOOD, 10, "blank"),
    "blank first line": (b"\n" + GOOD, 1, "blank"),
    "blank CRLF line": (GOOD + b"\r\n\r\n" + GOOD, 10, "blank"),
    "not UTF-8": (GOOD + b"a\tb\tJos\xe9\n" + GOOD, 10, "byte 8 .0xe9. is not UTF-8"),
    "UTF-16": ("a\tb\tc\n".encode("utf-16"), 1, "NUL"),
    "NUL": (GOOD + b"a\tb\tc\0\n", 10, "NUL"),
    "lone CR": (GOOD + b"a\tb\tc\rd\te\tf\n", 10, "carriage return"),
    "lone CR that a blank line makes up for": (GOOD + b"a\tb\tc\rd\te\tf\n\n" + GOOD, 10, "carriage return"),
    "doubled CR": (GOOD + b"a\tb\tc\r\r\n" + GOOD, 10, "carriage return"),
    "old Mac": (GOOD.replace(b"\n", b"\r"), 1, "carriage return"),
    "empty": (b"", 1, "nothing"),
    "blank lines only": (b"\n\r\n\n", 1, "nothing"),
}
BAD_WEIGHTS = ["x", "", "1,5", "nan", "NaN", "inf", "-inf", "-0.1", "1e999", "0x10", "1_0", " 1", "1 "]


def refused(path: Path, line: int, pattern: str, layout: Layout = PLAIN) -> None:
    for size in (1, 64, 1 << 20):
        with pytest.raises(DataError, match=pattern) as caught:
            list(read(path, layout, size))
        message = str(caught.value)
        assert message.startswith(f"{path}, line {line}: ") and message.endswith(".")
        assert "\n" not in message and ". " not in message.removeprefix(str(path))


@pytest.mark.parametrize("case", BAD)
def test_bad_lines_are_named(write, case: str):
    data, line, pattern = BAD[case]
    refused(write(data), line, pattern)


@pytest.mark.parametrize("text", BAD_WEIGHTS)
def test_bad_weights_are_named(write, text: str):
    good = b"".join(b"h%d\tr\tt\t0.5\n" % i for i in range(5))
    refused(write(good + f"a\tb\tc\t{text}\n".encode() + good), 6, "weight '.*' is no finite number", WEIGHTED)


def test_bytes_in_ignored_columns_count_too(write):
    layout = Layout((*NAMES, "ignore"), header=False)
    refused(write(b"a\tb\tc\t\xff\n"), 1, "UTF-8", layout)
    assert rows(write(b"a\tb\tc\t\nd\tb\tc\tx\n"), layout) == [("a", "b", "c"), ("d", "b", "c")]


def test_header_is_checked_and_skipped(write):
    layout = Layout(("head", "relation", "tail", "weight"), header=True)
    for size in (1, 1 << 20):
        assert rows(write(b"h\tr\tt\tw\na\tb\tc\t1\n"), layout, block_bytes=size) == [("a", "b", "c")]
    refused(write(b"h\tr\tt\na\tb\tc\t1\n"), 1, "found 3", layout)
    refused(write(b"h\tr\tt\tw\n"), 1, "nothing but a header", layout)
    refused(write(b"h\tr\tt\tw\na\tb\tc\n"), 2, "found 3", layout)


@pytest.mark.parametrize("damage", ["cut", "flipped", "not packed", "tail"])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_damaged_archives_are_named(write, ending: str, damage: str):
    data = b"".join(b"e%d\tr\tf%d\n" % (i, i * i * 7919 % 10007) for i in range(5000))
    packed = gzip.compress(data) if ending == ".gz" else pa.compress(data, codec="zstd", asbytes=True)
    middle = len(packed) // 2
    damaged = {
        "cut": packed[:middle],
        "flipped": packed[:middle] + bytes(64) + packed[middle + 64 :],
        "not packed": data,
        "tail": packed + b"something else",
    }[damage]
    path = write(damaged, f"train.txt{ending}")
    with pytest.raises(DataError, match=r"train\.txt.*line \d+"):
        list(read(path, PLAIN))


def test_a_line_longer_than_a_block(write):
    name = "x" * 3_000_000
    assert rows(write(f"a\tr\tb\n{name}\tr\tb\n".encode()), block_bytes=1 << 16)[1][0] == name


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_characters="\t\n\r\0", codec="utf-8"), min_size=1)] * 3),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 40),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_names_come_back(tmp_path_factory, triples, size, end):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(("\ufeff" + "".join("\t".join(row) + end for row in triples)).encode())
    assert rows(path, block_bytes=size) == triples


@pytest.mark.parametrize(
    "columns",
    [
        ["head", "tail"],
        ["head", "relation", "tail", "tail"],
        ["head", "relation", "object"],
        ["head", "relation", "tail", "weight", "weight"],
    ],
)
def test_columns_that_make_no_triple(columns: list[str]):
    with pytest.raises(ConfigError, match=r"dataset\.columns"):
        Layout.of(columns, False)
