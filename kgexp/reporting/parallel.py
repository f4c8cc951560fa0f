"""Parallel coordinates (Inselberg, 1985): a line a configuration through its values, coloured by what it reached."""
