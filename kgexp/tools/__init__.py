"""Commands beside training: `python -m kgexp.tools.X`."""
