"""1vsSample: every query of a batch against one sample of the entities."""

import sys

import numpy as np

from kgexp.randomness import Int64, Permutation
from kgexp.scoring.negatives import NegativeSampling
from kgexp.scoring.pool import Pool
from kgexp.scoring.technique import Extent


class OneVsSample(NegativeSampling):
    """Negative sampling where the whole batch is one chunk and no entity is drawn twice for a side.

    The candidates of a query are the sample and its own answer, so a sample of all entities is 1vsAll. The sample
    is a prefix of a permutation that the step seeds: uniform, without replacement.

    Args:
        samples: entities a side and step; all of them where the graph has fewer.
        sides, mask: see `NegativeSampling`. Without a mask an answer that is in the sample counts twice.
    """

    def __init__(self, samples: int = 1000, sides: str = "both", mask: str = "equal") -> None:
        super().__init__(samples, chunk_size=sys.maxsize, sides=sides, mask=mask)

    def _drawn(self, extent: Extent) -> int:
        return min(self.negatives, extent.entities)

    def _draw(self, stream: int, chunks: range, pool: Pool) -> Int64:
        """The ids int64[1, k] of the sample; no rows where there is no example."""
        sample = pool.ids(Permutation(pool.size, stream)(np.arange(min(self.negatives, pool.size))))
        return np.tile(sample, (len(chunks), 1))
