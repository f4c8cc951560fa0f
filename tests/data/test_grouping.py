import numpy as np
import pytest

from kgexp.data.grouping import order_of


@pytest.mark.parametrize("bits", [12, 40, 64])
def test_the_order_of_different_integers(bits: int):
    generator = np.random.default_rng(bits)
    # Few bits, at either end: many agree in all but those that the places take.
    values = np.unique(generator.integers(0, 2**bits, 3001, np.uint64, endpoint=False))
    for shift in (0, 64 - bits):
        shuffled = generator.permutation(values << np.uint64(shift))
        assert order_of(shuffled).tolist() == np.argsort(shuffled).tolist()


def test_the_order_of_none_and_of_one():
    assert order_of(np.zeros(0, np.uint64)).tolist() == []
    assert order_of(np.full(1, 7, np.uint64)).tolist() == [0]
