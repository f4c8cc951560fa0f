import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kgexp.data.numbering import Numbering

NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
BATCH = st.tuples(st.integers(0, 3), st.lists(NAMES, max_size=30, unique=True))


@settings(deadline=None, max_examples=100)
@given(st.lists(BATCH, max_size=8))
def test_numbers_equal_those_of_a_dict(batches):
    numbering, numbers, places = Numbering("names"), {}, {}
    met = dict.fromkeys(range(4), 0)
    for column, names in batches:
        got = numbering.number(pa.array(names, pa.large_string()), column)
        assert got.dtype == np.int32
        assert got.tolist() == [numbers.setdefault(name, len(numbers)) for name in names]
        for i, name in enumerate(names, met[column]):
            places[name] = min(places.get(name, (column, i)), (column, i))
        met[column] += len(names)
    order, ranks = numbering.by_first_appearance()
    assert len(numbering) == len(numbers)
    assert numbering.names(order).to_pylist() == sorted(numbers, key=places.__getitem__)
    assert ranks[order].tolist() == list(range(len(numbers)))


def test_many_names_of_every_length():
    generator = np.random.default_rng(0)
    # Neighbours differ in one letter of one word, or in their number of words.
    names = [f"{'x' * (i % 23)}{i}{'é' * (i % 3)}" for i in range(30_011)]
    numbering, numbers = Numbering("names"), {}
    for _ in range(6):
        some = [names[i] for i in generator.permutation(len(names))[:10_007]]
        array = pa.array(["in front", *some], pa.large_string()).slice(1)
        assert numbering.number(array, 0).tolist() == [numbers.setdefault(name, len(numbers)) for name in some]
    numbered = numbering.names(np.arange(len(numbering))[::-1])
    numbered.validate(full=True)
    assert numbered.to_pylist() == list(numbers)[::-1]
