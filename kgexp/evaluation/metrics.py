"""Metrics by their full protocol names, made of the integers of a ranking.

A name says everything that a number depends on: `{split}/{filter}/{tie}/{side}/{metric}`, such as
`test/filtered/realistic/both/mrr`; a group of triples, or another way to average, stands before the metric.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from kgexp.data.graph import Graph
from kgexp.data.sides import Side
from kgexp.errors import NonFiniteError
from kgexp.evaluation.categories import CATEGORIES, relation_categories, unseen
from kgexp.evaluation.counts import RankCounts
from kgexp.protocol import SIDES, TIES
from kgexp.randomness import Float64, Int64

TIE_GAP = 0.001  # of MRR between the optimistic and the pessimistic tie rule, above which people are warned


def metrics(counts: RankCounts, graph: Graph) -> dict[str, float]:
    """All metrics of a ranking by name; none for a split without triples.

    `both` pools head and tail queries. Three tie rules for `both`, realistic for `head` and `tail` and for
    all groups: relation categories, triples whose entities train holds (`seen`), means over relations
    (`macro_relation`) and over distinct queries (`macro_query`).

    Raises:
        NonFiniteError: a row is not finite, or a score was NaN.
    """
    check_rows(counts.split, counts.nonfinite_rows)
    if counts.nonfinite:
        raise NonFiniteError(
            f"{counts.nonfinite} scores of {counts.split} are NaN though every row is finite: "
            "lower optimizer.lr and go back to a checkpoint from before"
        )
    if not len(counts):
        return {}
    split = counts.split
    lost = unseen(graph, counts.triples)
    category = relation_categories(graph)[counts.triples[:, 1]]
    values = {
        f"{split}/triples": float(len(counts)),
        f"{split}/duplicates": float(counts.duplicates),
        f"{split}/in_train": float(counts.in_train),
        f"{split}/unseen": float(lost.sum()),
    }
    groups = {name: category == i for i, name in enumerate(CATEGORIES)}
    values |= {f"{split}/{name}/triples": float(chosen.sum()) for name, chosen in groups.items()}
    for name in counts.filters:
        for key, value in _of_filter(counts, name, groups | {"seen": ~lost}):
            values[f"{split}/{name}/{key}"] = value
    return values


def check_rows(split: str, nonfinite_rows: Mapping[str, int]) -> None:
    """Raises NonFiniteError where rows of a table are not finite: no rank can be trusted then."""
    rows = " and ".join(f"{n} {table} rows" for table, n in nonfinite_rows.items() if n)
    if rows:
        raise NonFiniteError(
            f"{rows} hold NaN or infinity, so the ranks of {split} mean nothing: "
            "lower optimizer.lr and go back to a checkpoint from before"
        )


def tie_warnings(values: Mapping[str, float]) -> list[str]:
    """A sentence for each filter whose MRR depends on the tie rule by more than `TIE_GAP`."""
    found = []
    for name, optimistic in values.items():
        if not name.endswith("/optimistic/both/mrr"):
            continue
        prefix = name.removesuffix("/optimistic/both/mrr")
        pessimistic = values[f"{prefix}/pessimistic/both/mrr"]
        if optimistic - pessimistic > TIE_GAP:
            found.append(
                f"many candidates score exactly as high as the answer: MRR of {prefix} is {optimistic:.4f} "
                f"if ties go to the answer and {pessimistic:.4f} if they go against it; quote the realistic"
            )
    return found


def reciprocal(twice: Int64) -> Float64:
    """1 / rank of twice-ranks, float64 of the same shape."""
    return 2.0 / twice


def hits(twice: Int64, k: int) -> npt.NDArray[np.bool_]:
    """Whether the filtered rank is at most `k`, of twice-ranks: bool of the same shape."""
    return twice <= 2 * k


def _of_filter(counts: RankCounts, name: str, groups: dict[str, npt.NDArray[np.bool_]]) -> Iterator[tuple[str, float]]:
    for tie in TIES:
        twice = counts.twice_ranks(name, tie)
        for side in SIDES if tie == "realistic" else ("both",):
            for metric, value in _averages(_queries(twice, side)):
                yield f"{tie}/{side}/{metric}", value
    twice = counts.twice_ranks(name, "realistic")
    labels = {"macro_relation": _relations(counts), "macro_query": _asked(counts)}
    for side in SIDES:
        adjusted = _amri(_queries(twice, side), _queries(counts.candidates[name], side))
        if adjusted is not None:
            yield f"realistic/{side}/amri", adjusted
        for group, chosen in groups.items():
            if chosen.any():
                yield f"realistic/{side}/{group}/mrr", float(reciprocal(_queries(twice[chosen], side)).mean())
        for group, of_group in labels.items():
            value = _macro(reciprocal(_queries(twice, side)), _queries(of_group, side))
            yield f"realistic/{side}/{group}/mrr", value


def _queries(values: Int64, side: str) -> Int64:
    """The queries of a side out of [N, 2], head queries first where both are meant: [N] or [2N]."""
    return values.T.ravel() if side == "both" else values[:, Side[side.upper()].value]


def _averages(twice: Int64) -> Iterator[tuple[str, float]]:
    yield "mrr", float(reciprocal(twice).mean())
    yield "mr", float(twice.mean()) / 2
    yield "median", float(np.median(twice)) / 2
    for k in (1, 3, 10):
        yield f"hits@{k}", float(hits(twice, k).mean())


def _amri(twice: Int64, candidates: Int64) -> float | None:
    """The adjusted mean rank index (Berrendorf et al. 2020): 1 - (MR - 1) / (E[MR] - 1), 0 for random scores
    and 1 for perfect ones. None where no query has a choice."""
    expected = float((candidates + 1).mean()) / 2
    return 1.0 - (float(twice.mean()) / 2 - 1.0) / (expected - 1.0) if expected > 1.0 else None


def _macro(values: Float64, labels: Int64) -> float:
    """The mean over groups, named by `labels`, of each group's mean."""
    _, group = np.unique(labels, return_inverse=True)
    return float((np.bincount(group, weights=values) / np.bincount(group)).mean())


def _relations(counts: RankCounts) -> Int64:
    return np.repeat(counts.triples[:, 1:2], 2, axis=1)


def _asked(counts: RankCounts) -> Int64:
    """int64[N, 2]: a number for each distinct query, given entity with relation and side."""
    labels = np.empty((len(counts), 2), dtype=np.int64)
    for side in Side:
        query = counts.triples[:, [side.given, 1]]
        labels[:, side.value] = np.unique(query, axis=0, return_inverse=True)[1].ravel()
    labels[:, 1] += len(counts)
    return labels
