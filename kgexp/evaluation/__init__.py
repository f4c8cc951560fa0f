"""Exact ranking of every candidate, and the metrics made of the ranks."""
