"""Retrieves the context of a run: with queries that the model writes, and the probability that the chunks answer."""
