"""Groups of triples that metrics are also given for: relation categories, and entities that train lacks."""

import numpy as np
import numpy.typing as npt

from kgexp.data.graph import Graph
from kgexp.data.known import TRAIN
from kgexp.data.rowfile import pieces
from kgexp.randomness import Int64

CATEGORIES = ("1-1", "1-N", "N-1", "N-N")
THRESHOLD = 1.5  # mean number of partners from which a side counts as "N" (Bordes et al., NIPS 2013)


def relation_categories(graph: Graph) -> npt.NDArray[np.int8]:
    """The index in `CATEGORIES` of every relation, int8[m], -1 for one that train lacks.

    The first letter is about heads per tail, the second about tails per head, each the mean over the tails,
    or heads, that the relation has in train.
    """
    of = graph.known.relation_counts(TRAIN)
    with np.errstate(invalid="ignore"):  # 0 / 0 for relations that train lacks
        many_heads, many_tails = of.facts / of.tails >= THRESHOLD, of.facts / of.heads >= THRESHOLD
    return np.where(of.facts > 0, 2 * many_heads + many_tails, -1).astype(np.int8)


def unseen(graph: Graph, triples: Int64) -> npt.NDArray[np.bool_]:
    """bool[N]: which of the triples [N, 3] hold an entity that train lacks."""
    seen = np.zeros(graph.num_entities, dtype=bool)
    for piece in pieces(graph.train.triples):
        seen[piece[:, 0::2]] = True
    found: npt.NDArray[np.bool_] = ~(seen[triples[:, 0]] & seen[triples[:, 2]])
    return found
