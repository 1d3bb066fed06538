"""Search over the chunks of a collection: terms, vectors, fusion of both, filters and diversity."""
