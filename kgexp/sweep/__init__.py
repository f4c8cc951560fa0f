"""Sweeps: many runs out of one command line, wherever Hydra's launcher puts them, and what became of each."""
