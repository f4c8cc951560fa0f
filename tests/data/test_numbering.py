import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.data.numbering import Numbering
from kgexp.data.packing import Names

NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=30)
BATCH = st.tuples(st.integers(0, 3), st.lists(NAMES, max_size=30))


@settings(deadline=None, max_examples=100)
@given(st.lists(BATCH, max_size=8))
def test_numbers_equal_those_of_a_dict(batches):
    numbering, numbers, places = Numbering("names"), {}, {}
    met = dict.fromkeys(range(4), 0)
    for column, names in batches:
        got = numbering.number(packed(names), column)
        assert got.dtype == np.int32
        for name, number in zip(names, got.tolist(), strict=True):
            assert numbers.setdefault(name, number) == number
        for i, name in enumerate(names, met[column]):
            places[name] = min(places.get(name, (column, i)), (column, i))
        met[column] += len(names)
    order, ranks = numbering.by_first_appearance()
    assert len(numbering) == len(numbers)
    assert sorted(numbers.values()) == list(range(len(numbers)))
    assert numbering.names(order).to_pylist() == sorted(numbers, key=places.__getitem__)
    assert ranks[order].tolist() == list(range(len(numbers)))


def test_many_names_of_every_length():
    generator = np.random.default_rng(0)
    # Neighbours differ in one letter of one word, or in their number of words.
    names = [f"{'x' * (i % 23)}{i}{'é' * (i % 3)}" for i in range(30_011)]
    numbering, numbers = Numbering("names"), {}
    for _ in range(6):
        some = [names[i] for i in generator.permutation(len(names))[:10_007]]
        for name, number in zip(some, numbering.number(packed(some), 0).tolist(), strict=True):
            assert numbers.setdefault(name, number) == number
    numbered = numbering.names(np.arange(len(numbering))[::-1])
    numbered.validate(full=True)
    assert numbered.to_pylist() == sorted(numbers, key=numbers.__getitem__)[::-1]


def test_names_that_share_a_slot_or_a_beginning():
    # Of 16 bytes and one more, and copies of new names within one call.
    alike = [letter * size for size in (7, 8, 9, 15, 16, 17, 23, 24, 25, 48, 49) for letter in ("a", "é", "\u00ff")]
    names = [*alike, *(name + "b" for name in alike), *alike[::-1]]
    numbering = Numbering("names")
    numbers = numbering.number(packed(names), 0)
    assert numbering.names(numbers.astype(np.int64)).to_pylist() == names
    assert len(numbering) == len(set(names))


def packed(names: list[str]) -> Names:
    """Names that are a slice of a longer column."""
    return Names.of(pa.array(["in front", *names, "behind"], pa.large_string()).slice(1, len(names)))
