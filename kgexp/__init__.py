"""Knowledge-graph embeddings: one command, exact numbers, from a laptop to a cluster."""

__version__ = "0.1.0"
