"""Knowledge-graph embeddings: one command, exact numbers, from a laptop to a cluster."""

import os

# Before torch is imported. OpenMP's threads would otherwise spin for a while after each operation that they share, on
# the cores that the threads of a `Team` compute on: a step took 1.4 times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
