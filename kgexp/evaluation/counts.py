"""What ranking yields: integers, from which every metric is made."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgexp.randomness import Int64, Purpose, UInt64, bits, key


@dataclass(frozen=True)
class RankCounts:
    """Counts of candidates for N distinct triples; column 0 is for head queries, column 1 for tail queries.

    Attributes:
        split: name of the split, the first segment of every metric's name.
        triples: int64[N, 3], each once, in the order of the split.
        greater: int64[N, 2] for each filter: candidates that score higher than the answer.
        equal: int64[N, 2] for each filter: candidates other than the answer that score exactly as high.
        candidates: int64[N, 2] for each filter: |C|, the answer included.
        total: distinct triples of the split; more than N when only a sample of them was ranked.
        duplicates: lines of the split that repeat another.
        in_train: ranked triples that train holds too.
        nonfinite: NaN scores that were met; an answer's counts once, whatever its candidates' scores are.
        nonfinite_rows: rows that are not finite, for each table.
    """

    split: str
    triples: Int64
    greater: Mapping[str, Int64]
    equal: Mapping[str, Int64]
    candidates: Mapping[str, Int64]
    total: int
    duplicates: int
    in_train: int
    nonfinite: int
    nonfinite_rows: Mapping[str, int]

    @property
    def filters(self) -> tuple[str, ...]:
        """Names of the filters, the second segment of metric names."""
        return tuple(self.greater)

    def __len__(self) -> int:
        return len(self.triples)

    def twice_ranks(self, name: str, tie: str) -> Int64:
        """int64[N, 2], twice the filtered rank under a tie rule: optimistic places the answer before all that
        score as high, pessimistic behind them, realistic in their middle (Berrendorf et al. 2020). Twice,
        because that keeps halves exact."""
        of_equal = {"optimistic": 0, "realistic": 1, "pessimistic": 2}[tie]
        return 2 + 2 * self.greater[name] + of_equal * self.equal[name]


def distinct(triples: npt.NDArray[np.integer]) -> Int64:
    """The distinct rows of `triples` [N, 3], in order of first appearance: int64."""
    triples = np.asarray(triples, dtype=np.int64).reshape(-1, 3)
    order = np.lexsort(triples.T)
    ordered = triples[order]
    new = np.ones(len(triples), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return triples[np.sort(order[new])]  # lexsort is stable: the first of equal rows comes first


def content_bits(triples: Int64, stream: int) -> UInt64:
    """64 random bits for each triple [N, 3], a function of the stream and the triple's ids alone:
    uint64[N]."""
    state = np.zeros(len(triples), dtype=np.uint64)
    for column in triples.T:
        state = bits(stream, state + column.astype(np.uint64))
    return state


def sample(triples: Int64, size: int | None) -> Int64:
    """At most `size` of the distinct `triples` [N, 3], in their order; which ones depends on their ids
    alone."""
    if size is None or size >= len(triples):
        return triples
    chosen = np.argsort(content_bits(triples, key(Purpose.EVALUATION_CANDIDATES)), kind="stable")[:size]
    return triples[np.sort(chosen)]
