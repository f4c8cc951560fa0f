"""Weights of relations: a file with lines `relation<TAB>weight`, which multiply the weights of their triples."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from kgexp.data.layout import is_weight
from kgexp.data.relation_lines import Said, relation_lines
from kgexp.data.vocabulary import Vocabulary


def read_relation_weights(path: Path, relations: Vocabulary) -> npt.NDArray[np.float64]:
    """The weights float64[m] of a graph's relations; those that the file lacks weigh 1.

    Raises:
        DataError: the file cannot be read, is empty, or has an unfit line (which is named).
    """
    weights = np.ones(len(relations))
    for line in relation_lines(path, relations, Said("a weight", ("weight",))):
        (weight,) = line.fields
        if not is_weight(weight):
            raise line.fault(path, f"the weight '{weight}' is no finite number of at least 0; mend it")
        weights[line.relation] = float(weight)
    return weights
