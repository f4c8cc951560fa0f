"""Where tables, partitions, edges and checkpoints live."""
