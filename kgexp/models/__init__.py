"""Scoring functions: rows in, scores out. They know nothing of ids, ranks or files."""
