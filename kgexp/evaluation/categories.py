"""Groups of triples that metrics are also given for: relation categories, and entities that train lacks."""

import numpy as np
import numpy.typing as npt

from kgexp.data.graph import Graph
from kgexp.evaluation.counts import distinct
from kgexp.randomness import Int64

CATEGORIES = ("1-1", "1-N", "N-1", "N-N")
THRESHOLD = 1.5  # mean number of partners from which a side counts as "N" (Bordes et al., NIPS 2013)


def relation_categories(graph: Graph) -> npt.NDArray[np.int8]:
    """The index in `CATEGORIES` of every relation, int8[m], -1 for one that train lacks.

    The first letter is about heads per tail, the second about tails per head, each the mean over the tails,
    or heads, that the relation has in train.
    """
    m = graph.num_relations
    triples = distinct(graph.train.triples)
    relation = triples[:, 1]
    facts = np.bincount(relation, minlength=m)
    heads, tails = (_distinct_per_relation(relation, triples[:, column], m) for column in (0, 2))
    with np.errstate(invalid="ignore"):  # 0 / 0 for relations that train lacks
        many_heads, many_tails = facts / tails >= THRESHOLD, facts / heads >= THRESHOLD
    return np.where(facts > 0, 2 * many_heads + many_tails, -1).astype(np.int8)


def _distinct_per_relation(relation: Int64, entity: Int64, m: int) -> Int64:
    order = np.lexsort((entity, relation))
    relation, entity = relation[order], entity[order]
    new = np.ones(len(relation), dtype=bool)
    new[1:] = (relation[1:] != relation[:-1]) | (entity[1:] != entity[:-1])
    return np.bincount(relation[new], minlength=m).astype(np.int64)


def unseen(graph: Graph, triples: Int64) -> npt.NDArray[np.bool_]:
    """bool[N]: which of the triples [N, 3] hold an entity that train lacks."""
    seen = np.zeros(graph.num_entities, dtype=bool)
    seen[graph.train.triples[:, 0]] = True
    seen[graph.train.triples[:, 2]] = True
    found: npt.NDArray[np.bool_] = ~(seen[triples[:, 0]] & seen[triples[:, 2]])
    return found
