"""Where a result comes from: metrics by relation, and the few numbers that people look at first."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from kgexp.data.graph import Graph
from kgexp.evaluation.categories import CATEGORIES, relation_categories
from kgexp.evaluation.counts import RankCounts
from kgexp.evaluation.metrics import hits, reciprocal

COLUMNS = ("mrr", "mr", "hits@1", "hits@3", "hits@10")


@dataclass(frozen=True)
class RelationRow:
    """Realistic metrics of the triples of one relation; `category` is `-` for a relation that train lacks."""

    relation: str
    triples: int
    category: str
    head_mrr: float
    tail_mrr: float
    both_mrr: float
    head_hits_at_10: float
    tail_hits_at_10: float
    both_hits_at_10: float


def relation_rows(counts: RankCounts, graph: Graph, name: str) -> list[RelationRow]:
    """A row for each relation of the ranked triples under the filter `name`, the most frequent one first."""
    twice = counts.twice_ranks(name, "realistic")
    m = graph.num_relations
    relation = counts.triples[:, 1]
    number = np.bincount(relation, minlength=m)
    sums = [
        np.bincount(relation, weights=values[:, side], minlength=m)
        for values in (reciprocal(twice), hits(twice, 10).astype(np.float64))
        for side in (0, 1)
    ]
    category = relation_categories(graph)
    rows = []
    for r in sorted(np.flatnonzero(number).tolist(), key=lambda r: (-number[r], r)):
        head_mrr, tail_mrr, head_hits, tail_hits = (float(total[r] / number[r]) for total in sums)
        both_mrr, both_hits = (head_mrr + tail_mrr) / 2, (head_hits + tail_hits) / 2
        kind = CATEGORIES[category[r]] if category[r] >= 0 else "-"
        row = (head_mrr, tail_mrr, both_mrr, head_hits, tail_hits, both_hits)
        rows.append(RelationRow(graph.relations.name(r), int(number[r]), kind, *row))
    return rows


def write_tsv(path: Path, rows: Sequence[RelationRow]) -> None:
    """Writes `rows` with a header line, tab-separated, numbers in full precision."""
    lines = ["\t".join(field.name for field in fields(RelationRow))]
    lines += ["\t".join(str(value) for value in astuple(row)) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def summary(values: Mapping[str, float]) -> RichTable:
    """A table for the console out of metrics by their full names: realistic, a line for each split, filter
    and side."""
    # The narrowest box: the table fits 80 columns, the width of an output that is no terminal.
    table = RichTable(
        "split", "filter", "side", *COLUMNS, title="ranks, realistic ties", box=SIMPLE_HEAD, pad_edge=False
    )
    for name in values:
        split, _, rest = name.partition("/")
        protocol, *middle = rest.split("/")
        if len(middle) == 3 and middle[0] == "realistic" and middle[2] == "mrr":
            line = [values[f"{split}/{protocol}/realistic/{middle[1]}/{metric}"] for metric in COLUMNS]
            cells = [
                f"{value:.1f}" if metric == "mr" else f"{value:.4f}"
                for metric, value in zip(COLUMNS, line, strict=True)
            ]
            table.add_row(split, protocol, middle[1], *cells)
    return table
