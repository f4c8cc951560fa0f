"""Which drawn candidates are no negatives: the answer itself, or entities known to complete the query."""

import numpy as np
import numpy.typing as npt

from kgexp.data.known import TRAIN, KnownTriples
from kgexp.data.sides import Side
from kgexp.randomness import Int64

Bool = npt.NDArray[np.bool_]


def equal_mask(side: Side, triples: Int64, ids: Int64, chunk: Int64) -> Bool:
    """Candidates that are the answer: bool[x, k].

    Args:
        side: whose queries the triples int64[x, 3] give.
        triples: the examples.
        ids: int64[c, k], the candidates of chunks of examples.
        chunk: int64[x], the row of `ids` that each example shares with the others of its chunk.
    """
    return np.asarray(ids[chunk] == triples[:, side.column, None])


def known_mask(side: Side, triples: Int64, ids: Int64, chunk: Int64, known: KnownTriples) -> Bool:
    """Candidates with which the query is a triple of train, the answer among them: bool[x, k]; see `equal_mask`.

    Every known answer is looked up in the sorted candidates of its chunk, so nothing grows with the entities.
    """
    k = ids.shape[1]
    mask = np.zeros((len(triples), k), bool)
    example, entity, splits = known.lookup(side, triples)
    trained = (splits & TRAIN) > 0
    example, entity = example[trained], entity[trained]
    span = max(ids.max(initial=0), entity.max(initial=0)) + 1
    keys = (np.arange(len(ids))[:, None] * span + ids).reshape(-1)
    order = np.argsort(keys, kind="stable")
    wanted = chunk[example] * span + entity
    first, last = (np.searchsorted(keys, wanted, side=end, sorter=order) for end in ("left", "right"))
    hits = last - first  # a candidate may be drawn more than once
    places = np.repeat(first - (np.cumsum(hits) - hits), hits) + np.arange(hits.sum())
    mask[np.repeat(example, hits), order[places] % k] = True
    return mask
