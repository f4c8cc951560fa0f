"""Checkpoints: a folder that appears by one rename, and does not know who wrote it."""
