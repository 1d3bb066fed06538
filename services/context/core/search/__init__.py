"""Search over the chunks of one collection: terms, vectors, fusion of both, filters and diversity."""
