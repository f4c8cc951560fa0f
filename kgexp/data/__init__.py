"""From files of triples to a graph of integer ids: reading, vocabularies, splits, filter index, cache."""
