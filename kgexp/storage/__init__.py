"""Where tables live while a run lasts: memory, or memory-mapped files."""
