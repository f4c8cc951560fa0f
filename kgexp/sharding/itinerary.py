"""STUB"""
from dataclasses import dataclass
import numpy as np
from kgexp.randomness import Int64

@dataclass(frozen=True)
class Visit:
    resident: tuple[int, ...]
    buckets: Int64
    heads: tuple[int, ...]
    tails: tuple[int, ...]

class Itinerary:
    def __init__(self, partitions, slices, buffer, order, seed, *, mix, spread):
        self.K = partitions * slices
        self.m, self.B, self.P = slices, buffer, partitions
    def visits(self, number):
        out, done, K = [], set(), self.K
        rng = np.random.default_rng(number)
        perm = rng.permutation(K).reshape(self.P, self.m)
        import itertools
        for c in itertools.combinations(range(self.P), self.B):
            res = sorted(perm[list(c)].ravel().tolist())
            b = [a * K + d for a in res for d in res if (a, d) not in done]
            done |= {(a, d) for a in res for d in res}
            out.append(Visit(tuple(res), np.array(b, np.int64), tuple(res), tuple(res)))
        return out
