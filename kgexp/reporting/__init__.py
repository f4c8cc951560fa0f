"""What the trials of a sweep reached: reading their folders, tables, plots, a page. Nothing here imports torch."""
