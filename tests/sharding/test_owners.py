"""Who owns which rows, and which part of a batch: even, contiguous, and nothing is left out."""

import numpy as np
import pytest
import torch

from kgexp.scoring.share import Share
from kgexp.sharding.owners import Owners


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [1, 5, 501])
def test_ranges_are_even_and_cover_all(n, ranks):
    owners = Owners(n, ranks)
    assert owners.bounds[0] == 0 and owners.bounds[-1] == n
    sizes = owners.sizes()
    assert sum(sizes) == n and max(sizes) - min(sizes) <= 1
    assert list(Share(0, ranks).sizes(n)) == sizes
    parts = [range(*Share(rank, ranks).of(n)) for rank in range(ranks)]
    assert [x for part in parts for x in part] == list(range(n))


def test_five_rows_of_four_ranks():
    assert Owners(5, 4).sizes() == [1, 1, 1, 2]
    assert Owners(2, 4).sizes() == [0, 1, 0, 1]
    assert Owners(2, 4).line("entity") == "entity rows: 2 over 4 ranks, 0 or 1 each, in ranges of ids"


def test_ids_are_cut_by_owner():
    owners, random = Owners(501, 3), np.random.default_rng(0)
    for size in (0, 1, 60):
        ids = np.unique(random.integers(0, 501, size))
        expected = [int(((ids >= a) & (ids < b)).sum()) for a, b in zip((0, 167, 334), (167, 334, 501), strict=True)]
        assert owners.cut(torch.from_numpy(ids)) == expected
