"""What `python -m kgexp.tools.bench` measures: a module for each suite, and for what the suites share."""
